"""Judging while episodes are still played: a thread with an event loop of its own takes rollouts as they end.

What a rollout is tagged with, and in which order tags stand, does not depend on when it came; only the waiting does.
The thread ends with the block that opened it, however that ends, and its requests with it.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType

from rised.records.types import Rollout
from rised.rubrics.base import Judge
from rised.rubrics.judge_llm import Judgement, LlmJudge
from rised.rubrics.judge_record import JudgeCounters

JOIN_S = 10.0
"""How long the end of the thread is waited for; it ends with the process in any case."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """What came of one batch. ``judgements`` in the order of its rollouts.

    ``wait_s``: from the end of the last episode to the last judgement, all that tagging costs a step.
    ``after_batch_s``: an estimate of what it would have cost to begin only then; see :func:`packed_s`.
    """

    judgements: tuple[Judgement, ...]
    counters: JudgeCounters
    wait_s: float
    after_batch_s: float


class TagStream:
    """Judges each rollout it is given, at once. A context manager, for one batch.

    ``add`` and ``finish`` raise what ended the judging: RubricError when the server refuses the key or the model.
    """

    def __init__(self, judge: LlmJudge) -> None:
        self._judge = judge
        self._found: dict[str, Judgement] = {}
        self._outcome: Future[None] = Future()
        self._running = threading.Event()
        self._first: float | None = None
        self._thread = threading.Thread(target=self._run, name="judge", daemon=True)

    def __enter__(self) -> TagStream:
        self._judge.begin()
        self._thread.start()
        self._running.wait()
        if self._outcome.done():
            self._outcome.result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self._outcome.done():
            self._call(self._task.cancel)
        self._thread.join(JOIN_S)

    def add(self, rollout: Rollout) -> None:
        """Have a rollout judged; returns at once."""
        if self._first is None:
            self._first = time.monotonic()
        self._call(self._waiting.put_nowait, rollout)
        if self._outcome.done():
            self._outcome.result()

    def finish(self, rollouts: Sequence[Rollout]) -> Streamed:
        """Wait for what is not judged yet; ``rollouts``: all that were added, in the order of their tags."""
        asked = time.monotonic()
        self._call(self._waiting.put_nowait, None)
        self._outcome.result()
        ended = time.monotonic()
        judgements = tuple(self._judge.in_order([self._found[rollout.rollout_id] for rollout in rollouts]))
        counters = replace(self._judge.record.counters, seconds=ended - (self._first or ended))
        after_batch_s = packed_s((j.seconds for j in judgements), self._judge.settings.concurrency)
        return Streamed(judgements, counters, ended - asked, after_batch_s)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the outcome says why
            self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self) -> None:
        try:
            asyncio.run(self._judge_what_comes())
        except BaseException as error:  # handed to the thread that waits
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(None)
        finally:
            self._running.set()

    async def _judge_what_comes(self) -> None:
        self._loop, self._waiting = asyncio.get_running_loop(), asyncio.Queue[Rollout | None]()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._running.set()
        async with self._judge.session() as session:

            async def judge(rollout: Rollout) -> None:
                self._found[rollout.rollout_id] = await session.judge(rollout)

            async with session.together() as group:
                while (rollout := await self._waiting.get()) is not None:
                    group.create_task(judge(rollout))


def streaming(judge: Judge) -> LlmJudge | None:
    """The judge, if it is one that is to tag rollouts while others are played."""
    return judge if isinstance(judge, LlmJudge) and judge.settings.streaming else None


def packed_s(seconds: Iterable[float], slots: int) -> float:
    """How long requests of these durations take, in their order, when at most ``slots`` are in flight.

    An estimate from below of tagging after the batch: all requests at once would each have taken longer.
    """
    free = [0.0] * slots
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)
