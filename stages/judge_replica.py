"""One server process of the judge's model: which command it is, at which port it listens, whether it is well."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from rised.models.server_process import ServerProcess, device_slices, fill_in
from rised.rubrics.base import RubricError
from rised.rubrics.settings import JudgeServerSettings, LlmJudgeSettings

WHERE = "judge_server"
_LAST_PORT = 65535
_BLOCK, _BLOCKS = 16, 64
_ANY = frozenset({"0.0.0.0", "::", ""})


class Replica(ServerProcess):
    """A server of the judge, at a port of its own."""

    def __init__(
        self, number: int, judge: LlmJudgeSettings, server: JudgeServerSettings, devices: Sequence[str], log: Path
    ) -> None:
        super().__init__(number, server, devices, log)
        self.judge, self.server = judge, server
        self.port = 0
        self.failed_checks = 0

    @property
    def url(self) -> str:
        """The base URL that clients use."""
        return f"http://{self.server.advertise or socket.gethostname()}:{self.port}/v1"

    def start(self, taken: frozenset[int]) -> None:
        """Start the server on a free port that is not among ``taken``. OSError if there is no such program."""
        self.port = free_port(self.server.bind, first_port(self.server, os.environ), taken)
        self.failed_checks = 0
        self.launch(command(self.judge, self.server, self.port))

    def check(self, client: httpx.Client) -> bool:
        """Ask the health route; counts failures in a row."""
        host = "127.0.0.1" if self.server.bind in _ANY else self.server.bind
        try:
            ok = client.get(f"http://{host}:{self.port}{self.server.health_path}").status_code == 200
        except httpx.HTTPError:
            ok = False
        self.failed_checks = 0 if ok else self.failed_checks + 1
        return ok


def command(judge: LlmJudgeSettings, server: JudgeServerSettings, port: int) -> list[str]:
    """The server's command with its placeholders filled. ModelError names one that is not known."""
    values = {
        "python": server.python or sys.executable,
        "model": judge.model,
        "weights": server.weights or judge.model,
        "revision": judge.revision,
        "host": server.bind,
        "port": port,
        "tensor_parallel": server.tensor_parallel,
    }
    return fill_in((*server.command, *server.arguments), values, WHERE)


def slices(server: JudgeServerSettings, environment: Mapping[str, str]) -> list[list[str]]:
    """The GPUs of each replica. ModelError if there are too few."""
    return device_slices(server, environment, WHERE)


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
