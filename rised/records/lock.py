"""One writer per run: a POSIX record lock, which the kernel drops when its process dies.

Not ``flock``: that would be inherited by forked environment workers and outlive a killed trainer.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path

from rised.records.errors import RecordError

_held: set[Path] = set()
"""Locks of this process: POSIX locks never refuse their own process."""


class WriterLock:
    """Holds ``path`` locked from construction to :meth:`release`; :class:`RecordError` if another writer has it."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._path = path.resolve()
            if self._path in _held:
                raise RecordError(f"{path.parent} already has a writer in this process; close it first")
            self._file = open(self._path, "a+", encoding="utf-8")
        except OSError as error:
            raise RecordError(f"cannot write in {path.parent}: {error.strerror or error}. Check the path.") from error
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "an unknown process"
            self._file.close()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise RecordError(
                    f"{path.parent} has another writer ({holder}). Wait for it or stop it; two would mix their steps."
                ) from None
            raise RecordError(
                f"{path.parent}: the file system cannot lock files ({error.strerror}). "
                "Mount it with locking, or put the results on one that has it."
            ) from error
        _held.add(self._path)
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def release(self) -> None:
        """Give the lock up; the file stays, because removing it would race with the next writer."""
        if not self._file.closed:
            _held.discard(self._path)
            self._file.close()
