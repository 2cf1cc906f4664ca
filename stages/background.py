"""Collections that go on in a thread of their own while the process does something else.

The thread makes no collective call: it plays this process's share with this process's engine, and whoever began it
joins it. Nothing that is played depends on when that is.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")


class Abandoned(Exception):
    """What ends a collection that nobody waits for any more."""


class BackgroundPlay(Generic[Result]):
    """Pieces of work, one after the other; ``threads``: torch's intra-op threads there, None: torch's own choice."""

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._work: deque[Future[Result]] = deque()
        self._abandoned = threading.Event()

    @property
    def busy(self) -> bool:
        """Whether there is work that nobody has joined yet."""
        return bool(self._work)

    def begin(self, work: Callable[[Callable[[], None]], Result]) -> None:
        """Start ``work`` as soon as what was begun before it is done.

        It is given a function to call now and then, which raises once the work is abandoned.
        """
        if self._pool is None:
            device = torch.cuda.current_device() if torch.cuda.is_available() else None
            self._pool = ThreadPoolExecutor(1, "player", initializer=self._prepare, initargs=(device,))
        self._work.append(self._pool.submit(work, self._heed))

    def join(self) -> Result:
        """Wait for the oldest work that nobody has joined; its result, or what ended it."""
        return self._work.popleft().result()

    def close(self) -> None:
        """Abandon what is still done, and wait until it has noticed: at its next batch."""
        self._abandoned.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _heed(self) -> None:
        if self._abandoned.is_set():
            raise Abandoned

    def _prepare(self, device: int | None) -> None:
        """Thread and device are each thread's own in torch."""
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        if device is not None:
            torch.cuda.set_device(device)
