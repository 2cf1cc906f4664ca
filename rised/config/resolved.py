"""Resolved settings: their text, their hashes, and what may not change in a resumed run.

A key is strict unless it, or a settings object that contains it, is declared operational. Loading is in ``loader``.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from rised.config.binding import is_model, union_members
from rised.config.errors import ConfigError, Problem

ABSENT = "(absent)"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_READ_OTHERWISE = frozenset("y n yes no on off true false null nan inf".split())
"""Words that some YAML reader takes for something else than text."""


class ChangedKey(NamedTuple):
    """A strict key with its value in the run and its value now, as JSON text."""

    key: str
    old: str
    new: str


class _Representer(SafeRepresenter):
    """Writes what readers of YAML 1.1 and 1.2 take alike: doubtful text in quotes, ``1.0e-06`` with its point."""

    def represent_text(self, text: str) -> ScalarNode:
        plain = _PLAIN.fullmatch(text) and text.lower() not in _READ_OTHERWISE
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')

    def represent_real(self, number: float) -> ScalarNode:
        node = self.represent_float(number)
        mantissa, exponent, power = node.value.partition("e")
        if exponent and "." not in mantissa:
            node.value = f"{mantissa}.0e{power}"
        return node


_Representer.add_representer(str, _Representer.represent_text)
_Representer.add_representer(float, _Representer.represent_real)


def tree_of(value: Any) -> Any:
    """JSON-like values of settings, field by field; sets become sorted lists."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {field.alias or name: tree_of(getattr(value, name)) for name, field in fields.items()}
    if isinstance(value, Mapping):
        return {str(to_jsonable_python(key)): tree_of(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((tree_of(item) for item in value), key=_canonical)
    if isinstance(value, list | tuple):
        return [tree_of(item) for item in value]
    return to_jsonable_python(value, inf_nan_mode="constants")


def dump(settings: BaseModel) -> str:
    """YAML text of all settings, defaults included; loading it gives equal settings."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 1 << 20
    stream = io.StringIO()
    yaml.dump(tree_of(settings), stream)
    return stream.getvalue()


def keys(settings: BaseModel, operational: bool = False, above: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Every dotted key with its JSON-like value and whether it is operational."""
    for name, field in type(settings).model_fields.items():
        extra = field.json_schema_extra
        free = operational or (isinstance(extra, dict) and extra.get("resume") == "operational")
        yield from _keys_of(getattr(settings, name), free, f"{above}.{name}" if above else name)


def _keys_of(value: Any, operational: bool, key: str) -> Iterator[tuple[str, Any, bool]]:
    if isinstance(value, BaseModel):
        yield from keys(value, operational, key)
    elif isinstance(value, Mapping) and any(isinstance(item, BaseModel) for item in value.values()):
        for name, item in value.items():
            yield from _keys_of(item, operational, f"{key}.{name}")
    elif isinstance(value, list | tuple) and any(isinstance(item, BaseModel) for item in value):
        for index, item in enumerate(value):
            yield from _keys_of(item, operational, f"{key}.{index}")
    else:
        yield key, tree_of(value), operational


def settings_hash(settings: BaseModel) -> str:
    """SHA-256 over the strict keys: equal for two settings that give the same result.

    A key that is declared to be left out at its default is: runs from before it have the hash that they always had.
    """
    silent = set(_silent_keys(settings))
    return _hash({key: value for key, value, operational in keys(settings) if not operational and key not in silent})


def _silent_keys(settings: BaseModel, above: str = "") -> Iterator[str]:
    """Keys that are at their default and then not part of the hash."""
    for name, field in type(settings).model_fields.items():
        key, value = f"{above}.{name}" if above else name, getattr(settings, name)
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("in_hash_at_default") is False and value == field.default:
            yield key
        elif isinstance(value, BaseModel):
            yield from _silent_keys(value, key)


def full_hash(settings: BaseModel) -> str:
    """SHA-256 over all keys."""
    return _hash({key: value for key, value, _ in keys(settings)})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(values).encode()).hexdigest()


def changed_strict_keys(old: BaseModel, new: BaseModel) -> list[ChangedKey]:
    """Strict keys whose value differs between a run's saved settings and those it is to be resumed with."""
    before = {key: _canonical(value) for key, value, operational in keys(old) if not operational}
    after = {key: _canonical(value) for key, value, operational in keys(new) if not operational}
    names = [*before, *(key for key in after if key not in before)]
    changes = [ChangedKey(key, before.get(key, ABSENT), after.get(key, ABSENT)) for key in names]
    return [change for change in changes if change.old != change.new]


def refuse_changed_strict_keys(old: BaseModel, new: BaseModel, run: str) -> None:
    """Raise :class:`ConfigError` naming every strict key that changed since ``run`` began."""
    advice = "it shapes the result, so put it back or start a new run"
    problems = [
        Problem(run, key, f"was {was} when the run began and is {now} now; {advice}")
        for key, was, now in changed_strict_keys(old, new)
    ]
    if problems:
        raise ConfigError(problems)


def classification_gaps(model_class: type[BaseModel]) -> list[str]:
    """Fields of a settings class, and of the classes in it, that are declared neither strict nor operational."""
    gaps: list[str] = []
    seen: set[type] = set()

    def visit(model: type[BaseModel]) -> None:
        if model in seen:
            return
        seen.add(model)
        for name, field in model.model_fields.items():
            extra = field.json_schema_extra
            if not isinstance(extra, dict) or extra.get("resume") not in ("strict", "operational"):
                gaps.append(f"{model.__module__}.{model.__qualname__}.{name}")
            visit_annotation(field.annotation)

    def visit_annotation(annotation: Any) -> None:
        for member in union_members(annotation):
            if is_model(member):
                visit(member)
            for argument in getattr(member, "__args__", ()):
                visit_annotation(argument)

    visit(model_class)
    return gaps
