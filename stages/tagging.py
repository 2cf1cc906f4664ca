"""Play a batch of episodes and tag it: a judge model while other episodes are still played, other judges afterwards.

The tags are the same either way; what differs is how long the step waits for them. A batch is played while the caller
waits (:func:`play_and_tag`), or begun and waited for by two calls (:func:`begin_play`, :meth:`InFlight.wait`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rised.records.types import Rollout, Tag
from rised.rollouts.episodes import CollectTimings
from rised.rollouts.plans import EpisodePlan, needed_episodes
from rised.rollouts.settings import RolloutSettings
from rised.rubrics.base import Judge, RubricError
from rised.rubrics.judge_record import JudgeRecord
from rised.rubrics.judge_stream import Streamed, streaming
from stages.workers import WorkerGroup

Phase = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TaggedBatch:
    """Rollouts and their tags, in the order of the plans. ``tags`` is empty where none were asked for.

    ``planned``: how many episodes there had to be, spare ones aside. ``rollout_wait_s``: seconds in which the caller
    waited for episodes, ``tag_wait_s``: for tags once it had them all; ``waited_before_s`` of both: before it came to
    finish them.
    """

    rollouts: list[Rollout]
    timings: CollectTimings
    planned: int
    tags: list[Tag] = field(default_factory=list)
    judged: JudgeRecord = field(default_factory=JudgeRecord)
    rollout_wait_s: float = 0.0
    tag_wait_s: float = 0.0
    waited_before_s: float = 0.0


@dataclass(slots=True)
class InFlight:
    """Episodes that are being played. ``waited_s``: how long they were waited for so far."""

    workers: WorkerGroup
    plans: Sequence[EpisodePlan]
    waited_s: float = 0.0
    _found: tuple[list[Rollout], CollectTimings] | RubricError | None = None

    def end(self) -> None:
        """Wait until the last episode has ended; what is wrong with their tags is told later."""
        if self._found is None:
            started = time.perf_counter()
            try:
                self._found = self.workers.finish_collect(self.plans)
            except RubricError as error:
                self._found = error
            self.waited_s += time.perf_counter() - started

    def wait(self) -> tuple[list[Rollout], CollectTimings]:
        """The same, and what came of it. RubricError as :meth:`LlmJudge.tag` says."""
        self.end()
        assert self._found is not None
        if isinstance(self._found, RubricError):
            raise self._found
        return self._found


def begin_play(
    workers: WorkerGroup, judge: Judge | None, plans: Sequence[EpisodePlan], settings: RolloutSettings
) -> InFlight:
    """Begin to play, and with a judge model to tag; :func:`finish_play` is given the same judge."""
    workers.begin_collect(plans, settings, judged=judge is not None and streaming(judge) is not None)
    return InFlight(workers, plans)


def finish_play(flight: InFlight, judge: Judge | None, phase: Phase) -> TaggedBatch:
    """Wait for the episodes and for the tags that they still lack. RubricError as :meth:`LlmJudge.tag` says."""
    rollouts, timings = flight.wait()
    batch = TaggedBatch(rollouts, timings, needed_episodes(flight.plans))
    if judge is None or streaming(judge) is None:
        return _tagged(batch, None, judge, phase, flight.waited_s)
    phase("tags")
    started = time.perf_counter()
    streamed = flight.workers.finish_tags(rollouts)
    waited_s = time.perf_counter() - started
    return _tagged(batch, replace(streamed, wait_s=waited_s), judge, phase, flight.waited_s + waited_s)


def play_and_tag(
    workers: WorkerGroup,
    judge: Judge | None,
    plans: Sequence[EpisodePlan],
    settings: RolloutSettings,
    phase: Phase,
) -> TaggedBatch:
    """``judge`` None: no tags. ``phase`` hears what is going on. RubricError as :meth:`LlmJudge.tag` says."""
    started = time.perf_counter()
    streamed: Streamed | None = None
    if judge is not None and streaming(judge) is not None:
        phase("rollouts and tags")
        rollouts, timings, streamed = workers.collect_judged(plans, settings)
    else:
        phase("rollouts")
        rollouts, timings = workers.collect(plans, settings)
    batch = TaggedBatch(rollouts, timings, needed_episodes(plans))
    return _tagged(batch, streamed, judge, phase, time.perf_counter() - started)


def _tagged(
    batch: TaggedBatch, streamed: Streamed | None, judge: Judge | None, phase: Phase, waited_s: float
) -> TaggedBatch:
    """``batch`` with its tags and with the seconds in which it was waited for."""
    if judge is None:
        return replace(batch, rollout_wait_s=waited_s)
    model = streaming(judge)
    if streamed is not None and model is not None:
        model.record = JudgeRecord(counters=streamed.counters, after_batch_s=streamed.after_batch_s)
        tags = model.conclude(streamed.judgements)
        tag_wait_s = min(streamed.wait_s, waited_s)
        return replace(
            batch, tags=tags, judged=model.record, rollout_wait_s=waited_s - tag_wait_s, tag_wait_s=tag_wait_s
        )
    phase("tags")
    started = time.perf_counter()
    tags = judge.tag(batch.rollouts)
    tag_wait_s = time.perf_counter() - started
    return replace(batch, tags=tags, judged=judge.record, rollout_wait_s=waited_s, tag_wait_s=tag_wait_s)
