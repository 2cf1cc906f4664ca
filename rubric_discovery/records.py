"""What the steps hand to each other, and how it becomes Parquet.

One frozen dataclass per table; its fields are the table's columns, and the file's metadata names table and version.
Rollouts and tags keep their own schemas (``rised.records``).
"""

from __future__ import annotations

import dataclasses
import io
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from rised.records.checksum import check_checksum, with_checksum
from rised.records.errors import RecordError
from rised.records.files import write_bytes
from rubric_discovery.errors import DiscoveryError

TABLE_KEY, VERSION_KEY = b"rised.discovery", b"rised.discovery_version"
VERSION = b"1"
_KINDS = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


@dataclass(frozen=True, slots=True)
class Pair:
    """A success and a failure of one task; the ids are those of sampled rollouts."""

    pair_id: str
    environment: str
    task_id: str
    success_id: str
    failure_id: str


@dataclass(frozen=True, slots=True)
class Observation:
    """One behaviour that the model named in one pair. ``status``: ok, or why the evidence does not hold."""

    observation_id: str
    pair_id: str
    environment: str
    rollout_id: str
    turn: int
    behaviour: str
    polarity: str
    quote: str
    status: str
    model: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A behaviour in the vocabulary's form, from observations of one environment."""

    candidate_id: str
    rubric_id: str
    definition: str
    polarity: str
    positive_example: str
    negative_example: str
    environments: tuple[str, ...]
    observation_ids: tuple[str, ...]
    model: str


@dataclass(frozen=True, slots=True)
class Member:
    """Where a candidate went. ``similarity``: its cosine with the candidate that represents the merged one."""

    candidate_id: str
    rubric_id: str
    merged_id: str
    similarity: float
    embedding: str


@dataclass(frozen=True, slots=True)
class Screened:
    """A merged candidate before the screens. ``dropped_by`` is empty exactly when it is kept; ``reason`` says why.

    ``prevalence``: share of the ``tagged`` rollouts (valid in both passes) that show it in the first pass. ``kappa``
    and ``outcome_correlation`` are None where they are undefined. ``tag_errors``: rollouts without a valid tag.
    """

    rubric_id: str
    environments: tuple[str, ...]
    tagged: int
    tag_errors: int
    prevalence: float | None
    kappa: float | None
    outcome_correlation: float | None
    leaked: str
    dropped_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reply:
    """One request to a model and what came of it. ``text`` is the last attempt's, as it came."""

    step: str
    subject: str
    model: str
    request_hash: str
    status: str
    reason: str
    text: str
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None


Row = TypeVar("Row")


def schema_of(row_type: type) -> pa.Schema:
    """The table's schema, from the dataclass."""
    hints = get_type_hints(row_type)
    fields = [_field(field.name, hints[field.name]) for field in dataclasses.fields(row_type)]
    return pa.schema(fields, metadata={TABLE_KEY: row_type.__name__.encode(), VERSION_KEY: VERSION})


def _field(name: str, annotation: Any) -> pa.Field:
    nullable = get_origin(annotation) is types.UnionType
    kind = next(member for member in get_args(annotation) if member is not type(None)) if nullable else annotation
    if get_origin(kind) is tuple:
        return pa.field(name, pa.list_(pa.field("element", _KINDS[get_args(kind)[0]], nullable=False)), nullable=False)
    return pa.field(name, _KINDS[kind], nullable=nullable)


def write_rows(path: Path, row_type: type[Row], rows: Sequence[Row]) -> None:
    """Write a table atomically; equal rows give equal bytes."""
    schema = schema_of(row_type)
    names = schema.names
    columns = [[getattr(row, name) for row in rows] for name in names]
    table = pa.Table.from_arrays(
        [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", store_schema=True)
    write_bytes(path, with_checksum(sink.getvalue()))


def read_rows(path: Path, row_type: type[Row]) -> list[Row]:
    """The rows of a table; DiscoveryError if the file is missing, damaged or another table."""
    wanted = schema_of(row_type)
    try:
        check_checksum(path)
        table = pq.read_table(path, partitioning=None)
    except FileNotFoundError:
        raise DiscoveryError(f"{path} does not exist: run the step that writes it") from None
    except RecordError as error:
        raise DiscoveryError(str(error)) from None
    except (pa.ArrowException, OSError) as error:
        raise DiscoveryError(f"{path} cannot be read: {error}. Remove it and run its step again") from None
    if not table.schema.equals(wanted, check_metadata=False) or (table.schema.metadata or {}).get(
        TABLE_KEY
    ) != wanted.metadata.get(TABLE_KEY):
        raise DiscoveryError(f"{path} is no table of {row_type.__name__} rows of this version; run its step again")
    made = []
    for row in table.to_pylist():
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
        made.append(row_type(**values))
    return made
