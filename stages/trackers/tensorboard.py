"""TensorBoard: one event folder a run. Watch with ``tensorboard --logdir FOLDER``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stages.trackers.base import TrackedRun, Tracker, need


class TensorBoard(Tracker):
    """Scalars by step, and the settings as one text."""

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        self._writer = need("tensorboard.summary").Writer(str(folder / run.name))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


TRACKER = TensorBoard
