"""How a run shows itself while it runs: a live view on a terminal, plain lines elsewhere, and a small file to watch.

The file (``.progress.json`` in the run directory) is what ``stages.quickstart`` reads to show several runs at once.
Nothing here feeds back into a run.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rised.records.types import Metric

FILE = ".progress.json"
PARTS = ("rollout_wait", "tag_wait", "reference", "teacher", "actor", "other", "step")
_RECENT = 10


class RunProgress:
    """Progress of one run. Use as a context manager; ``phase`` and ``step`` are called by the loop."""

    def __init__(self, run: str, out: Path, total: int, done: int, console: Console | None = None) -> None:
        self.path = out / FILE
        self.console = console or Console()
        self.snapshot: dict[str, Any] = {
            "run": run,
            "total": total,
            "step": done,
            "phase": "start",
            "validation": {},
            "success": {},
            "parts": {},
            "eta_s": None,
            "pid": os.getpid(),
        }
        self._durations: deque[float] = deque(maxlen=_RECENT)
        self._last = time.monotonic()
        self._live = (
            Live(self._view(), console=self.console, refresh_per_second=2) if self.console.is_terminal else None
        )

    def __enter__(self) -> RunProgress:
        if self._live:
            self._live.start()
        self._publish()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def phase(self, name: str) -> None:
        """What the run is doing now."""
        self.snapshot["phase"] = name
        self._publish()

    def step(self, number: int, metrics: Sequence[Metric], parts: Mapping[str, float]) -> None:
        """A committed step with its metrics and its seconds by part."""
        now = time.monotonic()
        if number > 0:
            self._durations.append(now - self._last)
        self._last = now
        for prefix, key in (("rollout/success/", "success"), ("validation/success/", "validation")):
            found = {m.name.removeprefix(prefix): m.value for m in metrics if m.name.startswith(prefix)}
            self.snapshot[key] = found or self.snapshot[key]
        remaining = self.snapshot["total"] - number
        mean = sum(self._durations) / len(self._durations) if self._durations else None
        self.snapshot |= {
            "step": number,
            "parts": {name: round(seconds, 2) for name, seconds in parts.items()},
            "eta_s": None if mean is None else round(mean * remaining),
        }
        self._publish()
        if not self._live:
            self.console.print(plain_line(self.snapshot), highlight=False, soft_wrap=True)

    def _publish(self) -> None:
        temporary = self.path.with_name(f"{FILE}.{os.getpid()}")
        temporary.write_text(json.dumps(self.snapshot))
        temporary.replace(self.path)
        if self._live:
            self._live.update(self._view())

    def _view(self) -> RenderableType:
        return run_table([self.snapshot])


def plain_line(snapshot: Mapping[str, Any]) -> str:
    """One line of one run, for logs and pipes."""
    parts = snapshot["parts"]
    pieces = [f"{snapshot['run']}  step {snapshot['step']}/{snapshot['total']}"]
    if snapshot["success"]:
        pieces.append("train " + rates(snapshot["success"]))
    if snapshot["validation"]:
        pieces.append("validation " + rates(snapshot["validation"]))
    if parts:
        pieces.append(" ".join(f"{name} {parts[name]:.1f}" for name in PARTS if name in parts) + " s")
    if snapshot["eta_s"] is not None:
        pieces.append(f"ETA {duration(snapshot['eta_s'])}")
    return "  |  ".join(pieces)


def run_table(snapshots: Sequence[Mapping[str, Any]]) -> RenderableType:
    """A table with one row per run."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("run", "", "step", "doing", "train success", "validation", "s/step", "ETA"):
        table.add_column(heading, no_wrap=heading != "validation")
    for snapshot in snapshots:
        finished = snapshot["step"] >= snapshot["total"]
        table.add_row(
            snapshot["run"],
            ProgressBar(total=max(1, snapshot["total"]), completed=snapshot["step"], width=16),
            f"{snapshot['step']}/{snapshot['total']}",
            "done" if finished else snapshot["phase"],
            rates(snapshot["success"]),
            rates(snapshot["validation"]),
            f"{snapshot['parts'].get('step', 0):.1f}" if snapshot["parts"] else "",
            "" if snapshot["eta_s"] is None or finished else duration(snapshot["eta_s"]),
        )
    latest = [s for s in snapshots if s["parts"]]
    lines = [
        Text(f"{s['run']}: " + ", ".join(f"{n} {s['parts'][n]:.1f} s" for n in PARTS if n in s["parts"]), style="dim")
        for s in latest
    ]
    return Group(table, *lines)


def rates(values: Mapping[str, float | None]) -> str:
    """``alfworld 23% webshop 40%``; an undefined rate is n/a."""
    return " ".join(f"{name} {'n/a' if rate is None else f'{rate:.0%}'}" for name, rate in values.items())


def duration(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
