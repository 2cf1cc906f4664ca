"""The advantage of GiGPO: a rollout against its group, and a step against steps in the same state (METHODS §3)."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal

import numpy as np

from rised.config.settings import strict
from rised.methods.advantages.group_normalised import GroupNormalised, group_advantages
from rised.methods.base import AdvantageValue, PromptGroup
from rised.methods.registry import piece
from rised.methods.rewards import zero_variance
from rised.records.types import Rollout


@piece("advantage", "gigpo")
class GiGPO(GroupNormalised):
    """A = A_episode + w · A_step for every token of a step (arXiv 2505.10978).

    A step is a turn; its return is R_t = γ^(T − 1 − t) · r, since our environments reward the last step only. Steps of
    one task that begin with the same observation are an anchor group, in which A_step = (R_t − mean) / (std + ε). A
    step alone in its group, or in one of equal returns, has A_step = 0. A group whose rollouts all succeed still
    prefers the shorter ways. Invalid rollouts take no part.
    """

    class Settings(GroupNormalised.Settings):
        """The group advantage, and how steps are compared."""

        type: Literal["gigpo"] = strict(  # type: ignore[assignment]
            description="Group advantage of the episode plus that of steps in the same state."
        )
        discount: float = strict(0.95, gt=0.0, le=1.0, description="γ of a step's return.")
        step_weight: float = strict(1.0, ge=0.0, description="w of the steps' advantage.")
        similarity: float | None = strict(
            None,
            gt=0.0,
            le=1.0,
            description="Observations at least so similar (difflib's ratio, 0 to 1) are one state; null: only equal "
            "ones.",
        )

    def advantages(self, groups: Sequence[PromptGroup]) -> list[list[AdvantageValue]]:
        return [
            [
                None if episode is None else _per_token(rollout, float(episode), steps.get(rollout.rollout_id, []))
                for rollout, episode in zip(group.rollouts, row, strict=True)
            ]
            for group, row in zip(groups, super().advantages(groups), strict=True)
            for steps in (self._steps(group),)
        ]

    def _steps(self, group: PromptGroup) -> dict[str, list[float]]:
        """rollout -> w · A_step of each of its turns."""
        rollouts = [rollout for rollout in group.rollouts if rollout.reward_valid]
        places = [(i, t) for i, rollout in enumerate(rollouts) for t in range(len(rollout.turns))]
        returns = [self._return(rollouts[i], t) for i, t in places]
        found = {rollout.rollout_id: [0.0] * len(rollout.turns) for rollout in rollouts}
        for members in self._anchors([rollouts[i].turns[t].observation for i, t in places]):
            returns_N = np.array([returns[m] for m in members], dtype=np.float64)
            if zero_variance(returns_N):
                continue
            values_N = group_advantages(
                returns_N, divide_by_std=self.settings.divide_by_std, epsilon=self.settings.epsilon
            )
            for member, value in zip(members, values_N, strict=True):
                i, t = places[member]
                found[rollouts[i].rollout_id][t] = self.settings.step_weight * float(value)
        return found

    def _return(self, rollout: Rollout, turn: int) -> float:
        assert rollout.reward is not None
        return float(self.settings.discount ** (len(rollout.turns) - 1 - turn)) * rollout.reward

    def _anchors(self, observations: Sequence[str]) -> list[list[int]]:
        """Indices of the steps in each state; a similar observation joins the first state that it resembles."""
        by_text: dict[str, list[int]] = {}
        for index, text in enumerate(observations):
            by_text.setdefault(text, []).append(index)
        if self.settings.similarity is None:
            return list(by_text.values())
        states: dict[str, list[int]] = {}
        for text, members in by_text.items():
            alike = (first for first in states if _ratio(first, text) >= self.settings.similarity)
            states.setdefault(next(alike, text), []).extend(members)
        return list(states.values())


def _ratio(first: str, second: str) -> float:
    return SequenceMatcher(None, first, second, autojunk=False).ratio()


def _per_token(rollout: Rollout, episode: float, steps: Sequence[float]) -> np.ndarray:
    """One advantage per policy token, float64, shape (n,)."""
    positions_N = np.flatnonzero(np.array(rollout.policy_mask, dtype=bool))
    values_N = np.full(len(positions_N), episode)
    for turn, value in zip(rollout.turns, steps, strict=True):
        values_N[(positions_N >= turn.action_start) & (positions_N < turn.action_end)] += value
    return values_N
