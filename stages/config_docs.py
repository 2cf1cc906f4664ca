"""config_docs: write the table of all configuration keys into docs/configuration.md.

Walks the settings classes that a configuration can reach (experiment, run, nano policy, every environment, every
method piece) and renews the text between the document's two marker comments. The prose around it is written by hand.

    python -m stages.config_docs docs/configuration.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rised.config import ConfigError
from rised.config.binding import is_model, union_members
from rised.environments.discovery import discover
from rised.experiment import GRID_KEYS, ExperimentConfig, RunConfig, RunSettings
from rised.methods.registry import PLACES, known_types, piece_class
from rised.methods.settings import MethodSettings
from rised.nano_policy import NanoPolicyConfig
from stages.cli import bare_parser, run_stage

BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"
ABOVE_METHOD = "method."
_NAMES = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path", type(None): "null"}
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


class Row(NamedTuple):
    """One key as the table shows it; all but ``key`` are Markdown."""

    key: str
    takes: str
    default: str
    resume: str
    description: str


def rows(model: type[BaseModel], above: str = "", operational: bool = False) -> Iterator[Row]:
    """Every key of a settings class and of the classes in it, in the order of declaration.

    A key below an operational one is operational too. A settings class without fields of its own stands for one that
    the document chooses (``type``, or the environment's name) and is described in a section of its own.
    """
    for name, field in model.model_fields.items():
        key = f"{above}{field.alias or name}"
        extra = field.json_schema_extra
        free = operational or (isinstance(extra, dict) and extra.get("resume") == "operational")
        nested = list(_nested(field.annotation))
        if not nested:
            yield _row(key, field, free)
        shown: set[Row] = set()
        for place, settings in nested:  # kinds of one thing often share keys
            for row in rows(settings, f"{key}.{place}", free):
                if row not in shown:
                    shown.add(row)
                    yield row


def _nested(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """The settings classes in a field's type, and what stands between their keys and the field's."""
    for member in union_members(annotation):
        if is_model(member) and member.model_fields:
            yield "", member
        elif get_origin(member) in (dict, Mapping) and is_model(get_args(member)[1]):
            yield "<name>.", get_args(member)[1]
        elif get_origin(member) is list and is_model(get_args(member)[0]):
            yield "<number>.", get_args(member)[0]


def _row(key: str, field: FieldInfo, operational: bool) -> Row:
    default = "required" if field.is_required() else _code(field.get_default(call_default_factory=True))
    resume = "operational" if operational else "strict"
    return Row(key, _takes(field), default, resume, _cell(" ".join((field.description or "").split())))


def _takes(field: FieldInfo) -> str:
    """Type and bounds: ``integer >= 1``, ``number > 0 or null``."""
    bounds = [
        f"{sign} {value:g}"
        for mark in field.metadata
        for name, sign in _BOUNDS.items()
        if (value := getattr(mark, name, None)) is not None
    ]
    words, null, _ = type_words(field.annotation).partition(" or null")
    return f"{words} {', '.join(bounds)}{null}" if bounds else words + null


def type_words(annotation: Any) -> str:
    """A field's type in words: ``integer or null``, ``mapping of text to integer``."""
    words = []
    for member in union_members(annotation):
        origin, arguments = get_origin(member), get_args(member)
        if origin is Literal:
            words.append(" or ".join(_code(choice) for choice in arguments))
        elif isinstance(member, type) and issubclass(member, Enum):
            words.append(" or ".join(_code(choice.value) for choice in member))
        elif origin in (dict, Mapping):
            words.append(f"mapping of {type_words(arguments[0])} to {type_words(arguments[1])}")
        elif origin is tuple and arguments[-1] is not Ellipsis:
            words.append(f"list of {len(arguments)} values, {type_words(arguments[0])}")
        elif origin in (list, tuple, Sequence):
            words.append(f"list of {type_words(arguments[0])}")
        elif is_model(member):
            words.append("mapping, see below")
        else:
            words.append(_NAMES.get(member, "any"))
    return " or ".join(words)


def _code(value: Any) -> str:
    """A value as one would write it in YAML."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        text = "{" + ", ".join(f"{key}: {item}" for key, item in value.items()) + "}"
    elif isinstance(value, str) and value:
        text = value
    else:
        text = json.dumps(list(value) if isinstance(value, tuple) else value, default=str)
    return f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def table(found: Sequence[Row]) -> list[str]:
    """Rows as a Markdown table; the ``type`` of a method's piece comes first."""
    found = sorted(found, key=lambda row: not (row.key.startswith(ABOVE_METHOD) and row.key.endswith(".type")))
    lines = ["| key | takes | default | class | description |", "| --- | --- | --- | --- | --- |"]
    return lines + [f"| `{r.key}` | {r.takes} | {r.default} | {r.resume} | {r.description} |" for r in found]


def _summary(cls: type) -> str:
    """First paragraph of a class's docstring, on one line."""
    paragraph = (cls.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(paragraph.split()).replace("``", "`")


def generated() -> str:
    """All sections between the markers."""
    experiment, run, shared = (list(rows(model)) for model in (ExperimentConfig, RunConfig, RunSettings))
    known = {row.key for row in shared}
    lines = ["### Experiment file", "", "Keys of `configs/experiments/*.yaml` and of the files that these extend.", ""]
    lines += table([row for row in experiment if row.key.split(".")[0] not in GRID_KEYS])
    lines += ["", "The grid: keys that no single run sees.", ""]
    lines += table([row for row in experiment if row.key.split(".")[0] in GRID_KEYS])
    lines += ["", "### Added by a run", "", "Stand in a run's saved `config.yaml`; the train stage fills them in.", ""]
    lines += table([row for row in run if row.key not in known and not row.key.startswith(ABOVE_METHOD)])
    lines += ["", "### Method file", "", "Keys of `configs/methods/*.yaml`.", ""]
    lines += table(list(rows(MethodSettings, ABOVE_METHOD)))
    for kind, place in PLACES.items():
        lines += ["", f"### Pieces for `method.{place}`"]
        for type_name in known_types(kind):
            piece = piece_class(kind, type_name)
            lines += ["", f"**`{type_name}`**", ""]
            lines += table(list(rows(piece.Settings, f"{ABOVE_METHOD}{place}.")))
    for name, spec in discover().items():
        if not spec.settings_type.__module__.startswith("rised.environments."):
            continue  # registered by somebody else in this process
        lines += ["", f"### Environment `{name}`", "", _summary(spec.settings_type), ""]
        settings_type: Any = spec.settings_type
        lines += table(list(rows(settings_type, f"environments.{name}.settings.")))
    own = [row for row in rows(NanoPolicyConfig) if row.key not in known or row.key == "block_style"]
    lines += ["", "### Nano policy", "", "Keys of `configs/nano_policy.yaml` beyond those above.", "", *table(own)]
    return "\n".join(lines) + "\n"


def renewed(text: str) -> str:
    """A document with the part between its two marker comments renewed."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ConfigError(f"the document needs {BEGIN!r} and {END!r} exactly once each")
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{generated()}{END}{rest.split(END)[1]}"


def main() -> None:
    parser = bare_parser("config_docs", __doc__)
    help_ = "Markdown file whose part between the markers is renewed (none: print it)"
    parser.add_argument("documents", type=Path, nargs="*", metavar="FILE", help=help_)
    documents: list[Path] = parser.parse_args().documents
    if not documents:
        print(generated(), end="")
    for document in documents:
        document.write_text(renewed(document.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    run_stage(main)
