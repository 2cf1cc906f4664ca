"""Where the seconds of a step went: the columns of the paper's Table 9, and what stands beside them.

A step's seconds run from its begin to its last decision, with those in which its episodes were waited for before. What
follows (validation, saving) is not part of them.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping

from rised.learner.types import Timings
from rised.records.types import Timing
from rised.rollouts.episodes import CollectTimings
from stages.tagging import TaggedBatch


def step_parts(elapsed_s: float, batch: TaggedBatch, update: Timings) -> dict[str, float]:
    """Seconds by part, ``step`` their sum. ``elapsed_s``: since the step began."""
    parts = {
        "rollout_wait": batch.rollout_wait_s,
        "tag_wait": batch.tag_wait_s,
        "reference": update.reference_s,
        "teacher": update.teacher_s,
        "actor": update.actor_s,
    }
    step_s = elapsed_s + batch.waited_before_s
    return parts | {"other": step_s - sum(parts.values()), "step": step_s}


def step_timings(
    step: int, parts: Mapping[str, float], collected: CollectTimings, saving: Mapping[str, float], processes: int
) -> list[Timing]:
    """The records of a step. ``saving``: seconds by what the run waited for before its state could be written."""
    rows = [Timing(step, f"time/{name}", seconds, "s") for name, seconds in parts.items()]
    for name in ("generation_s", "environment_s", "environment_wait_s"):
        rows.append(Timing(step, f"rollout/{name.removesuffix('_s')}", getattr(collected, name), "s"))
    rows.append(Timing(step, "rollout/wall", collected.wall_s, "s"))
    rows += [Timing(step, f"save/{name}", seconds, "s") for name, seconds in saving.items()]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows.append(Timing(step, "process/peak_memory", peak, "MiB"))
    rows.append(Timing(step, "process/count", float(processes), "count"))
    return rows
