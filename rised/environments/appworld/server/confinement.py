"""The sandbox of an episode's process: namespaces, a file tree, an identity and limits.

An episode is forked from the process that has the engine loaded, so a program that starts other programs in a sandbox
(bubblewrap) does not fit; this module makes the same system calls. What it guarantees is in docs/environments.md.
Standard library only. Run as a program, it tries the sandbox once and prints what the system refused.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

ROOT = "/episode"
"""Where a sandbox has the data root of its episode."""
WRITABLE_MB = 100
"""Size of the sandbox's own tmpfs: home, /tmp and the engine's outputs."""
MAX_TASKS = 8
"""Processes and threads of a sandbox. The engine itself needs three threads."""
MAX_FILE_MB = 32
MAX_DESCRIPTORS = 128
NOBODY = 65534
"""The user and group that code runs as where we are root, whom no limit of processes binds."""

_NEW_MOUNTS, _NEW_HOST_NAME, _NEW_IPC = 0x20000, 0x4000000, 0x8000000
_NEW_USERS, _NEW_PROCESSES, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SET_UID, _NO_DEVICES, _NO_EXECUTION = 0x1, 0x2, 0x4, 0x8
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_DETACH = 0x2
_SET_NO_NEW_PRIVILEGES, _SET_CHILD_SUBREAPER = 38, 36
_CAPABILITY_VERSION = 0x20080522
"""Constants of Linux's sched.h, mount.h, prctl.h and capability.h."""
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

_library = ctypes.CDLL(None, use_errno=True)


