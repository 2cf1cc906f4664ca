"""MLflow: a run in the store that MLFLOW_TRACKING_URI names, or in a SQLite file in the folder."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from stages.trackers.base import TrackedRun, Tracker, need

_BATCH = 900
"""Metrics in one call; MLflow takes at most 1,000."""


class MLflow(Tracker):
    """Metrics by step and settings as parameters; a run of the same name is continued."""

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        mlflow = need("mlflow")
        self._metric = need("mlflow.entities").Metric
        folder.mkdir(parents=True, exist_ok=True)
        store = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder.absolute()}/mlflow.db")
        self._client = mlflow.MlflowClient(tracking_uri=store)
        found = self._client.get_experiment_by_name(run.experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(run.experiment)
        known = self._client.search_runs([experiment], f"attributes.run_name = '{run.name}'")
        if known:
            self._run = known[0].info.run_id
        else:
            self._run = self._client.create_run(experiment, run_name=run.name).info.run_id
            for key, value in run.settings.items():
                self._client.log_param(self._run, key, value)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + _BATCH])

    def close(self) -> None:
        self._client.set_terminated(self._run)


TRACKER = MLflow
