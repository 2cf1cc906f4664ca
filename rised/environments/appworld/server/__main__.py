"""The engine's side of AppWorld: a program for the interpreter that has the ``appworld`` package.

It imports nothing but that package and the standard library, since the engine's dependencies and ours exclude each
other. One process loads the engine once and is then forked, once for every episode and once for every verdict: two
worlds never share a process, a world begins in a fraction of a second, and code of a policy never runs where a verdict
is reached. Descriptor 0 is the control socket of the first process; a forked one is handed a socket of its own. All
messages are lines of JSON; what anything prints goes elsewhere.

Requests on the control socket: ``fork`` (with a descriptor), ``kill``. Requests on an episode's socket: ``tasks``,
``open``, ``execute``, ``state``, ``evaluate``. Every request gets one answer, ``{"ok": …}`` or
``{"error": …, "traceback": …}``.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import socket
import sys
import traceback
from typing import Any

from confinement import fork_confined, limit, set_variables
from episode import Episode

MAX_REQUEST_BYTES = 64_000_000
MAX_CONTROL_BYTES = 1 << 16
_write, _read, _dumps, _loads = os.write, os.read, json.dumps, json.loads
_getpid, _kill, _waitpid, _exit = os.getpid, os.kill, os.waitpid, os._exit
"""Kept aside: the engine replaces functions of ``os`` and ``json`` while the code of a policy runs."""


class Lines:
    """JSON lines over a connected socket's descriptor. ASCII, so that any text (lone surrogates too) survives."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = b""

    def read(self) -> dict[str, Any] | None:
        """The next request; None when the other side is gone."""
        while b"\n" not in self._pending:
            chunk = _read(self._descriptor, 1 << 16)
            if not chunk or len(self._pending) > MAX_REQUEST_BYTES:
                return None
            self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        request: dict[str, Any] = _loads(line)
        return request

    def write(self, message: dict[str, Any]) -> None:
        data = memoryview(_dumps(message).encode("ascii") + b"\n")
        while data:
            data = data[_write(self._descriptor, data) :]


def failure(error: BaseException) -> dict[str, Any]:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-8))
    return {"error": f"{type(error).__name__}: {error}", "traceback": text[-4000:]}


def serve_episode(descriptor: int) -> None:
    """Answer requests until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    lines, episode, server = Lines(descriptor), Episode(), _getpid()
    operations = {
        "tasks": episode.tasks,
        "open": episode.open,
        "execute": episode.execute,
        "state": episode.state,
        "evaluate": episode.evaluate,
    }
    while (request := lines.read()) is not None:
        try:
            answer = {"ok": operations[request["op"]](request)}
        except Exception as error:
            answer = failure(error)
        if _getpid() != server:
            _exit(0)  # code has forked, and this is the fork
        if server == 1:
            end_all_others()
        lines.write(answer)


def end_all_others() -> None:
    """End what code has started: all processes of the PID namespace whose first process this is."""
    try:
        _kill(-1, signal.SIGKILL)
        while True:
            _waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def fork(descriptor: int, request: dict[str, Any]) -> int:
    """A process that serves on ``descriptor``, in a sandbox or only with limits; returns its pid."""

    def serve() -> None:
        try:
            serve_episode(descriptor)
        except BaseException:
            os._exit(1)

    if request["isolate"]:
        return fork_confined(serve, request["folder"], request["memory_mb"], descriptor)
    pid = os.fork()
    if pid == 0:
        limit(request["memory_mb"], descriptor)
        set_variables(request["folder"])
        serve()
        os._exit(0)
    return pid


def load_engine() -> str:
    """Import everything that a world needs, so that forks share it. Returns the version."""
    import importlib

    import appworld
    import appworld.evaluator
    from appworld.apps import build_main_app, get_all_apps

    names = tuple(sorted(get_all_apps()))
    for name in names:
        importlib.import_module(f"appworld.apps.{name}.apis")
    build_main_app(names)
    gc.collect()
    gc.freeze()
    return str(appworld.__version__)


def out_of_memory_kills() -> int:
    """How many processes the kernel has ended for want of memory since it was started; 0 if it does not say."""
    try:
        with open("/proc/vmstat") as counters:
            return next((int(line.split()[1]) for line in counters if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def kill(pid: int, children: dict[int, int]) -> dict[str, Any]:
    """End a child and its descendants; says how it ended, and whether memory may have run out on the machine."""
    if pid not in children:
        return {"ended": "unknown", "out_of_memory": False}
    kills_before = children.pop(pid)
    ended, status = os.waitpid(pid, os.WNOHANG)
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    if ended:
        code = os.waitstatus_to_exitcode(status)
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return {"ended": how, "out_of_memory": code == -signal.SIGKILL and out_of_memory_kills() > kills_before}
    # Before it has a session of its own, the child is not yet the leader of a group.
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return {"ended": "killed", "out_of_memory": False}


def main() -> int:
    """Load, announce, then serve the control socket until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    os.set_inheritable(control.fileno(), False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    lines, folder = Lines(control.fileno()), sys.argv[1]
    try:
        serve_control(control, lines)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def serve_control(control: socket.socket, lines: Lines) -> None:
    lines.write({"ok": {"version": load_engine(), "python": sys.version.split()[0]}})
    children: dict[int, int] = {}
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MAX_CONTROL_BYTES, 1)
        if not data:
            break
        request = _loads(data)
        try:
            if request["op"] == "fork":
                kills_before = out_of_memory_kills()
                pid = fork(descriptors[0], request)
                children[pid] = kills_before
                answer: dict[str, Any] = {"ok": {"pid": pid}}
            else:
                answer = {"ok": kill(request["pid"], children)}
        except Exception as error:
            answer = failure(error)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        lines.write(answer)
    for pid in list(children):
        kill(pid, children)


if __name__ == "__main__":
    sys.exit(main())
