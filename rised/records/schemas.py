"""Arrow schemas of everything stored, and the conversion between records and tables.

Each schema carries its name and version in its metadata; reading checks both. What a record means is in ``types``;
how tables become files is in ``shards``. Tasks travel as plain dictionaries, because the class ``Task`` belongs to
the environments, which are above this room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from rised.records.errors import RecordError
from rised.records.rows import CONVERSIONS
from rised.records.text import storable
from rised.records.types import (
    Gradient,
    JudgeAudit,
    JudgeReply,
    Metric,
    Reselection,
    Rollout,
    RubricBundle,
    Selection,
    SelectionAudit,
    Tag,
    Timing,
)

NAME_KEY = b"rised.schema"
VERSION_KEY = b"rised.schema_version"

Record = (
    Rollout
    | Tag
    | JudgeReply
    | Selection
    | Reselection
    | RubricBundle
    | Gradient
    | JudgeAudit
    | SelectionAudit
    | Metric
    | Timing
    | Mapping[str, Any]
)


def _field(name: str, kind: pa.DataType, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


def _list(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", item, nullable=False))


def _schema(name: str, version: int, fields: list[pa.Field]) -> pa.Schema:
    return pa.schema(fields, metadata={NAME_KEY: name.encode(), VERSION_KEY: str(version).encode()})


_TEXT, _INT, _BOOL, _REAL = pa.string(), pa.int64(), pa.bool_(), pa.float64()
_MESSAGE = pa.struct([_field("role", _TEXT), _field("content", _TEXT)])
_TURN = pa.struct(
    [
        _field("observation", _TEXT),
        _field("action_raw", _TEXT),
        _field("action_mapped", _TEXT),
        _field("action_valid", _BOOL),
        _field("action_start", pa.int32()),
        _field("action_end", pa.int32()),
        _field("truncated", _BOOL),
        _field("info", _TEXT),
    ]
)

SCHEMAS: dict[str, pa.Schema] = {
    "tasks": _schema(
        "tasks",
        2,
        [
            _field("environment", _TEXT),
            _field("split", _TEXT),
            _field("task_id", _TEXT),
            _field("seed", _INT),
            _field("payload", _TEXT),
            _field("content_hash", _TEXT),
            _field("row_hash", _TEXT),
        ],
    ),
    "rollouts": _schema(
        "rollouts",
        1,
        [
            _field("rollout_id", _TEXT),
            _field("run", _TEXT),
            _field("step", _INT),
            _field("weight_version", _INT),
            _field("split", _TEXT),
            _field("environment", _TEXT),
            _field("task_id", _TEXT),
            _field("group_id", _TEXT),
            _field("rollout_index", _INT),
            _field("seed", _INT),
            _field("system_prompt", _TEXT),
            _field("steering_rubrics", _list(_TEXT)),
            _field("steering_text", _TEXT),
            _field("steering_text_hash", _TEXT),
            _field("messages", _list(_MESSAGE)),
            _field("turns", _list(_TURN)),
            _field("final_observation", _TEXT),
            _field("token_ids", _list(pa.int32())),
            _field("policy_mask", _list(_BOOL)),
            _field("logprobs", _list(_REAL)),
            _field("turn_count", _INT),
            _field("token_count", _INT),
            _field("reward", _REAL, nullable=True),
            _field("reward_valid", _BOOL),
            _field("success", _BOOL, nullable=True),
            _field("stop_reason", _TEXT),
        ],
    ),
    "tags": _schema(
        "tags",
        1,
        [
            _field("rollout_id", _TEXT),
            _field("rubric_id", _TEXT),
            _field("state", _TEXT, nullable=True),
            _field("evidence_turn", pa.int32(), nullable=True),
            _field("judge", _TEXT),
            _field("status", _TEXT),
            _field("reason", _TEXT),
            _field("cached", _BOOL),
        ],
    ),
    "judge_replies": _schema(
        "judge_replies",
        1,
        [
            _field("rollout_id", _TEXT),
            _field("judge", _TEXT),
            _field("status", _TEXT),
            _field("reason", _TEXT),
            _field("reply", _TEXT),
            _field("finish_reason", _TEXT),
            _field("prompt_hash", _TEXT),
            _field("shortened", _BOOL),
            _field("prompt_tokens", _INT, nullable=True),
            _field("completion_tokens", _INT, nullable=True),
        ],
    ),
    "selections": _schema(
        "selections",
        1,
        [
            _field("step", _INT),
            _field("group_id", _TEXT),
            _field("environment", _TEXT),
            _field("selected", _BOOL),
            _field("order", pa.int32(), nullable=True),
            _field("similarity", _REAL, nullable=True),
            _field("redundancy", _REAL, nullable=True),
            _field("score", _REAL, nullable=True),
        ],
    ),
    "rubric_bundles": _schema(
        "rubric_bundles",
        1,
        [
            _field("step", _INT),
            *(_field(name, _TEXT) for name in ("group_id", "environment")),
            _field("index", pa.int32()),
            *(_field(name, _TEXT) for name in ("writer", "verifier", "status", "reason")),
            *(_field(name, _list(_TEXT)) for name in ("criteria", "rubric_ids", "rollout_ids")),
            _field("scores", _list(_list(_REAL))),
            _field("satisfaction", pa.list_(pa.field("element", _REAL))),
            _field("alignment", _REAL, nullable=True),
            _field("chosen", _BOOL),
            *(_field(name, _TEXT) for name in ("group_state", "reply", "verifier_reply")),
        ],
    ),
    "gradients": _schema(
        "gradients",
        1,
        [
            _field("step", _INT),
            _field("environment", _TEXT),
            _field("split", _TEXT),
            _field("signal", _TEXT),
            _field("layers", _TEXT),
            _field("dimension", _INT),
            _field("group_count", pa.int32()),
            _field("signal_group_count", pa.int32()),
            _field("rollout_count", pa.int32()),
            _field("norm", _REAL),
            _field("cosine", _REAL, nullable=True),
            _field("vector", _list(pa.float32())),
        ],
    ),
    "metrics": _schema(
        "metrics",
        1,
        [_field("step", _INT), _field("name", _TEXT), _field("value", _REAL, nullable=True), _field("unit", _TEXT)],
    ),
    "timings": _schema(
        "timings",
        1,
        [
            _field("step", _INT),
            _field("name", _TEXT),
            _field("value", _REAL),
            _field("unit", _TEXT),
            _field("subject", _TEXT),
        ],
    ),
}

SCHEMAS["tag_counts"] = _schema(
    "tag_counts",
    1,
    [
        _field("step", _INT),
        _field("environment", _TEXT),
        _field("rubric_id", _TEXT),
        _field("judge", _TEXT),
        _field("demonstrates", _INT),
        _field("violates", _INT),
        _field("absent", _INT),
        _field("error", _INT),
    ],
)
"""Training tags as counts of rollouts: what a compacted run keeps for the analysis beside the tags themselves."""
SCHEMAS["judge_audits"] = _schema(
    "judge_audits",
    1,
    [
        *(_field(name, _TEXT) for name in ("environment", "rubric_id", "state", "judge", "model", "detectors")),
        *(_field(name, _INT) for name in ("rollouts", "errors")),
        *(_field(name, _INT) for name in ("true_positives", "false_positives", "false_negatives", "true_negatives")),
        *(
            _field(f"{name}{bound}", _REAL, nullable=True)
            for name in ("precision", "recall", "kappa")
            for bound in ("", "_low", "_high")
        ),
    ],
)
SCHEMAS["selection_audits"] = _schema(
    "selection_audits",
    1,
    [
        _field("step", _INT),
        *(_field(name, _TEXT) for name in ("judge", "model", "rubrics")),
        *(_field(name, _INT) for name in ("groups", "selected")),
        *(_field(name, _REAL) for name in ("overlap", "chance_overlap")),
        _field("profile_cosine", _REAL, nullable=True),
        _field("untagged", _INT),
    ],
)

SCHEMAS["reselections"] = _schema(
    "reselections",
    1,
    [
        _field("step", _INT),
        *(_field(name, _TEXT) for name in ("selector", "tags", "judge")),
        *(field for field in SCHEMAS["selections"] if field.name != "step"),
    ],
)

_TEXTS = {"system_prompt", "steering_text", "messages", "turns", "final_observation"}
_BULKY = _TEXTS | {"token_ids", "policy_mask", "logprobs"}
SCHEMAS["episodes"] = _schema("episodes", 1, [field for field in SCHEMAS["rollouts"] if field.name not in _BULKY])
"""Rollouts without what was said: what the analysis reads, and what a compacted run keeps of them."""
_WORDS = {"reason", "criteria", "reply", "verifier_reply"}
SCHEMAS["bundle_scores"] = _schema(
    "bundle_scores", 1, [field for field in SCHEMAS["rubric_bundles"] if field.name not in _WORDS]
)
"""Rubric bundles without what models wrote, which may quote an environment: what a compacted run keeps of them."""

_EARLIER = {("tasks", "1"): SCHEMAS["tasks"].remove(SCHEMAS["tasks"].get_field_index("row_hash"))}
"""Name and version -> columns of earlier versions that are still read; rows of such tasks are not checked."""


def schema_of(name: str) -> pa.Schema:
    """The current schema of that name; :class:`RecordError` names the known ones."""
    try:
        return SCHEMAS[name]
    except KeyError:
        raise RecordError(f"unknown schema {name!r}: one of {', '.join(SCHEMAS)}") from None


def check_schema(found: pa.Schema, expected: str | None, source: str) -> str:
    """Return the schema's name, or say why ``source`` cannot be read as ``expected`` (None: as any of ours)."""
    metadata = found.metadata or {}
    if NAME_KEY not in metadata or VERSION_KEY not in metadata:
        raise RecordError(
            f"{source} is not a shard of this program: its schema has no {NAME_KEY.decode()!r} entry "
            f"(columns: {', '.join(found.names[:8]) or 'none'}). Check the path, "
            "or write it anew with the stage that makes it."
        )
    name, version = metadata[NAME_KEY].decode(errors="replace"), metadata[VERSION_KEY].decode(errors="replace")
    if expected is not None and name != expected:
        raise RecordError(f"{source} holds {name!r}, expected {expected!r}. Check the path.")
    current = _EARLIER.get((name, version), schema_of(name))
    wanted = schema_of(name).metadata[VERSION_KEY].decode()
    if version != wanted and (name, version) not in _EARLIER:
        raise RecordError(
            f"{source} has schema {name!r} version {version}, this code reads version {wanted}. "
            "Read it with the version of the code that wrote it, or run the stage that makes it again."
        )
    if not found.equals(current, check_metadata=False):
        raise RecordError(f"{source} claims schema {name!r} version {version}, but {_difference(found, current)}.")
    return name


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    missing = [name for name in wanted.names if name not in found.names]
    surplus = [name for name in found.names if name not in wanted.names]
    if missing or surplus:
        return f"columns are missing ({', '.join(missing) or 'none'}) or unknown ({', '.join(surplus) or 'none'})"
    for field in wanted:
        other = found.field(field.name)
        if other.type != field.type or other.nullable != field.nullable:
            return f"column {field.name!r} is {other.type}, expected {field.type}"
    return "its columns stand in another order"


