"""Tags counted per step, environment and rubric: the form in which the analysis reads 60 million tags in a second.

A finished run's tags are counted once, at compaction, and stored as the kind ``tag_counts``; of a run that is not
compacted they are counted from its shards, one after the other, in the dictionary codes that Parquet stores. A verdict
that failed is counted as ``error`` and never as a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rised.records.errors import RecordError
from rised.records.manifests import ShardEntry
from rised.records.schemas import schema_of
from rised.records.shards import RunReader, check_file, read_shard, unreadable
from rised.records.types import TagState

OUTCOMES = (*(state.value for state in TagState), "error")
"""Columns of counts: the three states, and everything that is no verdict."""

Cell = tuple[int, str]
"""Step and environment."""


def read_tag_counts(reader: RunReader, judge: str | None = None) -> pa.Table:
    """Training tags as counts of rollouts, rows ordered by judge, step, environment and rubric; ``judge``: of one.

    Raises :class:`RecordError` for tags of rollouts that the run does not hold: their step is unknown.
    """
    if reader.compacted and reader.shards("tag_counts"):
        return reader.scan("tag_counts", judge=judge)
    return count_tags(reader, judge)


def count_tags(reader: RunReader, judge: str | None = None) -> pa.Table:
    """The same, from the tags themselves."""
    with ThreadPoolExecutor(pa.cpu_count()) as threads:
        parts = [part for found in threads.map(_counted, *_work(reader, judge)) for part in found]
    schema = schema_of("tag_counts")
    if not parts:
        return schema.empty_table()
    keys = ["judge", "step", "environment", "rubric_id"]
    whole = pa.concat_tables(parts).group_by(keys).aggregate([(outcome, "sum") for outcome in OUTCOMES])
    whole = whole.rename_columns([*keys, *OUTCOMES]).sort_by([(key, "ascending") for key in keys])
    if judge is not None:
        whole = whole.filter(pc.equal(whole["judge"], judge))
    return whole.select(schema.names).cast(schema)


def _work(reader: RunReader, judge: str | None) -> tuple[list[_Source], list[ShardEntry]]:
    """Shards of tags, each with where the step and environment of the rollouts that it speaks of stand."""
    if reader.compacted:
        shards = reader.shards("tags")
        return [_Source(reader, reader.shards("rollouts"))] * len(shards), shards
    found = [(shard, step) for step in reader.steps() for shard in reader.shards("tags", [step], judge)]
    sources = [_Source(reader, reader.shards("rollouts", [step])) for _, step in found]
    return sources, [shard for shard, _ in found]


@dataclass(frozen=True, slots=True)
class _Source:
    """A run and the shards of rollouts that some of its tags speak of."""

    reader: RunReader
    rollouts: Sequence[ShardEntry]

    def cells(self) -> dict[str, Cell]:
        """Rollout id -> step and environment."""
        found: dict[str, Cell] = {}
        for shard in self.rollouts:
            schema = None if self.reader.compacted else "rollouts"
            table = read_shard(self.reader.checked_path(shard), schema, ["rollout_id", "step", "environment"])
            columns = [table[name].to_pylist() for name in ("rollout_id", "step", "environment")]
            found |= {rollout: (step, environment) for rollout, step, environment in zip(*columns, strict=True)}
        return found


def _counted(source: _Source, shard: ShardEntry) -> list[pa.Table]:
    """Counts of one shard, a table for each of its row groups."""
    path = source.reader.checked_path(shard)
    check_file(path, "tags")
    columns = ["rollout_id", "rubric_id", "state", *(["judge"] if shard.judge is None else [])]
    try:
        with pq.ParquetFile(path, read_dictionary=columns) as file:
            groups = (file.read_row_group(i, columns=columns) for i in range(file.num_row_groups))
            cells = source.cells()
            return [_counted_group(group, shard.judge, cells, path) for group in groups if group.num_rows]
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from error


def _counted_group(table: pa.Table, judge: str | None, cells: Mapping[str, Cell], path: Path) -> pa.Table:
    """Counts of some rows, from their dictionary codes."""
    rollouts, rollout_N = _codes(table["rollout_id"])
    unknown = next((rollout for rollout in rollouts if rollout not in cells), None)
    if unknown is not None:
        raise RecordError(
            f"{path}: a tag of rollout {unknown!r}, which the run does not hold, so that its step is unknown. "
            "Compact the run with its rollouts."
        )
    rubrics, rubric_N = _codes(table["rubric_id"])
    states, state_N = _codes(table["state"])
    judges, judge_N = ([judge], None) if judge is not None else _codes(table["judge"])
    found = sorted({cells[rollout] for rollout in rollouts})
    place = {cell: i for i, cell in enumerate(found)}
    shape = (len(judges), len(found), len(rubrics), len(OUTCOMES))
    stride_of_cell = shape[2] * shape[3]
    flat_N = np.array([place[cells[rollout]] * stride_of_cell for rollout in rollouts])[rollout_N]
    flat_N += np.arange(len(rubrics))[rubric_N] * shape[3]
    # A tag without a state is one that failed (the code after the last state).
    flat_N += np.array([OUTCOMES.index(state) for state in states] + [OUTCOMES.index("error")])[state_N]
    if judge_N is not None:
        flat_N += judge_N * (shape[1] * stride_of_cell)
    counts_JCRO = np.bincount(flat_N, minlength=int(np.prod(shape))).reshape(shape)
    j_K, c_K, r_K = np.nonzero(counts_JCRO.sum(axis=3))
    counts_KO = counts_JCRO[j_K, c_K, r_K]
    columns = {
        "step": np.array([step for step, _ in found])[c_K],
        "environment": pa.array([environment for _, environment in found]).take(pa.array(c_K)),
        "rubric_id": pa.array(rubrics).take(pa.array(r_K)),
        "judge": pa.array(judges).take(pa.array(j_K)),
        **{outcome: counts_KO[:, o] for o, outcome in enumerate(OUTCOMES)},
    }
    return pa.table(columns)


def _codes(column: pa.ChunkedArray) -> tuple[Sequence[str], np.ndarray]:
    """A dictionary column as (values, codes); null has the code after the last value."""
    chunks = column.unify_dictionaries().chunks
    values = chunks[0].dictionary.to_pylist()
    codes = [chunk.indices.fill_null(len(values)).to_numpy(zero_copy_only=False) for chunk in chunks]
    return values, codes[0] if len(codes) == 1 else np.concatenate(codes)
