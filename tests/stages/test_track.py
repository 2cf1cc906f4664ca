"""Metrics reach the trackers that people use: their real packages write to disk and the values are read back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from analysis.synthetic import write_experiment
from rised.config import ConfigError
from rised.records.shards import RunReader
from stages.track import metrics_by_step, track

NAME = "validation/success/overall"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_experiment(tmp_path, methods=["rised"], seeds=[0], updates=4, tasks=6)


def stored(runs: Path) -> dict[int, float]:
    """What the run's own records say."""
    table = RunReader(runs / "rised" / "seed-0").scan("metrics")
    rows = [row for row in table.to_pylist() if row["name"] == NAME]
    assert rows
    return {row["step"]: row["value"] for row in rows}


def test_tensorboard_holds_every_step(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'rised[trackers]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    track(runs, "tensorboard", tmp_path / "board", None)
    events = EventAccumulator(str(tmp_path / "board" / "rised-seed-0"))
    events.Reload()
    found = {event.step: float(make_ndarray(event.tensor_proto)) for event in events.Tensors(NAME)}
    assert found == pytest.approx(stored(runs))


def test_mlflow_holds_every_step_and_continues_its_run(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'rised[trackers]'")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    track(runs, "mlflow", tmp_path / "flow", None)
    for mark in (tmp_path / "flow").glob(".*.json"):
        mark.unlink()
    track(runs, "mlflow", tmp_path / "flow", None)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/flow/mlflow.db")
    experiment = client.get_experiment_by_name(runs.name)
    found = client.search_runs([experiment.experiment_id])
    assert len(found) == 1
    history = {metric.step: metric.value for metric in client.get_metric_history(found[0].info.run_id, NAME)}
    assert history == pytest.approx(stored(runs))


def test_wandb_writes_an_offline_run(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'rised[trackers]'")
    monkeypatch.setenv("WANDB_SILENT", "true")
    write_experiment(tmp_path, methods=["grpo_64"], seeds=[0], updates=4, tasks=6)
    track(runs, "wandb", tmp_path / "w", None)
    files = list((tmp_path / "w" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    deadline = time.monotonic() + 60  # its own process writes, and may be late on a busy machine
    for file in files:
        while NAME.encode() not in file.read_bytes():
            assert time.monotonic() < deadline, f"{file} holds no {NAME}"
            time.sleep(0.2)


def test_only_new_steps_are_told(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'rised[trackers]'")
    track(runs, "tensorboard", tmp_path / "board", None)
    track(runs, "tensorboard", tmp_path / "board", None)
    assert capsys.readouterr().out == "tensorboard: rised/seed-0: 5 steps\n"


def test_undefined_values_are_left_out(runs: Path) -> None:
    for values in metrics_by_step(runs / "rised" / "seed-0", -1).values():
        assert None not in values.values()


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no runs"):
        track(tmp_path, "tensorboard", tmp_path / "board", None)
