"""Parquet shards: written atomically, read with their schema checked, scanned over the steps of a run.

The reader follows manifests and so never sees a step in the making. Who writes which shard, and when a step counts
as done, is in ``commit``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from rised.records.checksum import add_checksum, check_checksum, with_checksum
from rised.records.errors import RecordError
from rised.records.files import WrittenFile, write_bytes, write_file
from rised.records.finite import refuse_non_finite
from rised.records.layout import COMPACTED, CONFIG, DONE, HEADER, KIND_SCHEMAS
from rised.records.manifests import (
    Manifest,
    ShardEntry,
    committed_steps,
    manifest_path,
    read_json,
    read_manifest,
    verify,
)
from rised.records.schemas import check_schema, schema_of

COMPACTED_FORMAT = "rised.compacted"
COMPACTED_VERSION = 1
ROW_GROUP = 1 << 17
"""Rows of a row group: what is read at least, and what its statistics leave out."""

_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What Arrow raises for a damaged file."""

_REAL_LISTS = {"rollouts": ["logprobs.list.element"], "gradients": ["vector.list.element"]}
"""Columns of real numbers without repetition, split by bytes. Log-probabilities are float32 numbers kept as float64:
their zero halves compress to nothing."""


def encode(table: pa.Table) -> bytes:
    """Parquet bytes, with checksum, of a table with one of our schemas; equal tables give equal bytes."""
    sink = pa.BufferOutputStream()
    _write(sink, table.schema, [table.combine_chunks()])
    return with_checksum(memoryview(sink.getvalue()))


