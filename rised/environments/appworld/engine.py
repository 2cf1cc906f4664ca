"""Our side of AppWorld's engine: the process that has it loaded, and the processes forked from that.

Which world runs where, and what to do when one is lost, is the environment's business. How the two sides talk is in
``channel``; the other side is ``server``, a program that our interpreter never imports.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rised.environments.appworld.channel import MAX_ANSWER_BYTES, Channel, ChannelFault
from rised.environments.appworld.settings import AppworldSettings
from rised.environments.base import EnvironmentFault

ENGINE_VERSION = "0.1.3.post1"
SERVER = Path(__file__).with_name("server")
SANDBOX = SERVER / "confinement.py"
DEFAULT_PYTHON = Path(__file__).resolve().parents[3] / ".venv-appworld" / "bin" / "python"
"""Where ``make appworld`` puts the interpreter."""
_PRINTED_TAIL_BYTES = 2000
_PASSED_ON = ("PATH", "LANG", "LC_ALL")
"""Variables that the engine's process gets from ours; tokens and keys stay here."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Interpreter and data root of AppWorld, found and checked."""

    python: Path
    root: Path

    @classmethod
    def find(cls, settings: AppworldSettings) -> Installation:
        """EnvironmentFault that says what is missing and how to get it, both at once if both are."""
        python = Path(settings.python or os.environ.get("APPWORLD_PYTHON") or DEFAULT_PYTHON)
        root_text = settings.root or os.environ.get("APPWORLD_ROOT")
        problems = []
        if not os.access(python, os.X_OK):
            problems.append(
                f"no interpreter at {python}: run `make appworld`, or name one that has appworld=={ENGINE_VERSION} by "
                "the setting environments.appworld.settings.python or the variable APPWORLD_PYTHON"
            )
        if root_text is None:
            problems.append(
                "no data root: set environments.appworld.settings.root or APPWORLD_ROOT to a folder and run "
                "`APPWORLD_ROOT=FOLDER .venv-appworld/bin/appworld download data` once"
            )
        elif not (Path(root_text) / "data" / "tasks").is_dir():
            problems.append(
                f"no data in {root_text} (data/tasks is missing): run "
                f"`APPWORLD_ROOT={root_text} .venv-appworld/bin/appworld download data`"
            )
        if problems:
            raise EnvironmentFault("appworld cannot run: " + "; ".join(problems))
        assert root_text is not None
        return cls(python.absolute(), Path(root_text).resolve())

    def check_sandbox(self, timeout_s: float) -> None:
        """EnvironmentFault when this system allows no sandbox, with the reason and the way out."""
        try:
            tried = subprocess.run(
                [str(self.python), "-s", str(SANDBOX)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=_passed_on(),
                timeout=timeout_s,
            )
            problem = None if tried.returncode == 0 else (tried.stdout + tried.stderr).strip()[-_PRINTED_TAIL_BYTES:]
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem is not None:
            raise EnvironmentFault(
                f"appworld: model-written code cannot be confined here ({problem}). Allow user namespaces (sysctl "
                "user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns; containers: their seccomp "
                "profile), or set environments.appworld.settings.isolate: false and run in a container that holds "
                "nothing else"
            )


def _passed_on() -> dict[str, str]:
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


class Engine:
    """The process that has the engine loaded. It runs no world itself: episodes and verdicts are forked from it."""

    def __init__(self, python: Path, start_timeout_s: float, script: Path = SERVER) -> None:
        """``script`` replaces the server (tests)."""
        self._timeout_s = start_timeout_s
        self._printed = tempfile.TemporaryFile()
        ours, theirs = socket.socketpair()
        # One hash seed for all: iterating over a set of strings must not differ between processes.
        variables = _passed_on() | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2", "TZ": "UTC"}
        self.folder = Path(tempfile.mkdtemp(prefix="appworld-"))
        """For the data roots of the forked processes. We remove it, or that process does if we are killed."""
        try:
            self._process = subprocess.Popen(
                [str(python), "-s", str(script), str(self.folder)],
                stdin=theirs.fileno(),
                stdout=self._printed,
                stderr=self._printed,
                cwd=self.folder,
                env=variables | {"HOME": str(self.folder), "APPWORLD_ROOT": str(self.folder)},
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise EnvironmentFault(
                f"AppWorld's engine does not start in {python}: {error}; run `make appworld`"
            ) from None
        finally:
            theirs.close()
        self._control = Channel(ours)
        try:
            self.version = str(self._take(self._control.receive(start_timeout_s))["version"])
        except ChannelFault as fault:
            reason = self._epitaph(fault)
            self.close()
            raise EnvironmentFault(
                f"AppWorld's engine does not start in {python}: it {reason}\nRun `make appworld` to set it up afresh"
            ) from None
        if self.version != ENGINE_VERSION:
            self.close()
            raise EnvironmentFault(
                f"{python} has appworld {self.version}, this project needs {ENGINE_VERSION}: run `make appworld`"
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, folder: Path, memory_mb: int, isolate: bool = False) -> EngineProcess:
        """A process for one episode or one verdict, whose data root and home are in ``folder``.

        ``isolate``: in a sandbox, which has ``folder``'s data and its own home.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                request = {"op": "fork", "folder": str(folder), "memory_mb": memory_mb, "isolate": isolate}
                self._control.send(request, [theirs.fileno()])
            pid = int(self._take(self._control.receive(self._timeout_s))["pid"])
        except ChannelFault as fault:
            ours.close()
            raise EnvironmentFault(f"AppWorld's engine process {self._epitaph(fault)}") from None
        return EngineProcess(self, pid, Channel(ours))

    def end(self, pid: int) -> tuple[str, bool]:
        """Kill a forked process and its descendants.

        Returns how it had ended, or "killed", and whether the machine may be the cause: the engine's process is gone
        too, or the kernel ended it and has ended processes for want of memory.
        """
        try:
            self._control.send({"op": "kill", "pid": pid})
            answer = self._take(self._control.receive(self._timeout_s))
            return str(answer["ended"]), bool(answer["out_of_memory"])
        except ChannelFault:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            return "lost together with the engine's process", True

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the process and all that were forked from it."""
        self._control.close()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._printed.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _take(self, answer: dict[str, Any]) -> Any:
        if "error" in answer:
            raise EnvironmentFault(f"AppWorld's engine process: {answer['error']}\n{answer.get('traceback', '')}")
        return answer["ok"]

    def _epitaph(self, fault: ChannelFault) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        end = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(end - _PRINTED_TAIL_BYTES, 0))
        printed = self._printed.read().decode(errors="replace").strip()
        return str(fault) + (f"; it printed last:\n{printed}" if printed else "")


class EngineProcess:
    """One forked process. A fault of its channel closes it: nothing that comes after could be trusted."""

    def __init__(self, engine: Engine, pid: int, channel: Channel) -> None:
        self._engine = engine
        self.pid = pid
        self._channel = channel
        self._closed = False
        self.ended, self.machine_failed = "", False

    def ask(self, request: dict[str, Any], timeout_s: float, max_bytes: int = MAX_ANSWER_BYTES) -> Any:
        """The answer to one request. ChannelFault when the process failed, EnvironmentFault when the machine did."""
        try:
            self._channel.send(request)
            answer = self._channel.receive(timeout_s, max_bytes)
        except ChannelFault as fault:
            self.close()
            kind = EnvironmentFault if self.machine_failed else type(fault)
            raise kind(f"AppWorld: an episode's process {fault} ({self.ended})") from None
        if "error" in answer:
            self.close()
            raise ChannelFault(f"AppWorld: {answer['error']}\n{answer.get('traceback', '')}")
        return answer["ok"]

    def close(self) -> None:
        """End it, by force."""
        if self._closed:
            return
        self._closed = True
        self._channel.close()
        self.ended, self.machine_failed = self._engine.end(self.pid)
