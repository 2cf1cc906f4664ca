"""As many groups as are trained on, drawn without regard to what happened in them (the paper's GRPO-64)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup, Selector
from rised.methods.registry import piece
from rised.methods.selectors._ranking import records, require, tie_break
from rised.records.types import Selection


@piece("selector", "random")
class Random(Selector):
    """Rolls out ``selected_groups`` only, so that no rollout is wasted; given more, takes a permutation seeded by
    (run seed, step)."""

    class Settings(PieceSettings):
        """No settings."""

        type: Literal["random"] = strict(description="Roll out only the groups to train on.")

    def candidate_count(self, candidate_groups: int, selected_groups: int) -> int:
        return selected_groups

    def select(self, groups: Sequence[PromptGroup], count: int, step: int, seed: int) -> list[Selection]:
        require(groups, count)
        order = np.argsort(tie_break(len(groups), step, seed))[:count]
        return records(groups, [int(i) for i in order], step)