def _write(sink: Any, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Write tables of one schema after each other, in row groups of ``ROW_GROUP`` rows; returns the number of rows."""
    name = check_schema(schema, None, "the table to write")
    split = _REAL_LISTS.get(name, [])
    numbers = {"seed", "token_ids.list.element", *split}
    row_count, waiting = 0, schema.empty_table()
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=[leaf for leaf in _leaves(schema) if leaf not in numbers],
        column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT") or None,
        store_schema=True,
    ) as writer:
        for table in tables:
            row_count += table.num_rows
            waiting = pa.concat_tables([waiting, table])
            full = waiting.num_rows - waiting.num_rows % ROW_GROUP
            if full:
                writer.write_table(waiting.slice(0, full), row_group_size=ROW_GROUP)
                waiting = waiting.slice(full)
        if waiting.num_rows or not row_count:
            writer.write_table(waiting, row_group_size=ROW_GROUP)
    return row_count


def write_stream(path: Path | str, schema: str, tables: Iterable[pa.Table], byte_count: int) -> tuple[WrittenFile, int]:
    """Write tables after each other into one shard, atomically and without holding them all; file and row count.

    ``byte_count``: the most that it may take, checked against the free space.
    """
    target, rows = Path(path), 0

    def write(temporary: Path) -> None:
        nonlocal rows
        rows = _write(str(temporary), schema_of(schema), tables)
        add_checksum(temporary)

    return write_file(target, write, byte_count), rows


def _leaves(schema: pa.Schema) -> list[str]:
    """Parquet paths of all leaf columns."""

    def walk(path: str, kind: pa.DataType) -> Iterable[str]:
        if pa.types.is_list(kind):
            yield from walk(f"{path}.list.element", kind.value_type)
        elif pa.types.is_struct(kind):
            for field in kind:
                yield from walk(f"{path}.{field.name}", field.type)
        else:
            yield path

    return [leaf for field in schema for leaf in walk(field.name, field.type)]


def write_shard(path: Path | str, table: pa.Table) -> WrittenFile:
    """Write a table atomically and return size and hash; see :func:`rised.records.files.write_bytes` for errors."""
    return write_bytes(Path(path), encode(table))


def read_shard(path: Path | str, schema: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one shard. ``schema`` is the name it must have (None: any of ours), ``columns`` a subset to read.

    Its checksum is checked where it has one.
    """
    path = Path(path)
    try:
        if path.exists():
            check_checksum(path)
        _check_columns(check_file(path, schema), columns)
        table = pq.ParquetFile(path).read(columns=None if columns is None else list(columns))
    except _UNREADABLE as error:
        raise unreadable(path, error) from error
    return refuse_non_finite(table, [path])


def check_file(path: Path, schema: str | None) -> str:
    """Check a shard's footer and schema without reading its data; returns the schema's name."""
    try:
        found = pq.read_schema(path)
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist. Run the stage that writes it, or check the path.") from None
    except _UNREADABLE as error:
        raise unreadable(path, error) from error
    return check_schema(found, schema, str(path))


def unreadable(path: Path | str, error: Exception) -> RecordError:
    """The error for a file that Arrow cannot read."""
    return RecordError(
        f"{path} cannot be read as Parquet: {' '.join(str(error).split())[:200]}. It is truncated or not a shard; "
        "restore it from a copy, or remove it and run the stage that writes it again."
    )


def _file_state(path: Path) -> tuple[int, int] | None:
    """Time of the last change and size; None if the file is missing."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


def _check_columns(schema: str, columns: Sequence[str] | None) -> None:
    known = schema_of(schema).names
    unknown = [name for name in columns or () if name not in known]
    if unknown:
        raise RecordError(f"{schema} have no column {', '.join(map(repr, unknown))}; there are {', '.join(known)}")


def _check_filter(kind: str, schema: pa.Schema, filter: ds.Expression | None) -> None:
    """RecordError for a filter that does not fit the columns, which is no fault of a file."""
    if filter is None:
        return
    try:
        ds.dataset(schema.empty_table()).to_table(filter=filter)
    except (pa.ArrowException, TypeError) as error:
        shown, reason = (" ".join(str(part).split())[:200] for part in (filter, error))
        raise RecordError(
            f"the filter {shown} does not fit the columns of {kind}: {reason}. An empty list of values needs a type: "
            "isin(pa.array([], pa.string()))."
        ) from None


class RunReader:
    """Reads the committed steps of a run directory, or of its compacted form (one file per kind).

    Every shard is read against the SHA-256 in its manifest, once for as long as the file stays unchanged.
    """

    def __init__(self, run_dir: Path | str) -> None:
        self.path = Path(run_dir)
        if not self.path.is_dir():
            raise RecordError(f"there is no run directory {self.path}")
        self._manifests: dict[int, Manifest] = {}
        self._checked: dict[str, tuple[int, int]] = {}
        compacted = self.path / COMPACTED
        self._compacted: dict[str, Any] | None = None
        if compacted.exists():
            self._compacted = read_json(compacted, COMPACTED_FORMAT, COMPACTED_VERSION)

    @property
    def compacted(self) -> bool:
        """Whether this is a run's compacted form."""
        return self._compacted is not None

    @property
    def done(self) -> bool:
        """Whether the run was finished."""
        return (self.path / DONE).exists()

    def header(self) -> dict[str, Any]:
        """The run's ``manifest.json``: versions and hashes that its stage recorded."""
        return read_json(self.path / HEADER, "rised.run", 1)

    def config_text(self) -> str:
        """The resolved configuration as it was saved with the run."""
        try:
            return (self.path / CONFIG).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise RecordError(f"{self.path} has no {CONFIG}: it is not a run directory, or was never started") from None

    def steps(self) -> list[int]:
        """Committed steps in ascending order."""
        if self._compacted is not None:
            return list(self._compacted["steps"])
        return committed_steps(self.path)

    @property
    def step_rows(self) -> dict[str, list[tuple[int, int]]]:
        """Of a compacted run: kind -> steps and how many rows each has in the kind's file, in the file's order. Empty
        where the run's compaction did not note it."""
        noted = {} if self._compacted is None else self._compacted.get("step_rows", {})
        return {kind: [(int(step), int(rows)) for step, rows in pairs] for kind, pairs in noted.items()}

    def manifest(self, step: int) -> Manifest:
        """Manifest of a committed step (not of a compacted run, which has one for all)."""
        if step not in self._manifests:
            self._manifests[step] = read_manifest(manifest_path(self.path, step))
        return self._manifests[step]

    def shards(self, kind: str, steps: Iterable[int] | None = None, judge: str | None = None) -> list[ShardEntry]:
        """Shards of one kind in the order of steps."""
        if kind not in KIND_SCHEMAS:
            raise RecordError(f"unknown kind of record {kind!r}: one of {', '.join(KIND_SCHEMAS)}")
        if self._compacted is not None:
            return [ShardEntry(**entry) for entry in self._compacted["shards"] if entry["kind"] == kind]
        chosen = self.steps() if steps is None else sorted(set(steps))
        found = [shard for step in chosen for shard in self.manifest(step).shards_of(kind)]
        return [shard for shard in found if judge is None or shard.judge == judge]

    def checked_path(self, shard: ShardEntry) -> Path:
        """Path of a shard whose content is that of the manifest; :class:`RecordError` where it is not."""
        path = self.path / shard.path
        state = _file_state(path)
        if state is None or self._checked.get(shard.path) != state:
            verify(self.path, shard, COMPACTED if self.compacted else "the manifest")
            if state is not None:
                self._checked[shard.path] = state
        return path

    def kinds(self) -> list[str]:
        """Kinds of which the run has shards."""
        return [kind for kind in KIND_SCHEMAS if self.shards(kind)]

    def columns(self, kind: str) -> list[str]:
        """Columns that the run keeps of a kind: a compacted run may lack texts and tokens; none where it has no such
        records."""
        shards = self.shards(kind)
        return list(schema_of(check_file(self.path / shards[0].path, None)).names) if shards else []

    def scan(
        self,
        kind: str,
        columns: Sequence[str] | None = None,
        filter: ds.Expression | None = None,
        *,
        steps: Iterable[int] | None = None,
        judge: str | None = None,
    ) -> pa.Table:
        """All rows of one kind, in the order of steps; an empty table where the run has none.

        ``filter`` is a ``pyarrow.compute`` expression over any column. ``steps`` and ``judge`` leave out shards
        before they are opened; in a compacted run they become filters, or the row groups that hold the steps.
        """
        schema = KIND_SCHEMAS.get(kind, "")
        chosen = None if steps is None else sorted(set(steps))
        shards = self.shards(kind, chosen, judge)
        _check_columns(schema, columns)
        with ThreadPoolExecutor(pa.cpu_count()) as threads:
            checked = list(threads.map(self.checked_path, shards))
        for path in checked:
            stored = check_file(path, None if self._compacted is not None else schema)
        if self._compacted is not None:
            schema = stored if shards else schema
            self._check_kept(kind, schema, columns)
            if shards and chosen is not None and "step" not in schema_of(schema).names:
                return self._scan_rows(kind, path, chosen, columns, self._narrow(schema, filter, None, judge))
            filter = self._narrow(schema, filter, chosen, judge)
        wanted = schema_of(schema)
        _check_filter(kind, wanted, filter)
        paths = [str(self.path / shard.path) for shard in shards]
        if not paths:
            return wanted.empty_table().select(list(columns) if columns is not None else wanted.names)
        try:
            dataset = ds.dataset(paths, schema=wanted, format="parquet")
            found = dataset.to_table(columns=None if columns is None else list(columns), filter=filter)
        except _UNREADABLE as error:
            raise unreadable(f"a {kind} shard below {self.path}", error) from error
        return refuse_non_finite(found, paths)

    def _scan_rows(
        self, kind: str, path: Path, steps: Sequence[int], columns: Sequence[str] | None, filter: ds.Expression | None
    ) -> pa.Table:
        """Rows of some steps in a file that has no column for the step, from the row groups that hold them."""
        if kind not in self.step_rows:
            raise RecordError(
                f"{path} does not note which rows are whose step: compact the run again, or read all and join them on "
                "rollout_id"
            )
        spans, start = [], 0
        for step, rows in self.step_rows[kind]:
            if step in steps:
                spans.append((start, start + rows))
            start += rows
        try:
            with pq.ParquetFile(path) as file:
                parts, first = [file.schema_arrow.empty_table()], 0
                for i in range(file.num_row_groups):
                    last = first + file.metadata.row_group(i).num_rows
                    inside = [(max(a, first) - first, min(b, last) - first) for a, b in spans if a < last and b > first]
                    group = file.read_row_group(i) if inside else None
                    parts += [group.slice(a, b - a) for a, b in inside] if group is not None else []
                    first = last
        except _UNREADABLE as error:
            raise unreadable(path, error) from error
        _check_filter(kind, parts[0].schema, filter)
        found = ds.dataset(pa.concat_tables(parts))
        kept = found.to_table(columns=None if columns is None else list(columns), filter=filter)
        return refuse_non_finite(kept, [path])

    @staticmethod
    def _check_kept(kind: str, stored: str, columns: Sequence[str] | None) -> None:
        left_out = [name for name in columns or () if name not in schema_of(stored).names]
        if left_out:
            raise RecordError(f"this compacted run keeps no {', '.join(left_out)} of its {kind}; the full run has them")

    @staticmethod
    def _narrow(
        schema: str, filter: ds.Expression | None, steps: Sequence[int] | None, judge: str | None
    ) -> ds.Expression | None:
        if steps is not None:
            chosen = ds.field("step").isin(list(steps))
            filter = chosen if filter is None else filter & chosen
        if judge is not None and "judge" in schema_of(schema).names:
            same = ds.field("judge") == judge
            filter = same if filter is None else filter & same
        return filter

    def metrics(self) -> pa.Table:
        """All metrics: columns step, name, value, unit."""
        return self.scan("metrics")
