"""Statistics of one group's rewards that several pieces share, in float64.

Invalid rewards are left out before anything here is called (``PromptGroup.valid_rewards``).
"""

from __future__ import annotations

import numpy as np

ZERO_VARIANCE_RANGE = 1e-8
"""Rewards whose range is at most this are equal: a test "std > 0" would pass rewards that differ in a last bit."""


def zero_variance(rewards_G: np.ndarray) -> bool:
    """Whether the group carries no preference: max − min <= 1e-8, or fewer than two rewards."""
    return len(rewards_G) < 2 or bool(np.ptp(rewards_G) <= ZERO_VARIANCE_RANGE)


def reward_variance(rewards_G: np.ndarray) -> float:
    """Sample variance (n − 1); exactly 0.0 for a zero-variance group."""
    return 0.0 if zero_variance(rewards_G) else float(np.var(rewards_G, ddof=1))
