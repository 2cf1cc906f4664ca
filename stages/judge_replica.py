"""One server process of the judge's model: started in a process group of its own, ended with all that it started."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from rised.rubrics.base import RubricError
from rised.rubrics.settings import JudgeServerSettings, LlmJudgeSettings

TAIL_LINES = 30
_TAIL_BYTES = 20_000
_LAST_PORT = 65535
_BLOCK, _BLOCKS = 16, 64
_PR_SET_PDEATHSIG = 1
_ANY = frozenset({"0.0.0.0", "::", ""})


class Replica:
    """A place for one server: its number, its slice of the GPUs, its log, and the process that fills it."""

    def __init__(
        self, number: int, judge: LlmJudgeSettings, server: JudgeServerSettings, devices: Sequence[str], log: Path
    ) -> None:
        self.number, self.judge, self.server, self.devices, self.log = number, judge, server, devices, log
        self.port = 0
        self.restarts = 0
        self.healthy = False
        self.failed_checks = 0
        self.started = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The base URL that clients use."""
        return f"http://{self.server.advertise or socket.gethostname()}:{self.port}/v1"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, taken: frozenset[int]) -> None:
        """Start the server on a free port that is not among ``taken``. OSError if there is no such program."""
        self.port = free_port(self.server.bind, first_port(self.server, os.environ), taken)
        self.healthy, self.failed_checks, self.started = False, 0, time.monotonic()
        environment = os.environ | self.server.environment
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command(self.judge, self.server, self.port),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_prepare_child,
            )

    def dead(self) -> bool:
        """Whether the server's process has ended. It is not reaped, so that its process group keeps its number."""
        return self._process is None or _has_ended(self._process.pid)

    def check(self, client: httpx.Client) -> bool:
        """Ask the health route; counts failures in a row."""
        host = "127.0.0.1" if self.server.bind in _ANY else self.server.bind
        try:
            ok = client.get(f"http://{host}:{self.port}{self.server.health_path}").status_code == 200
        except httpx.HTTPError:
            ok = False
        self.failed_checks = 0 if ok else self.failed_checks + 1
        return ok

    def ask_to_end(self) -> None:
        """SIGTERM to the server and what it started."""
        self._signal(signal.SIGTERM)

    def end(self, grace_s: float) -> None:
        """Wait up to ``grace_s`` for the server to go, kill what is left of its group, and reap it."""
        if self._process is None:
            return
        deadline = time.monotonic() + grace_s
        while not _has_ended(self._process.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._signal(signal.SIGKILL)
        self._process.wait()
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
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def command(judge: LlmJudgeSettings, server: JudgeServerSettings, port: int) -> list[str]:
    """The server's command with its placeholders filled. RubricError names one that is not known."""
    values = {
        "python": server.python or sys.executable,
        "model": judge.model,
        "weights": server.weights or judge.model,
        "revision": judge.revision,
        "host": server.bind,
        "port": port,
        "tensor_parallel": server.tensor_parallel,
    }
    words = []
    for word in (*server.command, *server.arguments):
        try:
            words.append(word.format_map(values))
        except (KeyError, ValueError, IndexError) as error:
            known = ", ".join(f"{{{name}}}" for name in values)
            raise RubricError(
                f"judge_server.command: {word!r} cannot be filled in ({error}); known are {known}, and a brace that "
                "stays is written twice"
            ) from None
    return words


def slices(server: JudgeServerSettings, environment: Mapping[str, str]) -> list[list[str]]:
    """The GPUs of each replica, from CUDA_VISIBLE_DEVICES or counted from 0. RubricError if there are too few."""
    if not server.use_gpus:
        return [[] for _ in range(server.replicas)]
    size, needed = server.tensor_parallel, server.replicas * server.tensor_parallel
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    devices = (
        [str(i) for i in range(needed)] if visible is None else [d.strip() for d in visible.split(",") if d.strip()]
    )
    if len(devices) < needed:
        raise RubricError(
            f"judge_server: {server.replicas} replicas of {size} GPUs need {needed}, CUDA_VISIBLE_DEVICES has "
            f"{len(devices)} ({visible!r}); ask for more GPUs, or lower judge_server.replicas or tensor_parallel"
        )
    return [devices[i * size : (i + 1) * size] for i in range(server.replicas)]


def first_port(server: JudgeServerSettings, environment: Mapping[str, str]) -> int:
    """Where this job looks for ports. Two that start on one host look at different places: a server takes its port
    only half a minute after it was found free, and vLLM shares a port with another without a word.
    """
    digits = "".join(c for c in environment.get("SLURM_JOB_ID", "") if c.isdecimal())
    return server.first_port + _BLOCK * ((int(digits) if digits else os.getpid()) % _BLOCKS)


def free_port(host: str, first: int, taken: frozenset[int]) -> int:
    """The first free port from ``first`` on. RubricError if none is."""
    for port in range(first, _LAST_PORT + 1):
        if port in taken:
            continue
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if isinstance(error, socket.gaierror):
                    raise RubricError(f"judge_server.bind: {host!r} is no address of this host") from None
                continue
            return port
    raise RubricError(f"no free port from {first} on at {host}; set judge_server.bind or first_port")


def _prepare_child() -> None:
    """Default signals in the server, and its end with the stage's: Linux sends SIGKILL when that is killed."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
