"""Every candidate is trained on (the paper's GRPO-128)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup, Selector
from rised.methods.errors import MethodError
from rised.methods.registry import piece
from rised.methods.selectors._ranking import records, require
from rised.records.types import Selection


@piece("selector", "all")
class All(Selector):
    """Trains on all ``candidate_groups`` in the order in which they were drawn; ``selected_groups`` has no effect."""

    class Settings(PieceSettings):
        """No settings."""

        type: Literal["all"] = strict(description="Train on every candidate group.")

    def selected_count(self, candidate_groups: int, selected_groups: int) -> int:
        return candidate_groups

    def select(self, groups: Sequence[PromptGroup], count: int, step: int, seed: int) -> list[Selection]:
        require(groups, count)
        if count != len(groups):
            raise MethodError(f"selector `all` trains on every candidate, but {count} of {len(groups)} were asked for")
        return records(groups, range(len(groups)), step)
