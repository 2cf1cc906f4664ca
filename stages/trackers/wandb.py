"""Weights & Biases, offline: nothing is sent. ``wandb sync FOLDER/wandb/offline-run-*`` uploads what one wants to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from stages.trackers.base import TrackedRun, Tracker, need


class WeightsAndBiases(Tracker):
    """One offline run for each time it is opened; equal ids make them one run when they are uploaded."""

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._run = need("wandb").init(
            project=run.experiment,
            name=run.name,
            id=hashlib.sha256(f"{run.experiment}/{run.name}".encode()).hexdigest()[:16],
            resume="allow",
            config=dict(run.settings),
            dir=str(folder),
            mode="offline",
            reinit="create_new",  # else a second run of this process would be written into the first
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


TRACKER = WeightsAndBiases
