"""Play a batch of episodes and tag it: a judge model while other episodes are still played, other judges afterwards.

The tags are the same either way; what differs is how long the step waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rised.records.types import Rollout, Tag
from rised.rollouts.episodes import CollectTimings
from rised.rollouts.plans import EpisodePlan
from rised.rollouts.settings import RolloutSettings
from rised.rubrics.base import Judge
from rised.rubrics.judge_record import JudgeRecord
from rised.rubrics.judge_stream import streaming
from stages.workers import WorkerGroup

Phase = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TaggedBatch:
    """Rollouts and their tags, in the order of the plans. ``tags`` is empty where none were asked for.

    ``tag_wait_s``: seconds between the end of the last episode and the last tag.
    """

    rollouts: list[Rollout]
    timings: CollectTimings
    tags: list[Tag] = field(default_factory=list)
    judged: JudgeRecord = field(default_factory=JudgeRecord)
    tag_wait_s: float = 0.0


def play_and_tag(
    workers: WorkerGroup,
    judge: Judge | None,
    plans: Sequence[EpisodePlan],
    settings: RolloutSettings,
    phase: Phase,
) -> TaggedBatch:
    """``judge`` None: no tags. ``phase`` hears what is going on. RubricError as :meth:`LlmJudge.tag` says."""
    model = streaming(judge) if judge is not None else None
    if model is not None:
        phase("rollouts and tags")
        rollouts, timings, streamed = workers.collect_judged(plans, settings)
        model.record = JudgeRecord(counters=streamed.counters, after_batch_s=streamed.after_batch_s)
        tags = model.conclude(streamed.judgements)
        return TaggedBatch(rollouts, timings, tags, model.record, streamed.wait_s)
    phase("rollouts")
    rollouts, timings = workers.collect(plans, settings)
    if judge is None:
        return TaggedBatch(rollouts, timings)
    phase("tags")
    started = time.perf_counter()
    tags = judge.tag(rollouts)
    return TaggedBatch(rollouts, timings, tags, judge.record, time.perf_counter() - started)
