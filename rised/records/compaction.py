"""A finished run as one file per kind: small enough to publish, read by the same ``RunReader``.

Rows keep their order (by step). Rollouts keep only the columns of the schema ``episodes`` unless asked otherwise:
token ids, masks and texts are most of the bytes and no figure reads them. A judge model's raw replies are left out
with them. What the last update's rollouts said can be kept (``rollout_texts``): examples of rubrics and the report's
browser quote it. Tags are counted on the way (``tag_counts``), and where each step's rows stand is noted. Steps are
merged one at a time, so that memory does not grow with the run. Rubric bundles lose what models wrote, which may quote
an environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from rised.records.errors import RecordError
from rised.records.files import WrittenFile, write_bytes
from rised.records.layout import COMPACTED, CONFIG, DERIVED_KINDS, DONE, HEADER, KIND_SCHEMAS
from rised.records.manifests import ShardEntry, json_bytes
from rised.records.schemas import schema_of
from rised.records.shards import COMPACTED_FORMAT, COMPACTED_VERSION, RunReader, write_shard, write_stream
from rised.records.tag_counts import count_tags

WITHOUT_WORDS = {"rollouts": "episodes", "rubric_bundles": "bundle_scores"}
"""Schema -> the one with its columns but for the texts."""


def compact(
    run_dir: Path | str,
    out_dir: Path | str,
    kinds: Sequence[str] | None = None,
    full_rollouts: bool = False,
    last_texts: bool = False,
) -> list[ShardEntry]:
    """Merge a finished run's shards into ``out_dir/<kind>.parquet`` and a manifest with their hashes.

    ``kinds``: which ones (None: all that the run has; judges' raw replies only with ``full_rollouts``).
    ``last_texts``: keep the last update's rollouts whole beside the pruned ones, where the run has texts. Hashes of
    the source are checked on the way.
    """
    reader, target = RunReader(run_dir), Path(out_dir)
    if not reader.done:
        raise RecordError(f"{run_dir} has no {DONE}: only a finished run is compacted. Start it again to finish it.")
    if target.resolve() == reader.path.resolve():
        raise RecordError(f"{out_dir} is the run itself: compact into another folder")
    published = [kind for kind in KIND_SCHEMAS if full_rollouts or kind != "judge_replies"]
    wanted = [kind for kind in (published if kinds is None else kinds) if kind not in DERIVED_KINDS]
    present = [kind for kind in wanted if reader.shards(kind)]
    if kinds is not None and present != wanted:
        raise RecordError(f"{run_dir} has no {', '.join(k for k in wanted if k not in present)} to compact")
    step_rows: dict[str, list[tuple[int, int]]] = {}
    entries = [_merged(reader, kind, target, full_rollouts, step_rows) for kind in present]
    if {"tags", "rollouts"} <= set(present):
        counts = count_tags(reader)
        written = write_shard(target / "tag_counts.parquet", counts)
        entries.append(_entry(written, "tag_counts", counts.num_rows))
    if last_texts and not full_rollouts and "turns" in reader.columns("rollouts"):
        last = max(step for step, rows in _rows_by_step(reader, "rollouts") if rows)
        texts = reader.scan("rollouts", steps=[last])
        entries.append(_entry(write_shard(target / "rollout_texts.parquet", texts), "rollout_texts", texts.num_rows))
    for name in (CONFIG, HEADER, DONE):
        if (reader.path / name).exists():
            write_bytes(target / name, (reader.path / name).read_bytes())
    document = {
        "format": COMPACTED_FORMAT,
        "version": COMPACTED_VERSION,
        "steps": reader.steps(),
        "shards": [asdict(entry) for entry in sorted(entries, key=lambda entry: entry.path)],
        "step_rows": step_rows or reader.step_rows,
    }
    write_bytes(target / COMPACTED, json_bytes(document, COMPACTED))
    return entries


def _merged(
    reader: RunReader, kind: str, target: Path, full_rollouts: bool, step_rows: dict[str, list[tuple[int, int]]]
) -> ShardEntry:
    """One kind's shards as one file, a step at a time: the whole may not fit in memory. Notes in ``step_rows`` how
    many rows each step has there."""
    name = _schema_name(kind, full_rollouts)
    schema = schema_of(name)

    def tables() -> Iterator[pa.Table]:
        for step in [None] if reader.compacted else reader.steps():
            steps = None if step is None else [step]
            table = reader.scan(kind, columns=list(schema.names), steps=steps)
            if step is not None and table.num_rows:
                step_rows.setdefault(kind, []).append((step, table.num_rows))
            yield pa.Table.from_arrays(table.columns, schema=schema)

    # Merging repeats nothing and compresses better: the sources' size is the most that it takes.
    size = sum(shard.byte_count for shard in reader.shards(kind)) + (1 << 16)
    written, rows = write_stream(target / f"{kind}.parquet", name, tables(), size)
    return _entry(written, kind, rows)


def _rows_by_step(reader: RunReader, kind: str) -> list[tuple[int, int]]:
    """Steps and how many rows of a kind they have."""
    if reader.compacted:
        steps = reader.scan(kind, ["step"])["step"].value_counts().to_pylist()
        return [(pair["values"], pair["counts"]) for pair in steps]
    return [(step, sum(shard.row_count for shard in reader.shards(kind, [step]))) for step in reader.steps()]


def _entry(written: WrittenFile, kind: str, rows: int) -> ShardEntry:
    return ShardEntry(written.path.name, written.byte_count, written.sha256, kind, rows)


def _schema_name(kind: str, full_rollouts: bool) -> str:
    schema = KIND_SCHEMAS[kind]
    return schema if full_rollouts else WITHOUT_WORDS.get(schema, schema)
