"""A selection whose mean profile stays close to the batch's [ours: an alternative to RISED's greedy score]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from rised.config.settings import strict
from rised.methods.base import PromptGroup, Selector
from rised.methods.registry import piece
from rised.methods.selectors._profiles import ProfileSettings, candidate_profiles
from rised.methods.selectors._ranking import best, records, require, round_robin, tie_break
from rised.records.types import Selection


@piece("selector", "herding")
class Herding(Selector):
    """Greedy, the environments taking turns: adds the group that minimises ‖μ − mean φ over the selection with it‖.

    The recorded score is minus that distance at the moment of choice; groups that were not selected have none.
    Untagged groups are taken last.
    """

    needs_tags = True

    class Settings(ProfileSettings):
        """Only what a profile is."""

        type: Literal["herding"] = strict(description="Keep the selection's mean profile close to the batch's.")

    def select(self, groups: Sequence[PromptGroup], count: int, step: int, seed: int) -> list[Selection]:
        require(groups, count)
        candidates = candidate_profiles(groups, self.vocabulary, self.settings)
        ranks = tie_break(len(groups), step, seed)
        score_at_choice: list[float | None] = [None] * len(groups)

        def choose(open_candidates: list[int], selected: list[int]) -> int:
            total_D = candidates.profiles_CD[selected].sum(axis=0)
            means_CD = (total_D + candidates.profiles_CD[open_candidates]) / (len(selected) + 1)
            scores = [float(s) for s in -np.linalg.norm(candidates.mean_D - means_CD, axis=1)]
            chosen = best(open_candidates, scores, ranks)
            if candidates.tagged_C[chosen]:
                score_at_choice[chosen] = scores[open_candidates.index(chosen)]
            return chosen

        return records(groups, round_robin(groups, count, step, choose, candidates.tiers), step, score=score_at_choice)
