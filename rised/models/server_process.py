"""One server process of a model: started in a process group of its own, ended with all that it started.

A guard stands between the two, so that nothing of a server outlives a starter that is killed.

What is served and how it is asked is the caller's; the judge's server and the policy's are such processes.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rised.models.errors import ModelError
from rised.models.server_settings import ServerSettings

TAIL_LINES = 30
_TAIL_BYTES = 20_000
_GUARD = (sys.executable, "-S", str(Path(__file__).with_name("server_guard.py")))


class ServerProcess:
    """A place for one server: its number, its slice of the GPUs, its log, and the process that fills it.

    ``leavings``: folders that are to go if this process is killed and cannot remove them itself. ``shielded``: it does
    not hear what Slurm tells every process of a job, and ends by SIGINT.
    """

    def __init__(
        self,
        number: int,
        settings: ServerSettings,
        devices: Sequence[str],
        log: Path,
        leavings: Sequence[Path] = (),
        shielded: bool = False,
    ) -> None:
        self.leavings, self.shielded = leavings, shielded
        self.number, self.settings, self.devices, self.log = number, settings, devices, log
        self.restarts = 0
        self.healthy = False
        self.started = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Number of the guard's process, and of the group that the server and all that it started are in."""
        return self._process.pid if self._process else None

    def launch(
        self, words: Sequence[str], environment: Mapping[str, str] | None = None, without: Sequence[str] = ()
    ) -> None:
        """Start ``words``. OSError if there is no such program.

        ``environment`` goes before the settings' own variables; ``without`` names inherited ones that are left out.
        """
        if shutil.which(words[0]) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), words[0])
        self.healthy, self.started = False, time.monotonic()
        inherited = {name: value for name, value in os.environ.items() if name not in without}
        variables = inherited | dict(environment or {}) | self.settings.environment
        if self.devices:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_GUARD, *(["--shield"] if self.shielded else []), *map(str, self.leavings), "--", *words],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def dead(self) -> bool:
        """Whether the server's process has ended. It is not reaped, so that its process group keeps its number."""
        return self._process is None or _has_ended(self._process.pid)

    def too_late(self) -> bool:
        """Whether it had its time to become ready."""
        return time.monotonic() - self.started > self.settings.start_timeout_s

    def ask_to_end(self) -> None:
        """SIGTERM (SIGINT to a shielded one) to the server and what it started."""
        self._signal(signal.SIGINT if self.shielded else signal.SIGTERM)

    def end(self, grace_s: float) -> None:
        """Wait up to ``grace_s`` for the server to go, kill what is left of its group, and reap it."""
        process = self._process
        if process is None:
            return
        deadline = time.monotonic() + grace_s
        while not _has_ended(process.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._signal(signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._process = None
        self.healthy = False

    def tail(self) -> str:
        """The last lines of the log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError as error:
            return f"(no log: {error.strerror})"
        return "\n".join(lines[-TAIL_LINES:]) or "(the log is empty)"

    def _signal(self, number: int) -> None:
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)


def fill_in(words: Sequence[str], values: Mapping[str, object], where: str) -> list[str]:
    """The words of a command with their placeholders filled. ModelError names one that is not known."""
    filled = []
    for word in words:
        try:
            filled.append(word.format_map(values))
        except (KeyError, ValueError, IndexError) as error:
            known = ", ".join(f"{{{name}}}" for name in values)
            raise ModelError(
                f"{where}.command: {word!r} cannot be filled in ({error}); known are {known}, and a brace that "
                "stays is written twice"
            ) from None
    return filled


def device_slices(server: ServerSettings, environment: Mapping[str, str], where: str) -> list[list[str]]:
    """The GPUs of each replica, from CUDA_VISIBLE_DEVICES or counted from 0. ModelError if there are too few."""
    if not server.use_gpus:
        return [[] for _ in range(server.replicas)]
    size, needed = server.tensor_parallel, server.replicas * server.tensor_parallel
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    devices = (
        [str(i) for i in range(needed)] if visible is None else [d.strip() for d in visible.split(",") if d.strip()]
    )
    if len(devices) < needed:
        raise ModelError(
            f"{where}: {server.replicas} replicas of {size} GPUs need {needed}, CUDA_VISIBLE_DEVICES has "
            f"{len(devices)} ({visible!r}); ask for more GPUs, or lower {where}.replicas or tensor_parallel"
        )
    return [devices[i * size : (i + 1) * size] for i in range(server.replicas)]


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