def fork_confined(serve: Callable[[], None], folder: str, memory_mb: int, descriptor: int) -> int:
    """Fork a process that runs ``serve`` in a sandbox; returns its pid. OSError where the system does not allow one.

    ``folder`` holds the episode's ``data`` and an empty folder ``home`` to mount on. The process keeps ``descriptor``
    and no other. It is our child, the first process of its own PID namespace: all others in there end with it.
    """
    # A middle process enters the namespaces, since only the children of a process enter its new PID namespace.
    _check(_library.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl PR_SET_CHILD_SUBREAPER")
    ours, theirs = socket.socketpair()
    middle = os.fork()
    if middle == 0:
        ours.close()
        try:
            _enter(theirs, serve, folder, memory_mb, descriptor)
        except BaseException as error:
            _send(theirs, error=f"{type(error).__name__}: {error}")
        os._exit(1)
    theirs.close()
    pid = 0
    try:
        with ours, ours.makefile("rb") as messages:
            for line in messages:
                message = json.loads(line)
                if "error" in message:
                    raise OSError(message["error"])
                if "unshared" in message:
                    _send(ours, identity=_map_identity(middle))
                pid = message.get("pid", pid)
                if "ready" in message:
                    os.waitpid(middle, 0)
                    return pid
        raise OSError("the process ended while its sandbox was made")
    except BaseException:
        os.kill(middle, signal.SIGKILL)
        os.waitpid(middle, 0)
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise


def _send(end: socket.socket, **message: Any) -> None:
    end.sendall(json.dumps(message).encode("ascii") + b"\n")


def _map_identity(pid: int) -> tuple[int, int]:
    """Write the id maps of a new user namespace; returns the user and group that its code runs as."""

    def write(name: str, text: str) -> None:
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(text)

    user, group = os.geteuid(), os.getegid()
    if user == 0:
        with suppress(OSError):  # in a container that maps one id only, root is somebody else outside
            write("uid_map", f"0 0 1\n{NOBODY} {NOBODY} 1")
            write("gid_map", f"{group} {group} 1\n{NOBODY} {NOBODY} 1")
            return NOBODY, NOBODY
    write("uid_map", f"{user} {user} 1")
    write("setgroups", "deny")
    write("gid_map", f"{group} {group} 1")
    return user, group


def _enter(end: socket.socket, serve: Callable[[], None], folder: str, memory_mb: int, descriptor: int) -> None:
    """The middle process: new namespaces, and the process that serves in them."""
    flags = _NEW_USERS | _NEW_MOUNTS | _NEW_PROCESSES | _NEW_NETWORK | _NEW_IPC | _NEW_HOST_NAME
    _check(_library.unshare(flags), "unshare")
    _send(end, unshared=True)
    user, group = json.loads(end.makefile("rb").readline())["identity"]
    pid = os.fork()
    if pid:
        _send(end, pid=pid)
        os._exit(0)
    try:
        limit(memory_mb, end.fileno(), descriptor)
        _forbid_what_escapes_limits()
        _build_tree(folder, user, group)
        _drop_privileges(user, group)
        set_variables(ROOT)
        _send(end, ready=True)
    except BaseException as error:
        _send(end, error=f"{type(error).__name__}: {error}")
        os._exit(1)
    end.close()
    serve()
    os._exit(0)


def limit(memory_mb: int, *descriptors: int) -> None:
    """A session, limits, and no open file but ``descriptors``: what is printed goes to /dev/null.

    Where memory runs out, the kernel ends this process before the training.
    """
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    first = 3
    for kept in sorted(descriptors):
        if kept > first:
            os.closerange(first, kept)
        first = max(first, kept + 1)
    os.closerange(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    with open("/proc/self/statm") as statm:
        inherited = int(statm.read().split()[0]) * resource.getpagesize()
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: MAX_FILE_MB << 20,
        resource.RLIMIT_NOFILE: MAX_DESCRIPTORS,
        resource.RLIMIT_AS: inherited + (memory_mb << 20),
    }
    for which, value in limits.items():
        resource.setrlimit(which, (value, value))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


def set_variables(root: str) -> None:
    """The variables of an episode whose data root is ``root``, and its home as working directory."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    os.environ.clear()
    home = os.path.join(root, "home")
    os.environ.update(
        kept,
        HOME=home,
        TMPDIR=home,
        IPYTHONDIR=home,
        APPWORLD_ROOT=root,
        APPWORLD_CACHE=home,
        OMP_NUM_THREADS="1",
    )
    os.chdir(home)


def _forbid_what_escapes_limits() -> None:
    """Namespaces within this one, and shared memory that no process's limit counts; where the kernel lets us."""
    # Before Linux 5.14 the limit counts all processes of the user, and the engine could not start its threads.
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    if version and (int(version[1]), int(version[2])) >= (5, 14):
        resource.setrlimit(resource.RLIMIT_NPROC, (MAX_TASKS, MAX_TASKS))
    for name in ("user/max_user_namespaces", "kernel/shmall"):
        with suppress(OSError), open(f"/proc/sys/{name}", "w") as file:
            file.write("0")


def _build_tree(folder: str, user: int, group: int) -> None:
    """A file tree of the interpreter, its packages and the episode's data, read-only, on a tmpfs; the rest is gone."""
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    folder = os.path.realpath(folder)
    top, data = os.path.join(folder, "home"), os.path.join(folder, "data")
    _mount("tmpfs", top, "tmpfs", _NO_SET_UID | _NO_DEVICES, f"size={WRITABLE_MB}m,nr_inodes=10000,mode=755")
    shown = {path: path for path in (*_interpreter(), *_DEVICES)}
    shown |= {f"{ROOT}/data/{name}": os.path.realpath(os.path.join(data, name)) for name in os.listdir(data)}
    for target, source in shown.items():
        _bind(source, top + target)
    for name in ("home", "experiments"):
        os.makedirs(f"{top}{ROOT}/{name}")
        os.chown(f"{top}{ROOT}/{name}", user, group)
    os.makedirs(f"{top}/tmp", exist_ok=True)
    os.chmod(f"{top}/tmp", 0o1777)
    _make_read_only(top, len(shown))
    os.chdir(top)
    _check(_library.pivot_root(b".", b"."), "pivot_root")
    _check(_library.umount2(b".", _DETACH), "umount")
    os.chdir("/")


def _make_read_only(top: str, expected: int) -> None:
    """All mounts below ``top``, those within bound folders too. OSError if they are fewer than ``expected``."""
    with open("/proc/self/mountinfo", "rb") as mounts:
        fields = [line.split() for line in mounts]
    found = 0
    for raw, options in ((field[4], field[5].split(b",")) for field in fields):
        point = os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), raw))
        if point.startswith(top + "/"):
            flags = _REMOUNT | _BIND | _READ_ONLY | _NO_SET_UID
            flags |= _NO_DEVICES if b"nodev" in options or not point.startswith(f"{top}/dev/") else 0
            flags |= _NO_EXECUTION if b"noexec" in options else 0
            _mount(None, point, None, flags)
            found += 1
    if found < expected:
        raise OSError(f"{found} of {expected} mounts were found below {top}")


def _interpreter() -> list[str]:
    """What Python code may import later: paths of modules and libraries, without those inside of another."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    paths = {os.path.abspath(path) for path in sys.path[1:] if path} | {f"{prefix}/lib" for prefix in prefixes}
    paths |= {*_LIBRARIES, "/usr/share/zoneinfo"}
    kept: list[str] = []
    for path in sorted(paths):
        if os.path.exists(path) and not any(path.startswith(parent + "/") for parent in kept):
            kept.append(path)
    return kept


def _drop_privileges(user: int, group: int) -> None:
    """Become ``user`` for good: no capability is left, and no program gives one back."""
    if user != os.geteuid():
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(_library.capset(header, none), "capset")
    _check(_library.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl PR_SET_NO_NEW_PRIVS")


def _bind(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    _mount(source, target, None, _BIND | _RECURSIVE)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _check(_library.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def main() -> int:
    """Try the sandbox once."""
    folder = tempfile.mkdtemp(prefix="appworld-")
    try:
        for name in ("home", "data"):
            os.mkdir(os.path.join(folder, name))
        os.waitpid(fork_confined(lambda: None, folder, 256, 0), 0)
    except OSError as error:
        print(error)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
