"""Behaviour profiles: from the tags of a prompt group to a vector, and how vectors are averaged and compared.

Pure numpy in float64; no I/O and no selection. Shapes: K rubrics, S skills, G groups, D components of a profile.
The profile's components are the ``demonstrates`` shares followed by the ``violates`` shares, each in the order of the
vocabulary [ours, from the paper's words; METHODS 1.3].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rised.records.types import Tag, TagState
from rised.rubrics.base import RubricError
from rised.rubrics.tags import valid_states
from rised.rubrics.vocabulary import Vocabulary

Signal = Literal["all", "pos", "neg"]
"""``all``: both halves; ``pos``: the demonstrates half; ``neg``: the violates half."""
MeanMode = Literal["mixed", "mean_of_environments"]


@dataclass(frozen=True, slots=True)
class GroupShares:
    """Per rubric, the share of a group's validly tagged rollouts that demonstrate and that violate it.

    ``valid_count`` of ``rollout_count`` rollouts are validly tagged; the shares are all 0 when none is.
    """

    demonstrates_K: np.ndarray
    violates_K: np.ndarray
    valid_count: int
    rollout_count: int

    @property
    def tagged(self) -> bool:
        """False when fewer than half of the rollouts are validly tagged; exactly half is tagged [ours]."""
        return self.valid_count > 0 and 2 * self.valid_count >= self.rollout_count


def group_shares(tags: Iterable[Tag], rollout_ids: Sequence[str], vocabulary: Vocabulary) -> GroupShares:
    """Shares over the validly tagged rollouts among ``rollout_ids`` (all rollouts of the group, tagged or not).

    A rubric that was not judged, because it does not apply or nobody can detect it, has share 0. Raises RubricError
    when the rollouts of the group were not all judged on the same rubrics, or a rubric is unknown.
    """
    states = valid_states(tags, rollout_ids)
    counts_2K = np.zeros((2, len(vocabulary)), dtype=np.int64)
    judged: set[str] | None = None
    for rollout_id, state_of in states.items():
        if judged is not None and judged != set(state_of):
            differing = ", ".join(sorted(judged ^ set(state_of)))
            raise RubricError(f"rollout {rollout_id!r} was judged on other rubrics than its group: {differing}")
        judged = set(state_of)
        for rubric_id, state in state_of.items():
            k = vocabulary.index(rubric_id)
            counts_2K[0, k] += state is TagState.DEMONSTRATES
            counts_2K[1, k] += state is TagState.VIOLATES
    shares_2K = counts_2K / max(len(states), 1)
    return GroupShares(shares_2K[0], shares_2K[1], len(states), len(rollout_ids))


def rubric_profile(
    tags: Iterable[Tag], rollout_ids: Sequence[str], vocabulary: Vocabulary, signal: Signal = "all"
) -> np.ndarray | None:
    """The group's profile, of 2K components (``all``) or K (``pos``, ``neg``); None when the group is untagged."""
    shares = group_shares(tags, rollout_ids, vocabulary)
    return _halves(shares.demonstrates_K, shares.violates_K, signal) if shares.tagged else None


def skill_profile(
    tags: Iterable[Tag], rollout_ids: Sequence[str], vocabulary: Vocabulary, signal: Signal = "all"
) -> np.ndarray | None:
    """The group's profile by skill, of 2S or S components; None when the group is untagged.

    A component is the mean over *all* rubrics of the skill, so that it is one linear map of the rubric profile in
    every environment; the rubrics that do not apply enter as 0 [ours].
    """
    shares = group_shares(tags, rollout_ids, vocabulary)
    if not shares.tagged:
        return None
    membership_SK = skill_membership(vocabulary)
    return _halves(membership_SK @ shares.demonstrates_K, membership_SK @ shares.violates_K, signal)


def skill_membership(vocabulary: Vocabulary) -> np.ndarray:
    """(S, K) matrix whose product with K shares is the mean of each skill's rubrics; rows sum to 1."""
    membership_SK = np.zeros((len(vocabulary.skills), len(vocabulary)))
    for s, skill_id in enumerate(vocabulary.skill_ids):
        members = [vocabulary.index(rubric.id) for rubric in vocabulary.of_skill(skill_id)]
        membership_SK[s, members] = 1.0 / len(members)
    return membership_SK


def mean_profile(
    profiles_GD: Sequence[np.ndarray], environments: Sequence[str], mode: MeanMode = "mixed"
) -> np.ndarray:
    """The mean profile of the candidates: over all groups (``mixed``), or the mean of the environments' means.

    ``environments`` names the environment of each group. Raises RubricError on an empty or unequal input.
    """
    if len(profiles_GD) != len(environments):
        raise RubricError(f"{len(profiles_GD)} profiles but {len(environments)} environments; give one for each group")
    if not len(profiles_GD):
        raise RubricError("no tagged group: a mean profile needs at least one")
    stacked_GD = np.stack([np.asarray(profile, dtype=np.float64) for profile in profiles_GD])
    if mode == "mixed":
        return stacked_GD.mean(axis=0)
    if mode == "mean_of_environments":
        names = np.asarray(environments)
        means_ED = np.stack([stacked_GD[names == name].mean(axis=0) for name in sorted(set(environments))])
        return means_ED.mean(axis=0)
    raise RubricError(f"unknown mean mode {mode!r}; use 'mixed' or 'mean_of_environments'")


def cosine(a_D: np.ndarray, b_D: np.ndarray) -> float:
    """Cosine similarity; 0.0 when either vector is zero [ours]."""
    norm = float(np.linalg.norm(a_D) * np.linalg.norm(b_D))
    return float(np.clip(np.dot(a_D, b_D) / norm, -1.0, 1.0)) if norm > 0.0 else 0.0


def _halves(demonstrates: np.ndarray, violates: np.ndarray, signal: Signal) -> np.ndarray:
    if signal == "all":
        return np.concatenate([demonstrates, violates])
    if signal == "pos":
        return demonstrates
    if signal == "neg":
        return violates
    raise RubricError(f"unknown signal {signal!r}; use 'all', 'pos' or 'neg'")