def to_table(records: Sequence[Record], schema: str | None = None) -> pa.Table:
    """Table of records of one type. ``schema`` names the type where ``records`` is empty.

    Tasks are dictionaries with the fields ``TASK_FIELDS``; their payload is any JSON-serialisable dictionary.
    """
    if schema is None:
        schema = _schema_for(records)
    wanted = schema_of(schema)
    if schema not in CONVERSIONS:
        raise RecordError(f"tables of {schema!r} are made by compaction only")
    conversion = CONVERSIONS[schema]
    for record in records:
        if not isinstance(record, conversion.record_type):
            raise RecordError(f"a {type(record).__name__} cannot be stored among {schema}")
    rows = [conversion.to_row(record) for record in records]
    columns = []
    for field in wanted:
        try:
            columns.append(_column([row[field.name] for row in rows], field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise RecordError(f"column {field.name!r} of {schema} cannot be stored as {field.type}: {error}") from error
        if not field.nullable and columns[-1].null_count:
            raise RecordError(f"column {field.name!r} of {schema} is None in a record, but must have a value")
    return pa.Table.from_arrays(columns, schema=wanted)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """One lone surrogate must not cost a shard: texts that UTF-8 cannot hold are stored with U+FFFD in its place."""
    try:
        return pa.array(values, type=kind)
    except UnicodeEncodeError:
        return pa.array(storable(values), type=kind)


def _schema_for(records: Sequence[Record]) -> str:
    if not records:
        raise RecordError("no records given: name the schema, for example to_table([], 'tags')")
    for name, conversion in CONVERSIONS.items():
        if isinstance(records[0], conversion.record_type):
            return name
    raise RecordError(f"a {type(records[0]).__name__} is no record: see rised.records.types")


def from_table(table: pa.Table, source: str = "the table") -> list[Any]:
    """Records of a table with all columns of its schema; the schema's metadata says of which type.

    Raises :class:`RecordError` for a row that holds no such record, such as one with damaged JSON.
    """
    name = check_schema(table.schema, None, source)
    if name not in CONVERSIONS:
        raise RecordError(f"{source} holds {name!r}: a part of the columns, from which no record can be made")
    from_row = CONVERSIONS[name].from_row
    records = []
    for number, row in enumerate(table.to_pylist()):
        identity = next((row[key] for key in ("task_id", "rollout_id", "group_id", "name") if key in row), "")
        try:
            records.append(from_row(row))
        except (ValueError, TypeError) as error:
            raise RecordError(
                f"{source}, row {number} ({identity}) is damaged: {error}. "
                "Restore the file from a copy, or remove it and run the stage that writes it again."
            ) from error
    return records
