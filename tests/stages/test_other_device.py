"""Stages on a device that is not the CPU: every tensor is where it belongs, and the results are the CPU's.

The device is emulated (tests/emulated_device.py): no GPU is needed, and none is tested.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from emulated_device import NAME
from stage_commands import SingleSource, in_subprocess

from rised.records.shards import RunReader

pytestmark = pytest.mark.slow  # each run imports torch and loads the policy anew; test_devices tests the choice
RATE = "learner.learning_rate=1e-4"
"""So small that rounding does not grow into other episodes."""
SECONDS_OR_ROUNDING = ("time", "save", "sampler")


@pytest.fixture
def on(repository: Path) -> Callable[..., None]:
    """Runs the job on a device; fails with what it said."""
    job = repository / "tests" / "stages" / "other_device_job.py"

    def run(where: str, *arguments: object) -> None:
        done = in_subprocess(repository, [job, repository, where, *arguments])
        assert done.code == 0, done.err[-3000:]

    return run


@pytest.fixture
def trained_on(on: Callable[..., None], tmp_path: Path) -> Callable[..., RunReader]:
    """Trains on a device with a method and overrides; the run."""

    def train(where: str, *arguments: str) -> RunReader:
        (tmp_path / where).mkdir()
        on(where, "train", tmp_path / where, *arguments)
        return RunReader(tmp_path / where / "run")

    return train


def metrics(run: RunReader) -> dict[tuple[int, str], float]:
    rows = run.scan("metrics").to_pylist()
    return {(row["step"], row["name"]): row["value"] for row in rows if row["value"] is not None}


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("rised",), id="reference, teacher, players beside the learner"),
        pytest.param(
            (
                "rised",
                "pipeline.lag=0",
                "learner.layout=packed",
                "learner.activation_checkpointing=true",
                "learner.gradient_share_every=1",
                "learner.logits_chunk_tokens=64",
            ),
            id="packed rows, logits by chunks, shares of the gradient",
        ),
    ],
)
def test_a_run_with_a_resume_is_the_cpus(trained_on: Callable[..., RunReader], arguments: tuple[str, ...]) -> None:
    cpu, other = (trained_on(where, *arguments, RATE) for where in ("cpu", NAME))
    episodes, others = (run.scan("rollouts").to_pylist() for run in (cpu, other))
    assert [row["token_ids"] for row in episodes] == [row["token_ids"] for row in others]
    for one, found in zip(episodes, others, strict=True):
        np.testing.assert_allclose(one["logprobs"], found["logprobs"], atol=1e-4)
    expected, measured = metrics(cpu), metrics(other)
    assert expected.keys() == measured.keys()
    assert expected[1, "gradient_norm"] > 0
    for key, value in expected.items():
        if not key[1].startswith(SECONDS_OR_ROUNDING):
            assert measured[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


def test_players_in_bfloat16_that_play_ahead_agree_with_the_learner(trained_on: Callable[..., RunReader]) -> None:
    found = metrics(trained_on(NAME, "rised", "model.rollout_dtype=bfloat16", "pipeline.lag=2", RATE))
    assert 1e-4 < found[1, "sampler_difference_mean"] < 0.1


def test_the_gradient_signal_is_the_cpus(on: Callable[..., None], single_source: SingleSource, tmp_path: Path) -> None:
    signals = []
    for where in ("cpu", NAME):
        shutil.copytree(single_source.run, tmp_path / where)
        on(where, "gradient", single_source.config, single_source.tasks, tmp_path / where)
        signals.append(RunReader(tmp_path / where / "gradient_signal").scan("gradients").to_pylist())
    assert any(row["norm"] > 0 for row in signals[0])
    for expected, found in zip(*signals, strict=True):
        for name in ("step", "split", "environment", "signal", "rollout_count"):
            assert found[name] == expected[name]
        assert found["norm"] == pytest.approx(expected["norm"], rel=1e-3, abs=1e-7)
