"""The parent's side of one worker process: start it, exchange framed messages with it, end it.

Writing never blocks on a worker that does not read, and a worker that died tells why: the end of what it printed.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from typing import Any

from rised.environments.base import EnvironmentFault
from rised.environments.worker import HEADER, encode_message

SEND_TIMEOUT_S = 30.0
PRINTED_TAIL_BYTES = 2000


class WorkerDied(EnvironmentFault):
    """The process ended or hangs; what it held is gone."""


class WorkerProcess:
    """One worker. ``deadline`` (monotonic seconds) and ``episodes_begun`` are the pool's notes about it."""

    def __init__(self) -> None:
        # One hash seed for all: iterating over a set of strings must not differ between processes.
        variables = os.environ | {
            "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
        }
        self._printed = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rised.environments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=variables,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin = self._process.stdin.fileno()
        self.stdout = self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self.stdout, False)
        self._received = bytearray()
        self.deadline = 0.0
        self.episodes_begun = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: dict[str, Any]) -> None:
        """Write one request; raises :class:`WorkerDied` if the process is gone or does not read."""
        data = memoryview(encode_message(message))
        deadline = time.monotonic() + SEND_TIMEOUT_S
        while data:
            try:
                data = data[os.write(self._stdin, data) :]
            except BlockingIOError:
                if not select.select([], [self._stdin], [], max(deadline - time.monotonic(), 0.0))[1]:
                    raise WorkerDied(f"worker {self.pid} does not read its requests") from None
            except BrokenPipeError:
                raise WorkerDied(self._epitaph()) from None

    def receive_available(self) -> dict[str, Any] | None:
        """The next answer if it has arrived completely, else None."""
        while True:
            try:
                chunk = os.read(self.stdout, 1 << 20)
            except BlockingIOError:
                break
            if not chunk:
                raise WorkerDied(self._epitaph())
            self._received += chunk
        if len(self._received) < HEADER.size:
            return None
        end = HEADER.size + HEADER.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        message: dict[str, Any] = json.loads(self._received[HEADER.size : end])
        del self._received[:end]
        return message

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the next answer."""
        deadline = time.monotonic() + timeout_s
        while (message := self.receive_available()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.stdout], [], [], left)[0]:
                raise WorkerDied(f"worker {self.pid} did not answer within {timeout_s:g} s")
        return message

    def close(self) -> None:
        """End the process, by force: it holds nothing that is not the pool's."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        self._printed.close()

    def _epitaph(self) -> str:
        try:
            code: int | None = self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            code = None
        end = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(end - PRINTED_TAIL_BYTES, 0))
        printed = self._printed.read().decode(errors="replace").strip()
        state = "closed its output" if code is None else f"ended with {_status(code)}"
        return f"worker {self.pid} {state}" + (f"; it printed last:\n{printed}" if printed else "")


def _status(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
