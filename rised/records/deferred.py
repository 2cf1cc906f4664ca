"""A step that is finished in the background: one thread, one job at a time.

What the job does is its caller's; how a step becomes visible is in ``commit``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Runs one job beside the caller. A job's exception waits for :meth:`result`."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None

    @property
    def failed(self) -> bool:
        """Whether there is a job that has ended in an exception."""
        return self._job is not None and self._job.done() and self._job.exception() is not None

    def begin(self, job: Callable[[], None]) -> None:
        """Start a job; the one before must have been taken by :meth:`result`."""
        assert self._job is None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")
        self._job = self._thread.submit(job)

    def wait(self) -> None:
        """Until the job is through, however it ended."""
        if self._job is not None:
            self._job.exception()

    def result(self) -> None:
        """The same, and raise what ended the job; afterwards there is none."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def close(self) -> None:
        """Wait and end the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None
