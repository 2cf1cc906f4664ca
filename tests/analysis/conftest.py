"""One small grid of synthetic runs, written once and shared by the tests that only read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.factorial import CELLS
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


@pytest.fixture(scope="session")
def ablation_grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All eight cells of the ablation and Figure 6's further arm, three seeds, twelve updates."""
    return write_experiment(
        tmp_path_factory.mktemp("synthetic_ablation"),
        (*CELLS.values(), "rised_all_rubrics"),
        (0, 1, 2),
        updates=12,
        every=6,
        tasks=8,
        name="synthetic_ablation",
    )


@pytest.fixture(scope="session")
def ablation_frames(ablation_grid: Path) -> Frames:
    return Frames(find_experiment(ablation_grid))
