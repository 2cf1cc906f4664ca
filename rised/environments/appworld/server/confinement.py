"""What an episode's process gives up before code of a policy runs in it.

What this does not confine is said in docs/environments.md. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import resource

_NEW_MOUNTS, _NEW_USERS, _NEW_NETWORK = 0x20000, 0x10000000, 0x40000000
_READ_ONLY, _RECURSIVE, _PRIVATE = 0x1, 0x4000, 0x40000
"""Constants of Linux's sched.h and mount.h."""


def confine(folder: str, memory_mb: int) -> None:
    """A session, a folder, variables and limits of its own."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
    with open("/proc/self/statm") as statm:
        inherited = int(statm.read().split()[0]) * resource.getpagesize()
    limit = inherited + memory_mb * (1 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        # Where memory runs out, an episode should end before the training does.
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    os.environ.clear()
    home = os.path.join(folder, "home")
    os.environ.update(
        kept,
        HOME=home,
        TMPDIR=home,
        IPYTHONDIR=home,
        APPWORLD_ROOT=folder,
        APPWORLD_CACHE=home,
        OMP_NUM_THREADS="1",
    )
    os.chdir(home)


def isolate(hidden: str) -> None:
    """Leave the network, and see an empty folder at ``hidden``. OSError where the system does not allow it.

    Root may do this at once; others need a user namespace of their own, in which they keep their ids.
    """
    library = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if library.unshare(_NEW_MOUNTS | _NEW_NETWORK) != 0:
        _check(library.unshare(_NEW_USERS | _NEW_MOUNTS | _NEW_NETWORK), "unshare")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _check(library.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None), "mount /")
    _check(library.mount(b"none", os.fsencode(hidden), b"tmpfs", _READ_ONLY, b"size=4k"), f"mount {hidden}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
