"""The environment's own reward."""

from __future__ import annotations

from typing import Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, TrainingReward
from rised.methods.registry import piece
from rised.records.types import Rollout


@piece("reward", "environment")
class EnvironmentReward(TrainingReward):
    """As the episode ended."""

    class Settings(PieceSettings):
        """No settings."""

        type: Literal["environment"] = strict(description="The environment's own reward.")

    def reward(self, rollout: Rollout) -> float | None:
        return rollout.reward
