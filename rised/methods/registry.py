"""The registry of method pieces: kind -> config ``type`` -> class.

A piece is a class decorated with ``@piece("<kind>", "<type>")`` in ``rised/methods/<folder>/<file>.py``; every file of
the folder is imported on the first look-up, so adding a piece means adding a file. Files that begin with an
underscore are helpers. What a piece does is decided in its own file, what a kind promises in ``base``.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from rised.config.settings import Settings
from rised.methods.errors import MethodError

FOLDERS: dict[str, str] = {
    "selector": "rised.methods.selectors",
    "reward": "rised.methods.training_rewards",
    "advantage": "rised.methods.advantages",
    "teacher": "rised.methods.teachers",
    "distillation": "rised.methods.distillation",
    "policy_loss": "rised.methods.policy_losses",
    "steering": "rised.methods.steering",
    "bundle_writer": "rised.methods.bundle_writers",
    "verifier": "rised.methods.verifiers",
}
"""kind -> package that holds its pieces."""

PLACES: dict[str, str] = {kind: kind for kind in FOLDERS} | {
    "bundle_writer": "teacher.writer",
    "verifier": "teacher.verifier",
}
"""kind -> key of the method's config under which its settings stand."""

PIECES: dict[str, dict[str, type]] = {kind: {} for kind in FOLDERS}

PieceT = TypeVar("PieceT", bound=type)


def piece(kind: str, type_name: str) -> Callable[[PieceT], PieceT]:
    """Class decorator that registers a piece; the class carries its settings class as ``Settings``."""

    def add(cls: PieceT) -> PieceT:
        if type_name in PIECES[kind]:
            raise MethodError(f"two {kind} pieces are registered as {type_name!r}")
        PIECES[kind][type_name] = cls
        return cls

    return add


@functools.cache
def _discover(kind: str) -> None:
    package = importlib.import_module(FOLDERS[kind])
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{FOLDERS[kind]}.{module.name}")


def known_types(kind: str) -> list[str]:
    """The ``type`` values that a piece of this kind may have, sorted."""
    _discover(kind)
    return sorted(PIECES[kind])


def piece_class(kind: str, type_name: str) -> Any:
    """The class registered as ``type_name``.

    Raises MethodError naming the known types and the nearest one.
    """
    known = known_types(kind)
    if type_name in PIECES[kind]:
        return PIECES[kind][type_name]
    near = difflib.get_close_matches(str(type_name), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise MethodError(f"unknown {kind} type {type_name!r}: known are {', '.join(known)}{hint}")


def settings_class(kind: str, value: Mapping[str, Any]) -> type[Settings]:
    """The settings class that a config mapping (``{type: ..., <the piece's own keys>}``) asks for.

    Raises MethodError for a mapping without ``type`` or with an unknown one.
    """
    if "type" not in value:
        raise MethodError(f"the key `type` is required and missing: one of {', '.join(known_types(kind))}")
    chosen: type[Settings] = piece_class(kind, value["type"]).Settings
    return chosen


def piece_settings(kind: str, value: Any) -> Settings:
    """Settings of a piece from its config mapping.

    Raises MethodError that lists what is wrong, key by key.
    """
    if isinstance(value, Settings):
        return value
    if not isinstance(value, Mapping):
        raise MethodError(f"must be a mapping with the key `type`, one of {', '.join(known_types(kind))}")
    try:
        return settings_class(kind, value).model_validate(dict(value))
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc'])) or value['type']}: {e['msg']}" for e in error.errors()]
        raise MethodError("; ".join(wrong)) from None


def build(kind: str, settings: Any, **context: Any) -> Any:
    """The piece that these settings describe; ``context`` is passed on to its constructor."""
    return piece_class(kind, settings.type)(settings, **context)
