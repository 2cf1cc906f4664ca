"""A selection in which every candidate finds a similar group [ours: an alternative to RISED's greedy score]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from rised.config.settings import strict
from rised.methods.base import PromptGroup, Selector
from rised.methods.registry import piece
from rised.methods.selectors._profiles import ProfileSettings, candidate_profiles, cosines
from rised.methods.selectors._ranking import best, records, require, round_robin, tie_break
from rised.records.types import Selection


@piece("selector", "facility_location")
class FacilityLocation(Selector):
    """Greedy, the environments taking turns: adds the group that most raises Σ_c max_s cos(φ_c, φ_s) over candidates c.

    The recorded score is that gain at the moment of choice; groups that were not selected have none. Profiles are
    non-negative, so an empty selection covers every candidate with 0. Untagged groups are taken last and cover nothing.
    """

    needs_tags = True

    class Settings(ProfileSettings):
        """Only what a profile is; ``mean`` has no effect here."""

        type: Literal["facility_location"] = strict(description="Cover every candidate with a similar selected group.")

    def select(self, groups: Sequence[PromptGroup], count: int, step: int, seed: int) -> list[Selection]:
        require(groups, count)
        candidates = candidate_profiles(groups, self.vocabulary, self.settings)
        cosine_CC = cosines(candidates.profiles_CD, candidates.profiles_CD)
        ranks = tie_break(len(groups), step, seed)
        score_at_choice: list[float | None] = [None] * len(groups)

        def choose(open_candidates: list[int], selected: list[int]) -> int:
            covered_C = cosine_CC[:, selected].max(axis=1) if selected else np.zeros(len(groups))
            gains = np.maximum(cosine_CC[:, open_candidates] - covered_C[:, None], 0.0).sum(axis=0)
            scores = [float(gain) for gain in gains]
            chosen = best(open_candidates, scores, ranks)
            if candidates.tagged_C[chosen]:
                score_at_choice[chosen] = scores[open_candidates.index(chosen)]
            return chosen

        return records(groups, round_robin(groups, count, step, choose, candidates.tiers), step, score=score_at_choice)
