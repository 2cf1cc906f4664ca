"""Within each environment's quota, the groups whose rewards vary most (RISED, Table 2 baseline)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup, Selector
from rised.methods.registry import piece
from rised.methods.rewards import reward_variance
from rised.methods.selectors._ranking import best, records, require, round_robin, tie_break
from rised.records.types import Selection


@piece("selector", "round_robin_variance")
class RoundRobinVariance(Selector):
    """The score of ``global_variance``, the environments taking turns as in ``profile``."""

    class Settings(PieceSettings):
        """No settings."""

        type: Literal["round_robin_variance"] = strict(description="Highest reward variance, environments in turn.")

    def select(self, groups: Sequence[PromptGroup], count: int, step: int, seed: int) -> list[Selection]:
        require(groups, count)
        scores = [reward_variance(group.valid_rewards) for group in groups]
        ranks = tie_break(len(groups), step, seed)

        def choose(candidates: list[int], selected: list[int]) -> int:
            return best(candidates, [scores[i] for i in candidates], ranks)

        return records(groups, round_robin(groups, count, step, choose), step, score=scores)
