"""Processes that take turns: one works, the others wait, so that a shared machine treats all alike.

A worker says a line of JSON after each turn and begins the next one when it is told. Standard library only: workers run
under other interpreters.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

MARK = "@turn "


class Told:
    """A worker's side, on its standard input and output."""

    def wait(self) -> None:
        """Until the next turn; ends the process when there is none."""
        if sys.stdin.readline().strip() != "go":
            sys.stdout.flush()
            os._exit(0)

    def say(self, **values: Any) -> None:
        """What the turn came to."""
        print(f"{MARK}{json.dumps(values)}", flush=True)


class Worker:
    """The driver's side of one process. A context manager: the process ends with it."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Any) -> None:
        self.command = command
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | environment
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def heard(self) -> dict[str, Any]:
        """What it says next. RuntimeError if it ended instead."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                found: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return found
        raise RuntimeError(f"{' '.join(self.command)} ended with {self._process.wait()}: see its log")

    def turn(self) -> dict[str, Any]:
        """Let it have one turn."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self.heard()
