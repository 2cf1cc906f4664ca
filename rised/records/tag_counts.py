"""Tags counted per step, environment and rubric: the form in which the analysis reads 60 million tags in a second.

A finished run's tags are counted once, at compaction, and stored as the kind ``tag_counts``; of a run that is not
compacted they are counted from its shards, one after the other, in the dictionary codes that Parquet stores. A verdict
that failed is counted as ``error`` and never as a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rised.records.errors import RecordError
from rised.records.manifests import ShardEntry, check_size
from rised.records.schemas import schema_of
from rised.records.shards import RunReader, check_file, unreadable
from rised.records.types import TagState, TagStatus

OUTCOMES = (*(state.value for state in TagState), "error")
"""Columns of counts: the three states, and everything that is no verdict."""
_COLUMNS = ["rollout_id", "rubric_id", "state", "judge", "status"]

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
    counts: dict[str, dict[Cell, dict[str, np.ndarray]]] = {}
    for shard, cells in _shards_with_cells(reader, judge):
        for name, cell, rubric, counts_O in _counted(reader.path, shard, cells):
            if judge is None or name == judge:
                rubrics = counts.setdefault(name, {}).setdefault(cell, {})
                rubrics[rubric] = rubrics.get(rubric, np.zeros(len(OUTCOMES), dtype=np.int64)) + counts_O
    rows = [
        (step, environment, rubric, name, *map(int, by_rubric[rubric]))
        for name in sorted(counts)
        for (step, environment), by_rubric in sorted(counts[name].items())
        for rubric in sorted(by_rubric)
    ]
    schema = schema_of("tag_counts")
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _shards_with_cells(reader: RunReader, judge: str | None) -> Iterator[tuple[ShardEntry, Mapping[str, Cell]]]:
    """Shards of tags, each with the step and environment of every rollout that it may speak of."""
    columns = ["rollout_id", "step", "environment"]
    if reader.compacted:
        shards = reader.shards("tags")
        cells = _cells(reader.scan("rollouts", columns)) if shards else {}
        yield from ((shard, cells) for shard in shards)
        return
    for step in reader.steps():
        shards = reader.shards("tags", [step], judge)
        if shards:
            cells = _cells(reader.scan("rollouts", columns, steps=[step]))
            yield from ((shard, cells) for shard in shards)


def _cells(rollouts: pa.Table) -> dict[str, Cell]:
    columns = [rollouts[name].to_pylist() for name in ("rollout_id", "step", "environment")]
    return {rollout: (step, environment) for rollout, step, environment in zip(*columns, strict=True)}


def _counted(
    run: Path, shard: ShardEntry, cells: Mapping[str, Cell]
) -> Iterator[tuple[str, Cell, str, np.ndarray]]:
    """Judge, cell, rubric and counts (O,) of one shard, a part for each of its row groups."""
    path = check_size(run, shard, "the manifest")
    check_file(path, "tags")
    try:
        file = pq.ParquetFile(path, read_dictionary=_COLUMNS)
        groups = (file.read_row_group(i, columns=_COLUMNS) for i in range(file.num_row_groups))
        for group in groups:
            yield from _counted_group(group, cells, path)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from error


def _counted_group(table: pa.Table, cells: Mapping[str, Cell], path: Path) -> Iterator[tuple[str, Cell, str, np.ndarray]]:
    rollouts, rollout_N = _codes(table["rollout_id"])
    unknown = next((rollout for rollout in rollouts if rollout not in cells), None)
    if unknown is not None:
        raise RecordError(
            f"{path}: a tag of rollout {unknown!r}, which the run does not hold, so that its step is unknown. "
            "Compact the run with its rollouts."
        )
    rubrics, rubric_N = _codes(table["rubric_id"])
    judges, judge_N = _codes(table["judge"])
    found = sorted({cells[rollout] for rollout in rollouts})
    place = {cell: i for i, cell in enumerate(found)}
    cell_N = np.array([place[cells[rollout]] for rollout in rollouts], dtype=np.int64)[rollout_N]
    shape = (len(judges), len(found), len(rubrics), len(OUTCOMES))
    flat_N = ((judge_N * shape[1] + cell_N) * shape[2] + rubric_N) * shape[3] + _outcomes(table)
    counts_JCRO = np.bincount(flat_N, minlength=int(np.prod(shape))).reshape(shape)
    for j, c, r in zip(*np.nonzero(counts_JCRO.sum(axis=3)), strict=True):
        yield judges[j], found[c], rubrics[r], counts_JCRO[j, c, r]


def _outcomes(table: pa.Table) -> np.ndarray:
    """Index into ``OUTCOMES`` of every tag, shape (N,)."""
    statuses, status_N = _codes(table["status"])
    states, state_N = _codes(table["state"])
    error = OUTCOMES.index("error")
    known = np.array([OUTCOMES.index(state) if state in OUTCOMES else error for state in states] + [error])
    fine = np.array([status == TagStatus.OK for status in statuses] + [False])
    return np.where(fine[status_N], known[state_N], error)


def _codes(column: pa.ChunkedArray) -> tuple[Sequence[str], np.ndarray]:
    """A dictionary column as (values, codes); null has the code after the last value."""
    whole = column.unify_dictionaries().combine_chunks()
    chunks: Iterable[pa.Array] = whole.chunks if isinstance(whole, pa.ChunkedArray) else [whole]
    arrays = list(chunks)
    if not arrays:
        return [], np.empty(0, dtype=np.int64)
    values = arrays[0].dictionary.to_pylist()
    codes = [array.indices.fill_null(len(values)).to_numpy(zero_copy_only=False) for array in arrays]
    return values, np.concatenate(codes).astype(np.int64)
