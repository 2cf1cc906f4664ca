"""Means, spreads and bootstrap intervals of pass rates; pure functions on arrays.

Array suffixes: ``_S`` seeds (runs of one method), ``_T`` tasks of the shared panel, ``_D`` bootstrap draws. A pass
rate is the mean over tasks of each task's share of successful valid rollouts (``rised.statistics.pass_rates``);
*overall* is the unweighted mean over the environments [paper]. NaN marks a task without a valid rollout: it is left
out, never counted as 0. Two sources of chance are kept apart because they answer different questions: another draw of
*tasks* (same trained weights), and another training *seed* (same tasks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2000
LEVEL = 0.95
MIN_SEEDS = 3
"""Below this a resampling of seeds says nothing: two values give a two-point distribution."""

FEW_SEEDS = "With three to five runs an interval over seeds is too narrow: it can only draw the values that were seen."
"""Stands below every table with such an interval."""

Outcomes = Mapping[str, np.ndarray]
"""environment -> task pass rates, shape (S, T of that environment), same task order for every method."""


@dataclass(frozen=True, slots=True)
class MeanStd:
    """Mean and sample standard deviation (n - 1) over ``n`` runs; ``std`` is None for a single run."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Interval:
    """A percentile interval, or the reason why there is none. ``excludes_zero`` is only meaningful for differences."""

    low: float | None
    high: float | None
    level: float = LEVEL
    reason: str = ""

    @property
    def defined(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class Difference:
    """``estimate`` = overall pass rate of the first method minus that of the second, with two paired intervals."""

    estimate: float
    over_tasks: Interval
    over_seeds: Interval
    task_count: int


def mean_std(values: Sequence[float]) -> MeanStd | None:
    """Mean and sample std of the defined values, exactly 0 where all are equal; None when there is none."""
    kept = np.asarray([v for v in values if v is not None and not np.isnan(v)], dtype=np.float64)
    if kept.size == 0:
        return None
    if kept.size > 1 and np.ptp(kept) == 0:
        return MeanStd(float(kept[0]), 0.0, int(kept.size))
    return MeanStd(float(kept.mean()), float(kept.std(ddof=1)) if kept.size > 1 else None, int(kept.size))


def percentile_interval(draws_D: np.ndarray, level: float = LEVEL) -> Interval:
    """The central ``level`` share of the finite draws."""
    kept = draws_D[np.isfinite(draws_D)]
    if kept.size == 0:
        return Interval(None, None, level, "no draw is defined")
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(kept, [tail, 100 - tail])
    return Interval(float(low), float(high), level)


def wilson_interval(successes: int, n: int, level: float = LEVEL) -> Interval:
    """Wilson's score interval of a share: the chance of a finite panel in one evaluation."""
    from scipy.stats import binomtest

    if n == 0:
        return Interval(None, None, level, "no tasks")
    found = binomtest(int(successes), int(n)).proportion_ci(confidence_level=level, method="wilson")
    return Interval(float(found.low), float(found.high), level)


def overall(outcomes: Outcomes) -> float:
    """Unweighted mean over environments of the mean task pass rate over seeds and tasks."""
    return float(np.mean([_pass_rate(values_ST) for values_ST in outcomes.values()]))


def seed_overall_S(outcomes: Outcomes) -> np.ndarray:
    """Overall pass rate of each seed, shape (S,)."""
    return np.mean([np.nanmean(values_ST, axis=1) for values_ST in outcomes.values()], axis=0)


def task_interval(outcomes: Outcomes, seed: int = 0, draws: int = DRAWS, level: float = LEVEL) -> Interval:
    """Bootstrap over tasks, within each environment, seeds held fixed: the interval of the overall pass rate."""
    if not outcomes or any(values.shape[1] == 0 for values in outcomes.values()):
        return Interval(None, None, level, "an environment has no tasks")
    return percentile_interval(task_draws(outcomes, np.random.default_rng(seed), draws), level)


def seed_interval(values_S: Sequence[float], seed: int = 0, draws: int = DRAWS, level: float = LEVEL) -> Interval:
    """Bootstrap over training seeds of the mean of one number per run."""
    kept = np.asarray([v for v in values_S if v is not None and not np.isnan(v)], dtype=np.float64)
    if kept.size < MIN_SEEDS:
        return Interval(None, None, level, f"n = {kept.size} < {MIN_SEEDS} seeds")
    picks_DS = np.random.default_rng(seed).integers(0, kept.size, size=(draws, kept.size))
    return percentile_interval(kept[picks_DS].mean(axis=1), level)


def paired_difference(
    first: Outcomes, second: Outcomes, seed: int = 0, draws: int = DRAWS, level: float = LEVEL
) -> Difference:
    """Overall difference of two methods on one task panel; a draw uses the same tasks for both.

    The seed-level interval resamples each method's seeds independently (seeds are not paired: equal numbers
    share a task order, not a trajectory). Raises ValueError when the panels differ in shape.
    """
    _check_same_panel(first, second)
    task_draws_D = task_draws(first, np.random.default_rng(seed), draws) - task_draws(
        second, np.random.default_rng(seed), draws
    )
    a_S, b_S = seed_overall_S(first), seed_overall_S(second)
    smallest = min(a_S.size, b_S.size)
    if smallest < MIN_SEEDS:
        over_seeds = Interval(None, None, level, f"n = {smallest} < {MIN_SEEDS} seeds")
    else:
        rng = np.random.default_rng(seed)
        draws_a_D = a_S[rng.integers(0, a_S.size, size=(draws, a_S.size))].mean(axis=1)
        draws_b_D = b_S[rng.integers(0, b_S.size, size=(draws, b_S.size))].mean(axis=1)
        over_seeds = percentile_interval(draws_a_D - draws_b_D, level)
    return Difference(
        estimate=overall(first) - overall(second),
        over_tasks=percentile_interval(task_draws_D, level),
        over_seeds=over_seeds,
        task_count=sum(values_ST.shape[1] for values_ST in first.values()),
    )


def _pass_rate(values_ST: np.ndarray) -> float:
    """Mean over seeds of each seed's mean over its tasks with a valid rollout."""
    return float(np.mean(np.nanmean(values_ST, axis=1)))


def task_draws(outcomes: Outcomes, rng: np.random.Generator, draws: int) -> np.ndarray:
    """Overall pass rate under ``draws`` resamplings of each environment's tasks, shape (D,).

    Environments are visited in sorted order, so that equal generators pick equal tasks for two methods.
    """
    total_D = np.zeros(draws)
    for environment in sorted(outcomes):
        values_ST = outcomes[environment]
        picks_DT = rng.integers(0, values_ST.shape[1], size=(draws, values_ST.shape[1]))
        rate_D = np.zeros(draws)
        for values_T in values_ST:
            valid_T = np.isfinite(values_T)
            weight_DT = valid_T[picks_DT]
            filled_T = np.where(valid_T, values_T, 0.0)
            with np.errstate(invalid="ignore", divide="ignore"):
                rate_D += filled_T[picks_DT].sum(axis=1) / weight_DT.sum(axis=1)
        total_D += rate_D / values_ST.shape[0]
    return total_D / len(outcomes)


def _check_same_panel(first: Outcomes, second: Outcomes) -> None:
    if set(first) != set(second):
        raise ValueError(f"the methods cover other environments: {sorted(first)} and {sorted(second)}")
    for environment in first:
        if first[environment].shape[1] != second[environment].shape[1]:
            raise ValueError(
                f"{environment}: {first[environment].shape[1]} and {second[environment].shape[1]} tasks; "
                "a paired difference needs one shared panel"
            )
