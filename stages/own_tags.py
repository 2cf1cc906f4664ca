"""What a process plays of a batch, and the judging of it by a judge model while other episodes are still played."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rised.records.types import Rollout
from rised.rollouts.episodes import CollectTimings, OnRollout
from rised.rubrics.base import RubricError
from rised.rubrics.judge_llm import LlmJudge
from rised.rubrics.judge_stream import Streamed, TagStream
from rised.rubrics.settings import LlmJudgeSettings, RubricSettings
from rised.rubrics.vocabulary import load_vocabulary


@dataclass(frozen=True, slots=True)
class Played:
    """A process's share of a batch. ``judged``: where it was judged meanwhile; ``error``: what ended that."""

    rollouts: list[Rollout]
    timings: CollectTimings
    judged: Streamed | None = None
    error: RubricError | None = None


@dataclass(frozen=True, slots=True)
class Tagged:
    """A process's judgements of what it played, in the order of ``rollout_ids``."""

    rollout_ids: tuple[str, ...]
    judged: Streamed


@dataclass(frozen=True, slots=True)
class _Open:
    """A batch that lacks judgements, the judge that is asked for them, and what ends the asking."""

    judge: LlmJudge
    stream: TagStream
    rollouts: list[Rollout]
    opened: ExitStack


class OwnTags:
    """The judge's clients of this process, by turns: judgements of one batch may still be waited for while the next
    one is played. ``players``: processes that share out the requests which a run may have in flight.

    An error of the judge is an answer here: the driver ends the run with it, not a lost process.
    """

    def __init__(self, rubrics: RubricSettings, players: int) -> None:
        self._rubrics, self._players = rubrics, players
        self._free: list[LlmJudge] = []
        self._open: deque[_Open] = deque()

    def play(self, collect: Callable[[OnRollout], Played]) -> Played:
        """What ``collect`` plays, each rollout judged from its end on; the judgements are :meth:`finish`'s."""
        try:
            with ExitStack() as opened:
                judge = self._free.pop() if self._free else self._new_judge()
                stream = opened.enter_context(TagStream(judge))
                played = collect(stream.add)
                self._open.append(_Open(judge, stream, played.rollouts, opened.pop_all()))
            return played
        except RubricError as error:
            return Played([], CollectTimings(), error=error)

    def finish(self, newest: bool = False) -> Tagged | RubricError | None:
        """Wait for the judgements of the oldest batch that lacks them, or of the newest; None where there is none."""
        if not self._open:
            return None
        batch = self._open.pop() if newest else self._open.popleft()
        try:
            with batch.opened:
                judged = batch.stream.finish(batch.rollouts)
        except RubricError as error:
            return error
        self._free.append(batch.judge)
        return Tagged(tuple(rollout.rollout_id for rollout in batch.rollouts), judged)

    def close(self) -> None:
        """Give up what nobody waits for any more."""
        while self._open:
            self._open.popleft().opened.close()

    def _new_judge(self) -> LlmJudge:
        judge = self._rubrics.judge
        assert isinstance(judge, LlmJudgeSettings)
        settings = judge.model_copy(update={"concurrency": math.ceil(judge.concurrency / self._players)})
        return LlmJudge(settings, load_vocabulary(Path(self._rubrics.vocabulary)))
