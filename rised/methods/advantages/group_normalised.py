"""The advantage of GRPO: a reward against its group's (METHODS §2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from rised.config.settings import strict
from rised.methods.base import Advantage, AdvantageValue, PieceSettings, PromptGroup
from rised.methods.registry import piece
from rised.methods.rewards import zero_variance


def group_advantages(rewards_G: np.ndarray, *, divide_by_std: bool = True, epsilon: float = 1e-6) -> np.ndarray:
    """(r − mean) / (std + epsilon) in float64, std with n − 1; without the division r − mean. Shape (G,).

    Fewer than two rewards give 0. The mean is taken before the squares, so equal rewards leave no residue that the
    division would blow up. Scale does not matter: rewards that differ by 1e-4 get full advantages.
    """
    rewards_G = np.asarray(rewards_G, dtype=np.float64)
    if len(rewards_G) < 2:
        return np.zeros(len(rewards_G))
    centred_G = rewards_G - rewards_G.mean()
    return centred_G / (rewards_G.std(ddof=1) + epsilon) if divide_by_std else centred_G


@piece("advantage", "group_normalised")
class GroupNormalised(Advantage):
    """A_i = (r_i − mean) / (std + 1e-6) over the group's valid rewards.

    An invalid rollout has no advantage (None) and leaves the statistics. A zero-variance group has exactly 0, so that
    float noise in equal rewards never becomes a gradient. Without ``divide_by_std`` this is Dr.GRPO's advantage.
    """

    class Settings(PieceSettings):
        """How the difference to the mean is scaled."""

        type: Literal["group_normalised"] = strict(description="Reward against the group's mean and spread.")
        divide_by_std: bool = strict(True, description="Divide by the sample standard deviation (Dr.GRPO: false).")
        epsilon: float = strict(1e-6, gt=0.0, description="Added to the standard deviation.")

    def advantages(self, groups: Sequence[PromptGroup]) -> list[list[AdvantageValue]]:
        return [self._of_group(group) for group in groups]

    def _of_group(self, group: PromptGroup) -> list[AdvantageValue]:
        rewards = group.valid_rewards
        if zero_variance(rewards):
            values = iter(np.zeros(len(rewards)))
        else:
            values = iter(
                group_advantages(rewards, divide_by_std=self.settings.divide_by_std, epsilon=self.settings.epsilon)
            )
        return [float(next(values)) if rollout.reward_valid else None for rollout in group.rollouts]
