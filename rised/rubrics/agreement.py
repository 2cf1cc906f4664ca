"""How well two taggings agree: counts, precision, recall and Cohen's kappa, with intervals.

Pure functions on arrays of states. A share over nothing and a kappa of two constant taggings are undefined (None),
never 0. Rollouts of a group resemble each other, so the interval of kappa resamples groups, not rollouts [ours];
shares have Wilson's interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 1000
LEVEL = 0.95
_Z = 1.959963984540054
"""Of the 95 % interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 95 % interval; all None where it is undefined. The interval may be undefined alone."""

    value: float | None
    low: float | None = None
    high: float | None = None


def share(successes: int, count: int) -> Estimate:
    """A share with Wilson's interval; undefined over nothing."""
    if count == 0:
        return Estimate(None)
    p, z2 = successes / count, _Z * _Z
    centre = (p + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z * math.sqrt(p * (1 - p) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    return Estimate(p, max(0.0, centre - half), min(1.0, centre + half))


def cohen_kappa(first: Sequence[object], second: Sequence[object]) -> float | None:
    """Agreement beyond chance of two taggings of the same rollouts, over any states; None where it is undefined.

    Undefined without a rollout, and when both taggings are the same constant: chance then explains all agreement.
    """
    codes = {state: code for code, state in enumerate(dict.fromkeys([*first, *second]))}
    a_N = np.array([codes[state] for state in first], dtype=np.int64)
    b_N = np.array([codes[state] for state in second], dtype=np.int64)
    return _kappa(a_N, b_N, len(codes))


def _kappa(a_N: np.ndarray, b_N: np.ndarray, states: int) -> float | None:
    if a_N.size == 0:
        return None
    a_S = np.bincount(a_N, minlength=states) / a_N.size
    b_S = np.bincount(b_N, minlength=states) / b_N.size
    by_chance = float(a_S @ b_S)
    if by_chance >= 1.0 - 1e-12:
        return None
    return (float(np.mean(a_N == b_N)) - by_chance) / (1.0 - by_chance)


def kappa_interval(
    first: Sequence[object], second: Sequence[object], groups: Sequence[str], seed: int = 0, draws: int = DRAWS
) -> Estimate:
    """Cohen's kappa with a percentile interval from resampled groups. ``groups``: the group of each rollout.

    Without an interval when there are fewer than two groups, or when fewer than half of the draws define a kappa.
    """
    value = cohen_kappa(first, second)
    if value is None:
        return Estimate(None)
    names = sorted(set(groups))
    if len(names) < 2:
        return Estimate(value)
    codes = {state: code for code, state in enumerate(dict.fromkeys([*first, *second]))}
    place = {name: index for index, name in enumerate(names)}
    table_GSS = np.zeros((len(names), len(codes), len(codes)))
    for one, two, group in zip(first, second, groups, strict=True):
        table_GSS[place[group], codes[one], codes[two]] += 1
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        picked_SS = table_GSS[rng.integers(0, len(names), len(names))].sum(axis=0)
        picked_SS /= picked_SS.sum()
        by_chance = float(picked_SS.sum(axis=1) @ picked_SS.sum(axis=0))
        if by_chance < 1.0 - 1e-12:
            found.append((float(np.trace(picked_SS)) - by_chance) / (1.0 - by_chance))
    if 2 * len(found) < draws:
        return Estimate(value)
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(found, [tail, 100 - tail])
    return Estimate(value, float(low), float(high))
