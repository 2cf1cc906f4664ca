"""RISED's selection: typical of the batch's behaviour, unlike what is already selected (METHODS §1.3)."""

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


@piece("selector", "profile")
class Profile(Selector):
    """Greedy, the environments taking turns: adds the environment's unselected group that maximises

        cos(φ_g, μ) − λ · max over the selected s of cos(φ_g, φ_s)

    with φ a group's profile and μ the mean profile of the tagged candidates; a cosine with a zero vector is 0, and so
    is the redundancy while nothing is selected. [ours, from the paper's words]. Untagged groups (fewer than half of the
    rollouts validly tagged) are taken only when no tagged group of any environment is left, by seeded permutation.

    Of a selected group the record holds similarity, redundancy and score at the moment of its choice; of one that was
    not selected, those against the final selection. Untagged groups have none.
    """

    needs_tags = True

    class Settings(ProfileSettings):
        """Weights of the greedy score."""

        type: Literal["profile"] = strict(description="RISED's greedy selection by behaviour profiles.")
        redundancy_weight: float = strict(0.5, ge=0.0, description="λ, the weight of the redundancy.")
        redundancy: Literal["max", "mean"] = strict(
            "max", description="Redundancy: the greatest cosine with a selected group, or the mean of them."
        )

    def select(self, groups: Sequence[PromptGroup], count: int, step: int, seed: int) -> list[Selection]:
        require(groups, count)
        candidates = candidate_profiles(groups, self.vocabulary, self.settings)
        similarity_C = cosines(candidates.profiles_CD, candidates.mean_D[None, :])[:, 0]
        cosine_CC = cosines(candidates.profiles_CD, candidates.profiles_CD)
        ranks = tie_break(len(groups), step, seed)
        redundancy_at_choice: dict[int, float] = {}

        def choose(open_candidates: list[int], selected: list[int]) -> int:
            redundancies = {i: self._redundancy(cosine_CC[i, selected]) for i in open_candidates}
            scores = [self._score(similarity_C[i], redundancies[i]) for i in open_candidates]
            chosen = best(open_candidates, scores, ranks)
            redundancy_at_choice[chosen] = redundancies[chosen]
            return chosen

        order = round_robin(groups, count, step, choose, candidates.tiers)
        redundancy_C = [redundancy_at_choice.get(i, self._redundancy(cosine_CC[i, order])) for i in range(len(groups))]
        tagged = [bool(t) for t in candidates.tagged_C]
        return records(
            groups,
            order,
            step,
            similarity=[float(s) if t else None for s, t in zip(similarity_C, tagged, strict=True)],
            redundancy=[r if t else None for r, t in zip(redundancy_C, tagged, strict=True)],
            score=[
                self._score(s, r) if t else None for s, r, t in zip(similarity_C, redundancy_C, tagged, strict=True)
            ],
        )

    def _redundancy(self, cosines_S: np.ndarray) -> float:
        if cosines_S.size == 0:
            return 0.0
        return float(cosines_S.max() if self.settings.redundancy == "max" else cosines_S.mean())

    def _score(self, similarity: float, redundancy: float) -> float:
        return float(similarity - self.settings.redundancy_weight * redundancy)
