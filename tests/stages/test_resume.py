"""A run that is killed at any moment ends byte-equal to one that never was."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_experiments import SmallExperiment, assert_every_update_changed_the_weights

from rised.environments.pool import EnvironmentPool
from rised.learner.learner import Learner
from rised.records import faults
from rised.records.digest import reproducible_digest

UPDATES = 3


def in_child(action: Callable[[], None], kill_once: Callable[[], bool] | None = None, and_after_s: float = 0.0) -> int:
    """Run ``action`` in a forked process, killing it a while after something holds; the signal that ended it (or 0)."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    if kill_once is not None:
        while not kill_once() and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.005)
        time.sleep(and_after_s)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the run failed by itself"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def digest(run: Path) -> dict[str, str]:
    return reproducible_digest(run)


@pytest.fixture(scope="module")
def train_small(learning_experiment: SmallExperiment) -> Callable[[Path], None]:
    """Trains RISED on the experiment into a folder, or goes on with the run that is there."""
    return lambda out: learning_experiment.train(out, "rised")


@pytest.fixture(scope="module")
def undisturbed(train_small, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], int]:
    """Digest of an uninterrupted run, and how many places it offers to die at."""
    folder = tmp_path_factory.mktemp("undisturbed")
    points = folder / "points"

    def run() -> None:
        faults.arm(list_to=str(points))
        train_small(folder / "run")

    assert in_child(run) == 0
    assert_every_update_changed_the_weights(folder / "run", tiny_policy)
    return digest(folder / "run"), len(points.read_text().splitlines())


def test_the_same_seed_twice_gives_the_same_bytes(train_small, undisturbed, tmp_path: Path) -> None:
    assert in_child(lambda: train_small(tmp_path / "run")) == 0
    assert digest(tmp_path / "run") == undisturbed[0]


@pytest.mark.parametrize("count", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_a_kill_at_places_where_the_disk_is_touched_changes_nothing(
    train_small, undisturbed, tmp_path: Path, count: int
) -> None:
    expected, points = undisturbed
    assert points >= 20
    killed = 0
    for point in random.Random(0).sample(range(1, points + 1), count):
        run = tmp_path / f"run-{point}"

        def die_there(run: Path = run, point: int = point) -> None:
            faults.arm(kill_at=point)
            train_small(run)

        killed += in_child(die_there) == signal.SIGKILL
        assert in_child(lambda run=run: train_small(run)) == 0
        assert digest(run) == expected, f"killed at point {point}"
    assert killed == count


def test_kills_at_random_moments_of_one_run_change_nothing(train_small, undisturbed, tmp_path: Path) -> None:
    """A moment is some milliseconds after a step was committed, on a machine of any speed."""
    expected, _ = undisturbed
    moments, run = random.Random(1), tmp_path / "run"
    for step in range(UPDATES):
        manifest = run / "manifests" / f"step-{step:06d}.json"
        killed = in_child(lambda: train_small(run), manifest.exists, moments.uniform(0, 0.1))
        assert killed == signal.SIGKILL or step > 0, "with fewer updates to go the run may have ended by then"
    assert in_child(lambda: train_small(run)) == 0
    assert digest(run) == expected


def test_a_finished_run_writes_its_mark_again_without_training(
    train_small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert in_child(lambda: train_small(run)) == 0
    (run / "DONE").unlink()
    before = digest(run)
    for action in (Learner.update, EnvironmentPool.reset_many):
        monkeypatch.setattr(f"{action.__module__}.{action.__qualname__}", lambda *_: pytest.fail("it trains again"))
    train_small(run)
    assert (run / "DONE").exists()
    assert {k: v for k, v in digest(run).items() if k != "DONE"} == before
