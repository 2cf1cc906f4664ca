"""Correlations of a signal with an improvement, with every undefined case named.

Pairs with a missing member are left out as pairs before ranking; ties get average ranks; a series whose range is at
most ``CONSTANT_RANGE`` is constant (floating-point noise must not make ranks). An undefined correlation stays
undefined, with its reason: it is never 0 and never enters a mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.statistics import DRAWS, LEVEL, Interval, percentile_interval

CONSTANT_RANGE = 1e-9
MIN_PAIRS = 3


@dataclass(frozen=True, slots=True)
class Correlation:
    """``spearman`` and ``pearson`` are None exactly when ``reason`` is set. ``n`` pairs used of ``n_given``."""

    spearman: float | None
    pearson: float | None
    n: int
    n_given: int
    reason: str = ""

    @property
    def status(self) -> str:
        """ "ok", "ok, n = 4 of 6" or "undefined: constant"."""
        if self.reason:
            return f"undefined: {self.reason}"
        return "ok" if self.n == self.n_given else f"ok, n = {self.n} of {self.n_given}"


@dataclass(frozen=True, slots=True)
class BlockBootstrap:
    """Intervals over resampled blocks; ``skipped`` draws held a constant series and were left out."""

    spearman: Interval
    pearson: Interval
    draws: int
    skipped: int


def correlate(signal: Sequence[float | None], improvement: Sequence[float | None]) -> Correlation:
    """Spearman and Pearson correlation of two series of equal length; None or NaN marks a missing member."""
    if len(signal) != len(improvement):
        raise ValueError(f"series of different length: {len(signal)} and {len(improvement)}")
    x, y = _complete_pairs(signal, improvement)
    if x.size < MIN_PAIRS:
        return Correlation(None, None, x.size, len(signal), f"n < {MIN_PAIRS}")
    if is_constant(x) or is_constant(y):
        return Correlation(None, None, x.size, len(signal), "constant")
    spearman = _pearson(stats.rankdata(_snap(x)), stats.rankdata(_snap(y)))
    return Correlation(spearman, _pearson(x, y), x.size, len(signal))


def within(signal: Sequence[float | None], improvement: Sequence[float | None], groups: Sequence[str]) -> Correlation:
    """Partial correlation given the group (the environment): of what is left of both series after each group's mean.

    Pooled pairs of several environments correlate already when environments differ in their means; this asks whether
    the two move together *within* an environment. Spearman: the same of the ranks over all pairs [ours].
    """
    if len({len(signal), len(improvement), len(groups)}) != 1:
        raise ValueError(f"series of different length: {len(signal)}, {len(improvement)} and {len(groups)} groups")
    kept = [i for i, pair in enumerate(zip(signal, improvement, strict=True)) if all(map(_present, pair))]
    x, y = _complete_pairs([signal[i] for i in kept], [improvement[i] for i in kept])
    names = np.asarray([groups[i] for i in kept])
    if x.size - len(set(names)) < MIN_PAIRS - 1:
        return Correlation(None, None, x.size, len(signal), f"n − environments < {MIN_PAIRS - 1}")
    left_x, left_y = _centred(x, names), _centred(y, names)
    if is_constant(left_x) or is_constant(left_y):
        return Correlation(None, None, x.size, len(signal), "constant within environments")
    ranks = [_centred(stats.rankdata(_snap(values)), names) for values in (x, y)]
    return Correlation(_pearson(*ranks), _pearson(left_x, left_y), x.size, len(signal))


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson correlation of two series that are not constant (without the p-value, which costs most of the time)."""
    return float(np.corrcoef(x, y)[0, 1])


