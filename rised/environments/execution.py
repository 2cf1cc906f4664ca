"""Which job each worker does next, and which of them have answered: the pool's view of its processes at work.

A worker does one job at a time, in the order in which its jobs came; workers do not wait for each other.
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rised.environments.base import EnvironmentFault
from rised.environments.workerprocess import WorkerDied

if TYPE_CHECKING:
    from rised.environments.pool import EnvironmentPool

_WAKE = -1
"""Stands among the workers' indices for the caller's file descriptor."""


@dataclass(slots=True)
class Job:
    """The next thing to do for one slot: reset (``action`` None) or step."""

    slot: int
    action: str | None


class Execution:
    """Jobs on the workers of one pool. A context manager; nothing else may talk to the workers inside the block."""

    def __init__(self, pool: EnvironmentPool) -> None:
        self._pool = pool
        self._queues: list[deque[Job]] = [deque() for _ in pool.workers]
        self._to_release: list[list[int]] = [[] for _ in pool.workers]
        self._running: dict[int, Job] = {}
        self._answered: dict[int, Any] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Execution:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what is running, so that no answer is left for somebody else to read; drop what is queued."""
        with suppress(EnvironmentFault, WorkerDied):
            for jobs in self._queues:
                jobs.clear()
            while self._running:
                self.wait()
        self._selector.close()

    @property
    def idle(self) -> bool:
        """Whether nothing is being done and no answer waits to be taken."""
        return not self._running and not self._answered

    def add(self, jobs: Iterable[Job]) -> None:
        """Queue jobs; each slot's episode is known to the pool."""
        jobs = list(jobs)
        for job in jobs:
            self._queues[self._pool.worker_of(job.slot)].append(job)
        self._start(range(len(self._queues)))

    def release(self, slot: int) -> None:
        """Have the episode of a slot without a job forgotten, as soon as its worker has time."""
        index = self._pool.forget(slot)
        if index is not None:
            self._to_release[index].append(slot)
            self._start([index])

    def wait(self, wake: int | None = None) -> dict[int, Any]:
        """Wait for at least one answer, or until the file descriptor ``wake`` can be read; slot -> what it answered.

        Returns nothing when there is nothing to wait for.
        """
        if wake is not None:
            self._selector.register(wake, selectors.EVENT_READ, _WAKE)
        try:
            while not self._answered and (self._running or wake is not None):
                ready = self._ready()
                for index in sorted(ready - {_WAKE}):
                    self._take(index)
                if _WAKE in ready:
                    break
        finally:
            if wake is not None:
                self._selector.unregister(wake)
        answered, self._answered = self._answered, {}
        return answered

    def _ready(self) -> set[int]:
        workers = self._pool.workers
        deadline = min((workers[index].deadline for index in self._running), default=None)
        wait_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        ready: set[int] = {key.data for key, _ in self._selector.select(wait_s)}
        now = time.monotonic()
        return ready | {index for index in self._running if workers[index].deadline <= now}

    def _take(self, index: int) -> None:
        """Take a worker's answer, or notice that it died or took too long."""
        pool, job = self._pool, self._running[index]
        worker, answer, loss = pool.workers[index], None, f"no answer within {pool.timeout_s:g} s"
        try:
            answer = worker.receive_available()
        except WorkerDied as death:
            loss = str(death)
        else:
            if answer is None and worker.deadline > time.monotonic():
                return
        self._selector.unregister(worker.stdout)
        del self._running[index]
        if answer is None:
            pool.replace(index, died=True)
            again = pool.lose(job, loss, self._answered)
        else:
            again = pool.take_answer(job, answer, self._answered)
        if again:
            self._queues[index].appendleft(job)
        self._start([index])

    def _start(self, indices: Iterable[int]) -> None:
        for index in indices:
            if index not in self._running and self._to_release[index]:
                slots, self._to_release[index] = self._to_release[index], []
                self._pool.release_on(index, slots)
            while self._queues[index] and index not in self._running:
                job = self._queues[index].popleft()
                if self._pool.send(index, job):
                    self._running[index] = job
                    self._selector.register(self._pool.workers[index].stdout, selectors.EVENT_READ, index)
                else:
                    self._queues[index].appendleft(job)
