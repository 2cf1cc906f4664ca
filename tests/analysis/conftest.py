"""One small grid of synthetic runs, written once and shared by the tests that only read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.frames import Frames
from analysis.runs import find_experiment
from analysis.synthetic import write_experiment


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """grpo_64, rised and round_robin_variance, two seeds, four updates; seed 1 of the last is unfinished."""
    return write_experiment(
        tmp_path_factory.mktemp("synthetic"),
        ("grpo_64", "rised", "round_robin_variance"),
        (0, 1),
        updates=4,
        tasks=12,
        unfinished=[("round_robin_variance", 1)],
    )


@pytest.fixture(scope="session")
def frames(grid: Path) -> Frames:
    return Frames(find_experiment(grid))
