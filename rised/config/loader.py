"""The one way from YAML to settings: files and overrides in, a validated instance or a message that helps out.

Reading and merging are in ``source`` and ``overlays``, the meaning of scalars in ``binding``; saving and hashing in
``resolved``.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence as SequenceABC
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rised.config.binding import Binder
from rised.config.errors import ConfigError, Problem
from rised.config.overlays import compose, compose_text
from rised.config.paths import shipped
from rised.config.source import Mapping, Origin, Scalar, Sequence, Tree, plain_value, read

Model = TypeVar("Model", bound=BaseModel)


def load(model_class: type[Model], paths: SequenceABC[Path | str], overrides: SequenceABC[str] = ()) -> Model:
    """Settings from YAML files (later ones win) and ``a.b.c=value`` overrides.

    Raises :class:`ConfigError` with every fault found: file and line, dotted key, what to do.
    """
    return bind(model_class, compose(paths, overrides))


def load_text(
    model_class: type[Model], text: str, source: str = "the saved configuration", overrides: SequenceABC[str] = ()
) -> Model:
    """Settings from one YAML text, such as the ``config.yaml`` of a run."""
    return bind(model_class, compose_text(text, source, overrides))


def read_plain(path: Path | str) -> Any:
    """A YAML file without a model: dictionaries, lists and scalars by the core rules of YAML 1.2."""
    return plain_value(read(shipped(path)))


def bind(model_class: type[Model], document: Mapping) -> Model:
    """Validate a composed document."""
    binder = Binder(model_class)
    values = binder.model(document, model_class)
    try:
        instance = model_class.model_validate(values)
    except ValidationError as error:
        unknown = {problem.key for problem in binder.problems}
        found = [_problem(document, detail) for detail in error.errors(include_url=False)]
        raise ConfigError(binder.problems + [problem for problem in found if problem.key not in unknown]) from None
    if binder.problems:
        raise ConfigError(binder.problems)
    return instance


def _problem(document: Mapping, detail: Any) -> Problem:
    """A pydantic error as a problem with place and key."""
    key, origin, written = _locate(document, detail["loc"])
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if detail["type"] == "missing":
        return Problem(str(origin), key, "this key is required and missing")
    if detail["type"] == "union_tag_not_found":
        name = detail["ctx"]["discriminator"]
        return Problem(str(origin), key, f"the key {name} is missing, which says what kind this is")
    if detail["type"] in ("union_tag_invalid", "literal_error", "enum"):
        message += _suggestion(detail)
    elif detail["type"] == "string_type" and not isinstance(detail["input"], str | dict | list):
        message += "; put the value in quotes" if detail["input"] is not None else "; leave the key out or give a text"
    if written is not None and repr(written) not in message:
        message += f" (found {written!r})"
    return Problem(str(origin), key, message)


def _suggestion(detail: Any) -> str:
    context = detail.get("ctx", {})
    given = str(context.get("tag", detail["input"]))
    choices = str(context.get("expected_tags") or context.get("expected", "")).replace(" or ", ", ").split(", ")
    near = difflib.get_close_matches(given, [choice.strip("'") for choice in choices], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _locate(document: Mapping, location: tuple[int | str, ...]) -> tuple[str, Origin, str | None]:
    """Dotted key, place and source text of a pydantic location; names of union members in it are passed over."""
    tree: Tree = document
    origin = document.origin
    parts: list[str] = []
    for index, part in enumerate(location):
        if isinstance(tree, Mapping) and str(part) in tree.items:
            origin, tree = tree.keys[str(part)], tree.items[str(part)]
        elif isinstance(tree, Sequence) and isinstance(part, int) and part < len(tree.items):
            tree = tree.items[part]
            origin = tree.origin
        elif index < len(location) - 1 or not isinstance(tree, Mapping):
            continue
        parts.append(str(part))
    return ".".join(parts), origin, tree.text if isinstance(tree, Scalar) else None
