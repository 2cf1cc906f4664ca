"""ORSD's training rewards (arXiv 2611.06543, equations 12 and 13; METHODS §4)."""

from __future__ import annotations

from typing import Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, TrainingReward
from rised.methods.registry import piece
from rised.records.types import Rollout, Turn

PERFECT = 1.0
"""The official score of a task that was solved."""


@piece("reward", "orsd")
class OrsdReward(TrainingReward):
    """ALFWorld: 1 for success, else 0. WebShop, with R its score and T all attempted actions:

        0.5 R + 0.5 · 1[R = 1] − 0.05 · N_invalid / max(T, 1) − 0.025 · N_loop / max(T, 1)

    N_invalid: actions that the environment refused. N_loop [ours, the paper says "repeated actions that make no
    progress"]: accepted actions that equal an earlier one of the episode and leave the session's state as it was.
    Other environments keep their reward [ours]. Invalid rewards stay so.
    """

    class Settings(PieceSettings):
        """WebShop's penalties."""

        type: Literal["orsd"] = strict(description="ORSD: ALFWorld binary, WebShop shaped by behaviour.")
        invalid_penalty: float = strict(0.05, ge=0.0, description="WebShop: weight of the share of refused actions.")
        loop_penalty: float = strict(
            0.025, ge=0.0, description="WebShop: weight of the share of repeated actions without any effect."
        )

    def reward(self, rollout: Rollout) -> float | None:
        if rollout.reward is None:
            return None
        if rollout.environment == "alfworld":
            return float(bool(rollout.success))
        if rollout.environment != "webshop":
            return rollout.reward
        attempted = max(len(rollout.turns), 1)
        refused = sum(not turn.action_valid for turn in rollout.turns)
        return (
            0.5 * rollout.reward
            + 0.5 * float(rollout.reward == PERFECT)
            - self.settings.invalid_penalty * refused / attempted
            - self.settings.loop_penalty * repeated_without_effect(rollout.turns) / attempted
        )


def repeated_without_effect(turns: tuple[Turn, ...]) -> int:
    """Accepted actions that were executed before in the episode and changed nothing (``info.changed`` of WebShop)."""
    seen: set[str] = set()
    count = 0
    for turn in turns:
        if turn.action_valid:
            count += turn.action_mapped in seen and turn.info.get("changed") is False
            seen.add(turn.action_mapped)
    return count
