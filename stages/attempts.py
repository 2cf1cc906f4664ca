"""How often a run was started, how each start ended, and how many steps had to be done again.

One JSON line an event in ``.attempts.jsonl`` of the run directory. Nothing here feeds back into a run.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

FILE = ".attempts.jsonl"
STOPPED = 75
"""Exit code of a run that ended after a step because it was asked to (EX_TEMPFAIL: the same command goes on)."""

PEER_LOST = 76
"""Exit code of a process of a run whose connection to another one broke: that one, or its node, tells why."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """``repeated_steps``: starts after an attempt that ended in the middle of a step, which each has to repeat.

    The step before may have to be repeated too, where its state was still being written; that is not counted.
    """

    starts: int
    repeated_steps: int


class AttemptLog:
    """The events of one run directory, and the wish to stop (SIGUSR2) of the present attempt."""

    def __init__(self, run: Path) -> None:
        self.path = run / FILE
        self.stop_asked = False

    def begin(self, next_step: int) -> None:
        """A start; from now on SIGUSR2 asks for a stop after the current step."""
        signal.signal(signal.SIGUSR2, self._ask)
        self._append(
            {"event": "started", "next_step": next_step, "host": socket.gethostname(), "job": os.getenv("SLURM_JOB_ID")}
        )

    def end(self, event: str, last_step: int) -> None:
        """An orderly end: ``finished`` or ``stopped``."""
        self._append({"event": event, "last_step": last_step})

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.stop_asked = True

    def _append(self, event: dict[str, object]) -> None:
        with self.path.open("a") as stream:
            stream.write(json.dumps(event | {"time": time.time()}) + "\n")


def read_events(path: Path) -> list[dict[str, Any]]:
    """Events of a file of JSON lines; none if it is missing. A torn last line (a kill while writing) is passed over."""
    found = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def read_attempts(run: Path) -> Attempts:
    """Counts over a run's events; zeros if it never began."""
    starts = repeated = 0
    open_attempt = False
    for event in read_events(run / FILE):
        begins = event.get("event") == "started"
        starts += begins
        repeated += begins and open_attempt
        open_attempt = begins
    return Attempts(starts, repeated)
