"""Means, intervals and correlations against independent computations and the listed edge cases."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from analysis import statistics
from analysis.correlation import block_bootstrap, correlate


def outcomes(rate: float, seeds: int = 2, tasks: int = 200, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {e: (rng.random((seeds, tasks)) < rate).astype(float) for e in ("alfworld", "webshop")}


def test_correlations_of_the_listed_series_are_exact(cases_dir: Path) -> None:
    cases = json.loads((cases_dir / "50-correlation-edges" / "expected.json").read_text())
    assert len(cases) == 7
    for case in cases:
        found = correlate(case["signal"], case["improvement"])
        assert found.status == case["status"], case["name"]
        for statistic in ("spearman", "pearson"):
            expected, value = case[statistic], getattr(found, statistic)
            if expected is None:
                assert value is None, case["name"]
            else:
                assert value == pytest.approx(expected, abs=1e-12), case["name"]


def test_spearman_agrees_with_scipy_on_random_series_with_ties() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        x, y = rng.integers(0, 5, 12).astype(float), rng.integers(0, 5, 12).astype(float)
        if np.ptp(x) and np.ptp(y):
            assert correlate(list(x), list(y)).spearman == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_one_checkpoint_gives_no_interval_and_constant_draws_are_counted() -> None:
    single = block_bootstrap([1, 2, 3], [1, 2, 4], [50, 50, 50])
    assert single.spearman.reason == "one checkpoint"
    found = block_bootstrap([1.0, 1.0, 2.0, 3.0], [1.0, 2.0, 2.0, 5.0], [1, 1, 2, 2], draws=400)
    assert 0 < found.skipped < found.draws
    assert found.spearman.defined


def test_std_is_that_of_the_sample_and_undefined_for_one_run() -> None:
    assert statistics.mean_std([0.5, 0.7]) == statistics.MeanStd(0.6, pytest.approx(np.std([0.5, 0.7], ddof=1)), 2)
    assert statistics.mean_std([0.5]) == statistics.MeanStd(0.5, None, 1)
    assert statistics.mean_std([float("nan")]) is None


def test_overall_is_the_unweighted_mean_over_environments_whatever_their_panel_size() -> None:
    values = {"alfworld": np.ones((1, 10)), "webshop": np.zeros((1, 990))}
    assert statistics.overall(values) == 0.5


def test_a_task_without_a_valid_rollout_is_left_out_and_not_zero() -> None:
    values = {"alfworld": np.array([[1.0, np.nan, 1.0]])}
    assert statistics.overall(values) == 1.0
    interval = statistics.task_interval(values)
    assert (interval.low, interval.high) == (1.0, 1.0)


def test_task_interval_matches_the_normal_approximation_of_a_large_panel() -> None:
    values = {"alfworld": outcomes(0.4, seeds=1, tasks=400)["alfworld"]}
    rate = statistics.overall(values)
    half = 1.96 * np.sqrt(rate * (1 - rate) / 400)
    interval = statistics.task_interval(values, draws=4000)
    assert interval.low == pytest.approx(rate - half, abs=0.01)
    assert interval.high == pytest.approx(rate + half, abs=0.01)


def test_the_task_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    inside = 0
    for trial in range(120):
        interval = statistics.task_interval({"e": outcomes(0.3, 1, 100, seed=trial)["alfworld"]}, trial, draws=300)
        assert interval.low is not None and interval.high is not None
        inside += interval.low <= 0.3 <= interval.high
    assert 0.88 <= inside / 120 <= 0.995


def test_pairing_over_tasks_is_narrower_than_two_independent_panels() -> None:
    rng = np.random.default_rng(0)
    first = {"e": (rng.random((1, 300)) < 0.5).astype(float)}
    second = {"e": np.where(rng.random((1, 300)) < 0.9, first["e"], 1 - first["e"])}
    paired = statistics.paired_difference(first, second).over_tasks
    alone = statistics.task_interval(first)
    assert paired.high - paired.low < 0.7 * np.sqrt(2) * (alone.high - alone.low)


def test_equal_outcomes_differ_by_exactly_zero_in_every_draw() -> None:
    found = statistics.paired_difference(outcomes(0.4), outcomes(0.4))
    assert found.estimate == 0 and (found.over_tasks.low, found.over_tasks.high) == (0, 0)
    assert not found.over_tasks.excludes_zero


def test_two_seeds_give_no_seed_level_interval_but_say_why() -> None:
    assert statistics.seed_interval([0.4, 0.5]).reason == "n = 2 < 3 seeds"
    assert statistics.paired_difference(outcomes(0.4), outcomes(0.5)).over_seeds.reason == "n = 2 < 3 seeds"
    assert statistics.seed_interval([0.4, 0.5, 0.6]).defined


def test_intervals_depend_on_the_seed_only() -> None:
    values = outcomes(0.4)
    assert statistics.task_interval(values, seed=5) == statistics.task_interval(values, seed=5)
    assert statistics.task_interval(values, seed=5) != statistics.task_interval(values, seed=6)


def test_panels_of_different_size_are_refused() -> None:
    with pytest.raises(ValueError, match="200 and 100 tasks"):
        statistics.paired_difference(outcomes(0.4), outcomes(0.4, tasks=100))


def test_wilson_interval_of_a_known_share() -> None:
    interval = statistics.wilson_interval(30, 100)
    assert interval.low == pytest.approx(0.2189, abs=1e-4) and interval.high == pytest.approx(0.3958, abs=1e-4)
