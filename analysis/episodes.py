"""Checks of a run's stored episodes before anything is counted in them: whose they are, and what their numbers are.

A shard may come from elsewhere, or from another run's folder. An episode that is there twice, belongs to another run
or step, or has a reward that is not a number is refused with its rollout and its file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from analysis import AnalysisError
from analysis.runs import Run

_RUN = re.compile(r"[^/]+/[^/]+/seed-\d+")
_ID = r"^(?:train|validation)-(?P<step>\d{6,})-"
"""How the collector begins a rollout's id."""
SHOWN = 3


def check_episodes(run: Run, kind: str, table: pa.Table) -> None:
    """Raise AnalysisError for episodes of ``kind`` (columns rollout_id, run, step, reward, reward_valid) that are
    repeated, of another run or step, or whose reward and ``reward_valid`` contradict each other."""
    if not table.num_rows:
        return
    _refuse(run, kind, table, _repeated(table), "are there twice: a step was written again or shards were copied in")
    wrong = [name for name in pc.unique(table["run"]).to_pylist() if _RUN.fullmatch(name) and name != run.name]
    if wrong:
        found = pc.is_in(table["run"], pa.array(wrong, pa.string()))
        _refuse(run, kind, table, found, f"belong to {', '.join(wrong)}, not to {run.name}: shards were copied in")
    written = pc.struct_field(pc.extract_regex(table["rollout_id"], _ID), "step")
    known = pc.is_valid(written)
    step = pc.cast(pc.if_else(known, written, "0"), pa.int64())
    other = pc.and_(known, pc.not_equal(step, table["step"]))
    _refuse(run, kind, table, other, "name another step than the one that they are stored under")
    absent = pc.is_null(table["reward"], nan_is_null=True)
    _refuse(
        run, kind, table, pc.equal(table["reward_valid"], absent), "have a reward that contradicts their reward_valid"
    )


def _repeated(table: pa.Table) -> pa.ChunkedArray | None:
    """Which rows have a rollout_id that comes more than once; None where there is none."""
    if pc.count_distinct(table["rollout_id"]).as_py() == table.num_rows:
        return None
    counts = table.group_by("rollout_id").aggregate([([], "count_all")])
    twice = counts.filter(pc.greater(counts["count_all"], 1))["rollout_id"].combine_chunks()
    return pc.is_in(table["rollout_id"], value_set=twice)


def _refuse(run: Run, kind: str, table: pa.Table, found: pa.ChunkedArray | None, what: str) -> None:
    rows = table.slice(0, 0) if found is None else table.filter(found)
    if rows.num_rows:
        ids = ", ".join(pc.unique(rows["rollout_id"]).to_pylist()[:SHOWN])
        files = ", ".join(_files(run, kind, sorted(set(rows["step"].to_pylist()))))
        raise AnalysisError(
            f"{run.path}: {rows.num_rows:,} {kind} episodes {what} ({ids}; in {files}). Restore the run from a copy, "
            "or leave it out."
        )


def _files(run: Run, kind: str, steps: Sequence[int]) -> list[str]:
    committed = [step for step in run.reader.steps() if step in steps]
    names = [shard.path for shard in run.reader.shards(kind, committed or None)]
    return names[:SHOWN] + (["…"] if len(names) > SHOWN else [])
