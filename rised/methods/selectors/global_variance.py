"""The groups whose rewards vary most, over the whole pool (RISED, Table 2 baseline)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup, Selector
from rised.methods.registry import piece
from rised.methods.rewards import reward_variance
from rised.methods.selectors._ranking import SCORE_DECIMALS, records, require, tie_break
from rised.records.types import Selection


@piece("selector", "global_variance")
class GlobalVariance(Selector):
    """Top groups by sample variance of the valid rewards, whatever their environment.

    With binary rewards and G = 8 the variance takes five values, so ties are the rule: a permutation seeded by (run
    seed, step) breaks them. Groups with fewer than two valid rewards score 0. Rewards of different environments are
    compared as they are: a dense reward in [0, 1] varies less than a binary one.
    """

    class Settings(PieceSettings):
        """No settings."""

        type: Literal["global_variance"] = strict(description="Highest reward variance over the pool.")

    def select(self, groups: Sequence[PromptGroup], count: int, step: int, seed: int) -> list[Selection]:
        require(groups, count)
        scores = [reward_variance(group.valid_rewards) for group in groups]
        ranks = tie_break(len(groups), step, seed)
        order = sorted(range(len(groups)), key=lambda i: (-round(scores[i], SCORE_DECIMALS), ranks[i]))
        return records(groups, order[:count], step, score=scores)
