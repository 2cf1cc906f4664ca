"""A place to die: lets tests kill the process between any two operations that touch the disk.

``RISED_KILL_AT_WRITE=n`` makes the process send itself SIGKILL at its n-th such point (1 is the first); unset, a
point costs one comparison. ``RISED_LIST_WRITES=file`` appends the name of every point passed, so that a test
knows how many there are. Nothing else lives here.
"""

from __future__ import annotations

import os
import signal
import threading

_kill_at = int(os.environ.get("RISED_KILL_AT_WRITE", "0"))
_list_to = os.environ.get("RISED_LIST_WRITES", "")
_passed = 0
_lock = threading.Lock()


def arm(kill_at: int = 0, list_to: str = "") -> None:
    """Choose the point to die at (0: none) for this process from now on, as the environment variables do."""
    global _kill_at, _list_to, _passed
    _kill_at, _list_to, _passed = kill_at, list_to, 0


def kill_point(name: str) -> None:
    """Count this point and die here if it is the chosen one."""
    global _passed
    if not _kill_at and not _list_to:
        return
    with _lock:
        _passed += 1
        if _list_to:
            with open(_list_to, "a", encoding="utf-8") as file:
                file.write(name + "\n")
        if _passed == _kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
