"""Shared by the selectors that look at behaviour: settings and profile matrices of the candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup
from rised.rubrics.profiles import mean_profile, rubric_profile, skill_profile

if TYPE_CHECKING:
    from rised.rubrics.vocabulary import Vocabulary


class ProfileSettings(PieceSettings):
    """What a group's behaviour profile is made of."""

    signal: Literal["all", "pos", "neg"] = strict(
        "all", description="Which half of the tags: demonstrates (pos), violates (neg), or both one after the other."
    )
    level: Literal["rubric", "skill"] = strict(
        "rubric", description="Components of the profile: single rubrics, or the mean over the rubrics of a skill."
    )
    mean: Literal["mixed", "mean_of_environments"] = strict(
        "mixed",
        description="The mean profile: over all tagged candidates, or the mean of the environments' means.",
    )


@dataclass(frozen=True, slots=True, eq=False)
class CandidateProfiles:
    """Profiles of one step's candidates.

    ``profiles_CD``: candidates × components; the rows of untagged groups are 0. ``tagged_C``: at least half of the
    group's rollouts were validly tagged. ``mean_D``: the mean profile of the tagged candidates (0 if there are none).
    """

    profiles_CD: np.ndarray
    tagged_C: np.ndarray
    mean_D: np.ndarray

    @property
    def tiers(self) -> list[list[int]]:
        """Tagged groups first; untagged ones only when nothing else is left."""
        tagged = [int(i) for i in np.flatnonzero(self.tagged_C)]
        return [tagged, [int(i) for i in np.flatnonzero(~self.tagged_C)]]


def candidate_profiles(
    groups: Sequence[PromptGroup], vocabulary: Vocabulary, settings: ProfileSettings
) -> CandidateProfiles:
    """Profiles of all candidates under the selector's settings."""
    profile = rubric_profile if settings.level == "rubric" else skill_profile
    rows = [
        profile(group.tags, [rollout.rollout_id for rollout in group.rollouts], vocabulary, settings.signal)
        for group in groups
    ]
    tagged_C = np.array([row is not None for row in rows], dtype=bool)
    known = [row for row in rows if row is not None]
    if not known:
        return CandidateProfiles(np.zeros((len(rows), 1)), tagged_C, np.zeros(1))
    profiles_CD = np.stack([np.zeros_like(known[0]) if row is None else row for row in rows])
    environments = [group.environment for group, row in zip(groups, rows, strict=True) if row is not None]
    return CandidateProfiles(profiles_CD, tagged_C, mean_profile(known, environments, settings.mean))


def cosines(left_CD: np.ndarray, right_SD: np.ndarray) -> np.ndarray:
    """Cosine of every row of one matrix with every row of the other, shape (C, S); 0 where a row is zero."""
    norms_CS = np.linalg.norm(left_CD, axis=1)[:, None] * np.linalg.norm(right_SD, axis=1)[None, :]
    return np.divide(left_CD @ right_SD.T, norms_CS, out=np.zeros_like(norms_CS), where=norms_CS > 0)
