"""The 2×2×2 ablation: effects of selection, teacher and steering on the overall pass rate, and their interactions.

Every effect is a contrast of the eight cells. A main effect is the mean of the four cells with the component minus
that of the four without. An interaction of two is the difference of differences: by how much one component's effect
is larger when the other is there (mean over the third); of three likewise. The paper's ablation has three of the
eight cells (RISED, without selection, without teacher and steering): it cannot tell teacher from steering, nor see
that two components overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from analysis.comparisons import Tested, sign_flip_test, task_contrast
from analysis.statistics import (
    DRAWS,
    LEVEL,
    MIN_SEEDS,
    Interval,
    Outcomes,
    overall,
    percentile_interval,
    seed_overall_S,
    task_draws,
)

FACTORS = ("selection", "teacher", "steering")
CELLS: dict[tuple[bool, ...], str] = {
    (False, False, False): "grpo_64",
    (True, False, False): "rised_selection_only",
    (False, True, False): "rised_teacher_only",
    (False, False, True): "rised_steering_only",
    (True, True, False): "rised_no_steering",
    (True, False, True): "rised_no_teacher",
    (False, True, True): "rised_no_selection",
    (True, True, True): "rised",
}
"""(selection, teacher, steering) -> the method that has just these."""
MADE_BY = "laptop_ablation (or paper_ablation, at the paper's scale)"


@dataclass(frozen=True, slots=True)
class Effect:
    """``estimate`` and intervals as shares; ``by_environment``: the same contrast in each environment alone."""

    name: str
    estimate: float
    by_environment: Mapping[str, float]
    over_tasks: Interval
    over_seeds: Interval
    test: Tested


def effects() -> dict[str, tuple[int, ...]]:
    """Name -> indices into ``FACTORS``: three main effects, three interactions of two, one of three."""
    sets = [chosen for size in (1, 2, 3) for chosen in combinations(range(len(FACTORS)), size)]
    return {" × ".join(FACTORS[i] for i in chosen): chosen for chosen in sets}


def weights(chosen: tuple[int, ...]) -> dict[str, float]:
    """Method -> weight of its cell in the contrast of these factors.

    The coefficients of a linear model with the factors coded −1/2 and +1/2: each cell's sign over 2^(3 − k).
    """
    scale = 2 ** (len(FACTORS) - len(chosen))
    return {
        CELLS[cell]: float(np.prod([1 if cell[i] else -1 for i in chosen])) / scale
        for cell in product((False, True), repeat=len(FACTORS))
    }


def missing_cells(outcomes: Mapping[str, Outcomes | None]) -> list[str]:
    """The cells' methods without outcomes."""
    return [method for method in CELLS.values() if not outcomes.get(method)]


def estimate_effects(
    outcomes: Mapping[str, Outcomes], seed: int = 0, draws: int = DRAWS, level: float = LEVEL
) -> list[Effect]:
    """All seven effects. Raises ValueError when a cell is missing or panels differ: no effect is estimated from fewer.

    Bootstrap over tasks draws the same tasks in all cells; over seeds, each cell's runs by themselves.
    """
    absent = missing_cells(outcomes)
    if absent:
        raise ValueError(f"cells are missing: {', '.join(absent)}")
    draws_of = {m: task_draws(outcomes[m], np.random.default_rng(seed), draws) for m in CELLS.values()}
    seeds_of = {m: _seed_draws(seed_overall_S(outcomes[m]), [seed, i], draws) for i, m in enumerate(CELLS.values())}
    smallest = min(seed_overall_S(outcomes[m]).size for m in CELLS.values())
    found = []
    for name, chosen in effects().items():
        weight_of = weights(chosen)
        over_seeds = Interval(None, None, level, f"n = {smallest} < {MIN_SEEDS} seeds")
        if smallest >= MIN_SEEDS:
            over_seeds = percentile_interval(_weighted(seeds_of, weight_of), level)
        contrast = task_contrast(outcomes, weight_of)
        environments = next(iter(outcomes.values()))
        found.append(
            Effect(
                name,
                sum(weight * overall(outcomes[m]) for m, weight in weight_of.items()),
                {e: sum(w * overall({e: outcomes[m][e]}) for m, w in weight_of.items()) for e in environments},
                percentile_interval(_weighted(draws_of, weight_of), level),
                over_seeds,
                sign_flip_test(contrast, seed),
            )
        )
    return found


def _weighted(draws_of: Mapping[str, np.ndarray], weight_of: Mapping[str, float]) -> np.ndarray:
    return np.sum([weight * draws_of[method] for method, weight in weight_of.items()], axis=0)


def _seed_draws(values_S: np.ndarray, seed: list[int], draws: int) -> np.ndarray:
    picks_DS = np.random.default_rng(seed).integers(0, values_S.size, size=(draws, values_S.size))
    drawn: np.ndarray = values_S[picks_DS].mean(axis=1)
    return drawn
