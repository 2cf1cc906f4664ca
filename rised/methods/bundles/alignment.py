"""How well a bundle's satisfaction goes with the rewards, and which bundle is kept (ORSD, equations 5 to 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rised.methods.rewards import zero_variance
from rised.records.types import CreditState

DECIMALS = 12
"""Means equal to this many decimals are tied: the order of a sum must not decide a rank."""


def satisfaction(scores_GK: Sequence[Sequence[float]]) -> list[float | None]:
    """s_i, the mean of each rollout's scores; None for a rollout without scores."""
    return [float(np.mean(np.asarray(row, dtype=np.float64))) if len(row) else None for row in scores_GK]


def spearman(satisfaction_G: Sequence[float | None], rewards_G: Sequence[float | None]) -> float | None:
    """Spearman's rank correlation over the rollouts that have both, ties at their mean rank.

    None where it is undefined: fewer than two such rollouts, or one of the two constant over them.
    """
    from scipy.stats import spearmanr

    pairs = [(s, r) for s, r in zip(satisfaction_G, rewards_G, strict=True) if s is not None and r is not None]
    if len(pairs) < 2:
        return None
    first_G, second_G = np.round(np.array(pairs, dtype=np.float64), DECIMALS).T
    if zero_variance(first_G) or zero_variance(second_G):
        return None
    return float(spearmanr(first_G, second_G).statistic)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which bundle of a group is kept (None: none), and what that makes of the group's credit."""

    index: int | None
    state: CreditState


def reward_state(rewards_G: np.ndarray) -> CreditState:
    """Whether the group's valid rewards leave a correlation defined at all."""
    if len(rewards_G) < 2:
        return CreditState.BELOW_TWO_REWARDS
    return CreditState.CONSTANT_REWARDS if zero_variance(rewards_G) else CreditState.GIVEN


def best_aligned(written: Sequence[bool], scored: Sequence[bool], alignments: Sequence[float | None]) -> Choice:
    """The bundle with the highest correlation, the first of equal ones, however low it is [paper: no threshold]."""
    defined = [(value, -index) for index, value in enumerate(alignments) if value is not None]
    if defined:
        return Choice(-max((round(value, DECIMALS), place) for value, place in defined)[1], CreditState.GIVEN)
    if any(scored):
        return Choice(None, CreditState.CONSTANT_SATISFACTION)
    return Choice(None, CreditState.NOT_VERIFIED if any(written) else CreditState.NO_BUNDLE)
