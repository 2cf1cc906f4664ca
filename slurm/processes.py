"""Processes of this machine, by what /proc tells of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

INTERRUPT_S = 5.0


@dataclass(frozen=True, slots=True)
class Process:
    """``environment``: the variables with which it began, as NAME=VALUE."""

    pid: int
    command: str
    environment: frozenset[str]

    @property
    def program(self) -> str:
        """Its name without folder; a daemon may have replaced its command by "name: what it does"."""
        return Path(self.command.split("\0")[0].split(":")[0]).name


def processes() -> Iterator[Process]:
    """Every process that may be looked at."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, variables = (
                (folder / name).read_bytes().decode(errors="replace") for name in ("cmdline", "environ")
            )
        except OSError:
            continue
        yield Process(int(folder.name), command, frozenset(variables.split("\0")))


def kill(pids: Iterable[int | None]) -> None:
    """SIGKILL to each that is still there."""
    for pid in filter(None, pids):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def end_with_children(controller: int) -> None:
    """End submitit's controller and its tasks: by SIGINT, or where a shell had them ignore it by SIGKILL.

    What a task runs dies with it.
    """
    tasks = _children(controller)
    for number, patience_s in ((signal.SIGINT, INTERRUPT_S), (signal.SIGKILL, 0.0)):
        for pid in (controller, *tasks):
            if is_alive(pid):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        deadline = time.monotonic() + patience_s
        while any(map(is_alive, (controller, *tasks))) and time.monotonic() < deadline:
            time.sleep(0.1)


def _children(parent: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if _process_fields(pid)[1:2] == [str(parent)]]


def _process_fields(pid: int) -> list[str]:
    """State, parent and so on as /proc tells; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def process_start(pid: int) -> str:
    """When a process began, in the machine's ticks; "" if it is gone. Process numbers come again, this does not."""
    fields = _process_fields(pid)
    return fields[19] if fields else ""


def is_alive(pid: int, born: str = "") -> bool:
    """Whether the process runs, and is the one that began at ``born``; one that waits for its parent has ended."""
    fields = _process_fields(pid)
    return bool(fields) and fields[0] not in "ZX" and born in ("", fields[19])
