"""Tests of differences on one task panel, and their correction for several comparisons; pure functions on arrays.

Two null hypotheses are kept apart, as the two intervals of ``statistics`` are. Over *tasks*: the two methods' trained
weights are equally good on tasks like these (sign flips of each task's difference). Over *seeds*: the two methods'
runs are exchangeable (all ways to deal the runs out). With few seeds the second has a smallest p value that no data
can undercut; it is returned beside p so that it can be printed. Array suffixes as in ``statistics``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from analysis.statistics import DRAWS, LEVEL, MIN_SEEDS, Interval, Outcomes, percentile_interval

FLIPS = 10_000
CHUNK = 2_000
"""Sign flips at a time: bounds the memory at large panels."""
EXACT = 20_000
"""Up to so many ways to deal runs out, all of them are tried."""
ROUNDING = 1e-12
"""Statistics closer than this are equal: sums in another order differ in their last bits."""


@dataclass(frozen=True, slots=True)
class Tested:
    """A two-sided p value, and the smallest one that this design can give; ``reason`` where p is None."""

    p: float | None
    smallest: float | None = None
    reason: str = ""


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment of the p values that are there; the family is their number. None stays None."""
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for rank, (p, i) in enumerate(known):
        running = max(running, min(1.0, (len(known) - rank) * p))
        adjusted[i] = running
    return adjusted


def task_contrast(outcomes: Mapping[str, Outcomes], weights: Mapping[str, float]) -> dict[str, np.ndarray]:
    """environment -> Σ weight · (task pass rate, mean over the method's valid seeds), shape (T kept,).

    ``outcomes``: by method. A task for which some method has no valid rollout at all is left out.
    """
    environments = {tuple(sorted(outcomes[method])) for method in weights}
    if len(environments) != 1:
        raise ValueError(f"the methods cover different environments: {sorted(environments)}")
    found = {}
    for environment in next(iter(environments)):
        rates = [weight * _over_seeds(outcomes[method][environment]) for method, weight in weights.items()]
        if len({len(rate_T) for rate_T in rates}) != 1:
            raise ValueError(f"{environment}: {sorted({len(r) for r in rates})} tasks; a contrast needs one panel")
        total_T = np.sum(rates, axis=0)
        found[environment] = total_T[np.isfinite(total_T)]
    return found


def sign_flip_test(differences: Mapping[str, np.ndarray], seed: int = 0, flips: int = FLIPS) -> Tested:
    """Is the mean over environments of the mean task difference larger than random signs of the tasks make it?

    p counts the observed arrangement as one of the draws, so it is never 0.
    """
    if not differences or any(d_T.size == 0 for d_T in differences.values()):
        return Tested(None, reason="an environment has no tasks in common")
    observed = float(np.mean([d_T.mean() for d_T in differences.values()]))
    rng = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, flips, CHUNK):
        count = min(CHUNK, flips - start)
        total_D = np.zeros(count)
        for environment in sorted(differences):
            d_T = differences[environment]
            signs_DT = rng.integers(0, 2, size=(count, d_T.size), dtype=np.int8) * 2 - 1
            total_D += signs_DT @ d_T / d_T.size
        extreme += int(np.sum(np.abs(total_D / len(differences)) >= abs(observed) - ROUNDING))
    return Tested((extreme + 1) / (flips + 1), 1 / (flips + 1))


def seed_test(first_S: np.ndarray, second_S: np.ndarray, seed: int = 0) -> Tested:
    """Is the difference of two methods' means over runs larger than dealing the runs out at random makes it?

    Exact up to ``EXACT`` ways. Two and two runs can give no p below 1/3, three and three none below 1/10.
    """
    pooled = np.concatenate([first_S, second_S])
    size, ways = first_S.size, comb(pooled.size, first_S.size)
    if min(first_S.size, second_S.size) < 2:
        return Tested(None, reason=f"n = {min(first_S.size, second_S.size)} seed")
    observed = abs(first_S.mean() - second_S.mean())
    if ways <= EXACT:
        chosen = [list(picked) for picked in combinations(range(pooled.size), size)]
    else:
        rng = np.random.default_rng(seed)
        chosen = [list(range(size)), *[list(rng.permutation(pooled.size)[:size]) for _ in range(EXACT - 1)]]
    sums = np.array([pooled[picked].sum() for picked in chosen])
    differences = np.abs(sums / size - (pooled.sum() - sums) / second_S.size)
    mirrored = 2 if first_S.size == second_S.size else 1
    return Tested(float(np.mean(differences >= observed - ROUNDING)), mirrored / len(chosen))


def two_level_interval(
    first: Outcomes, second: Outcomes, seed: int = 0, draws: int = DRAWS, level: float = LEVEL
) -> Interval:
    """The difference under another draw of seeds *and* of tasks; needs ``MIN_SEEDS`` runs of each method.

    Seeds are drawn for each method by itself and are the same in all environments; tasks are shared by both methods.
    """
    smallest = min(next(iter(values.values())).shape[0] for values in (first, second))
    if smallest < MIN_SEEDS:
        return Interval(None, None, level, f"n = {smallest} < {MIN_SEEDS} seeds")
    rng = np.random.default_rng(seed)
    seeds = [next(iter(values.values())).shape[0] for values in (first, second)]
    picked_DS = [rng.integers(0, size, size=(draws, size)) for size in seeds]
    total_D = np.zeros(draws)
    for environment in sorted(first):
        task_count = first[environment].shape[1]
        tasks_DT = rng.integers(0, task_count, size=(draws, task_count))
        for sign, values, picks_DS in ((1, first, picked_DS[0]), (-1, second, picked_DS[1])):
            for draw in range(draws):
                sample_ST = values[environment][np.ix_(picks_DS[draw], tasks_DT[draw])]
                total_D[draw] += sign * np.mean(np.nanmean(sample_ST, axis=1))
    return percentile_interval(total_D / len(first), level)


def _over_seeds(values_ST: np.ndarray) -> np.ndarray:
    """Mean over the seeds with a valid rollout of each task; NaN where there is none. Shape (T,)."""
    valid_T = np.isfinite(values_ST).sum(axis=0)
    total_T = np.nansum(values_ST, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(valid_T > 0, total_T / valid_T, np.nan)