def _centred(values: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The values minus their group's mean."""
    centred = values.astype(np.float64)
    for name in set(names):
        centred[names == name] -= centred[names == name].mean()
    return centred


def _present(value: float | None) -> bool:
    return value is not None and bool(np.isfinite(value))


def is_constant(values: np.ndarray) -> bool:
    """Whether the range is at most ``CONSTANT_RANGE``."""
    return values.size == 0 or float(values.max() - values.min()) <= CONSTANT_RANGE


def block_bootstrap(
    signal: Sequence[float | None],
    improvement: Sequence[float | None],
    blocks: Sequence[int],
    seed: int = 0,
    draws: int = DRAWS,
    level: float = LEVEL,
) -> BlockBootstrap:
    """Resample whole blocks (checkpoints, whose pairs belong together); with one block there is no interval."""
    block_ids = sorted(set(blocks))
    if len(block_ids) < 2:
        none = Interval(None, None, level, "one checkpoint")
        return BlockBootstrap(none, none, 0, 0)
    x, y = _complete_pairs(signal, improvement)
    whole = [_present(a) and _present(b) for a, b in zip(signal, improvement, strict=True)]
    owners = np.asarray([block for block, kept in zip(blocks, whole, strict=True) if kept])
    rows = [np.flatnonzero(owners == block) for block in block_ids]
    rng = np.random.default_rng(seed)
    picked_B = [rng.integers(0, len(block_ids), size=len(block_ids)) for _ in range(draws)]
    by_size: dict[int, list[np.ndarray]] = {}
    for picked in picked_B:
        places = np.concatenate([rows[block] for block in picked])
        by_size.setdefault(places.size, []).append(places)
    found = [_of_rows(x[np.stack(equal)], y[np.stack(equal)]) for n, equal in by_size.items() if n >= MIN_PAIRS]
    spearman, pearson = (np.concatenate([part[k] for part in found]) if found else np.empty(0) for k in (0, 1))
    return BlockBootstrap(_interval_of(spearman, level), _interval_of(pearson, level), draws, draws - spearman.size)


def _of_rows(x_BN: np.ndarray, y_BN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Spearman and Pearson correlations of the rows of two arrays; rows with a constant series are left out."""
    kept = (np.ptp(x_BN, axis=1) > CONSTANT_RANGE) & (np.ptp(y_BN, axis=1) > CONSTANT_RANGE)
    x_BN, y_BN = x_BN[kept], y_BN[kept]
    ranks = [stats.rankdata(_snap(values), axis=1) for values in (x_BN, y_BN)]
    return _row_pearson(*ranks), _row_pearson(x_BN, y_BN)


def _row_pearson(x_BN: np.ndarray, y_BN: np.ndarray) -> np.ndarray:
    """Pearson correlation of each row, shape (B,)."""
    a, b = (values - values.mean(axis=1, keepdims=True) for values in (x_BN, y_BN))
    return (a * b).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))


def _interval_of(values_B: np.ndarray, level: float) -> Interval:
    if not values_B.size:
        return Interval(None, None, level, "constant in every draw")
    return percentile_interval(values_B, level)


def _complete_pairs(
    signal: Sequence[float | None], improvement: Sequence[float | None]
) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.asarray(
        [(np.nan if a is None else a, np.nan if b is None else b) for a, b in zip(signal, improvement, strict=True)],
        dtype=np.float64,
    ).reshape(-1, 2)
    kept = pairs[np.isfinite(pairs).all(axis=1)]
    return kept[:, 0], kept[:, 1]


def _snap(values: np.ndarray) -> np.ndarray:
    """Along the last axis, give values closer than ``CONSTANT_RANGE`` to their lower neighbour that neighbour's value:
    they tie."""
    order = np.argsort(values, axis=-1, kind="stable")
    snapped = np.take_along_axis(values, order, axis=-1)
    for k in range(1, snapped.shape[-1]):
        close = snapped[..., k] - snapped[..., k - 1] <= CONSTANT_RANGE
        snapped[..., k] = np.where(close, snapped[..., k - 1], snapped[..., k])
    result = np.empty_like(values)
    np.put_along_axis(result, order, snapped, axis=-1)
    return result
