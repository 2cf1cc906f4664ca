"""Group advantages brought to one scale per environment (AgentRL, arXiv 2510.04206; METHODS §2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from rised.config.settings import strict
from rised.methods.advantages.group_normalised import GroupNormalised
from rised.methods.base import AdvantageValue, PromptGroup
from rised.methods.registry import piece


@piece("advantage", "environment_normalised")
class EnvironmentNormalised(GroupNormalised):
    """Ã = (A − μ_env) / (σ_env + 1e-6), μ and σ of A over that environment's policy tokens in the batch.

    Long rollouts weigh more in μ and σ, as the formula counts tokens. The standard deviation is the population's
    [ours: the source does not say]. A zero-variance group's 0 becomes −μ_env/σ_env, so it does carry a gradient here.
    An environment whose advantages are all equal gets 0.
    """

    class Settings(GroupNormalised.Settings):
        """The settings of the group advantage that is normalised."""

        type: Literal["environment_normalised"] = strict(  # type: ignore[assignment]
            description="Group advantage, normalised over the environment's tokens."
        )

    def advantages(self, groups: Sequence[PromptGroup]) -> list[list[AdvantageValue]]:
        per_group = super().advantages(groups)
        values: dict[str, list[float]] = {}
        weights: dict[str, list[int]] = {}
        for group, row in zip(groups, per_group, strict=True):
            for rollout, value in zip(group.rollouts, row, strict=True):
                if value is not None:
                    values.setdefault(group.environment, []).append(float(value))
                    weights.setdefault(group.environment, []).append(len(rollout.logprobs))
        scale = {e: _mean_and_std(np.array(values[e]), np.array(weights[e])) for e in values}
        return [
            [None if value is None else _rescaled(float(value), *scale[group.environment]) for value in row]
            for group, row in zip(groups, per_group, strict=True)
        ]


def _mean_and_std(values_B: np.ndarray, tokens_B: np.ndarray) -> tuple[float, float]:
    if tokens_B.sum() == 0 or np.ptp(values_B) == 0:
        return float(values_B.mean()), 0.0
    mean = float(np.average(values_B, weights=tokens_B))
    return mean, float(np.sqrt(np.average((values_B - mean) ** 2, weights=tokens_B)))


def _rescaled(value: float, mean: float, std: float) -> float:
    return (value - mean) / (std + 1e-6) if std > 0 else 0.0
