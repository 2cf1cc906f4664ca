"""A verifier for bundles of the vocabulary: the tags that the run's judge gave the rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup
from rised.methods.bundles.base import Desk, Draft, Scored, Verifier
from rised.methods.errors import MethodError
from rised.methods.registry import piece
from rised.records.types import BundleStatus, TagState
from rised.rubrics.tags import valid_states
from rised.rubrics.vocabulary import Polarity

SCORES: dict[Polarity, dict[TagState, float]] = {
    Polarity.POSITIVE: {TagState.DEMONSTRATES: 1.0, TagState.ABSENT: 0.5, TagState.VIOLATES: 0.0},
    Polarity.NEGATIVE: {TagState.ABSENT: 1.0, TagState.VIOLATES: 0.0},
}
"""How far a tag says that the criterion is met: what is neither shown nor broken is met by half, and a behaviour to
avoid is avoided where it is absent. [ours]"""


@piece("verifier", "tags")
class TagVerifier(Verifier):
    """A criterion's score is its tag's, by ``SCORES``. A rollout with a tag error has no scores, and a group of which
    fewer than half the rollouts are readable is not scored at all. [ours]"""

    needs_tags = True

    class Settings(PieceSettings):
        """No settings."""

        type: Literal["tags"] = strict(description="Scores from the rollouts' tags; for bundles of the vocabulary.")

    def scored(self, drafts: Sequence[tuple[PromptGroup, Draft]], desk: Desk) -> list[Scored]:
        return [self._scored(group, draft) for group, draft in drafts]

    def _scored(self, group: PromptGroup, draft: Draft) -> Scored:
        foreign = [criterion.text for criterion in draft.criteria if not criterion.rubric_id]
        if foreign:
            raise MethodError(
                f"the verifier `tags` cannot score {foreign[0][:80]!r}, which is no rubric of the vocabulary: use the "
                "verifier `judge`, or the writer `vocabulary`"
            )
        rollout_ids = [rollout.rollout_id for rollout in group.rollouts]
        states = valid_states(group.tags, rollout_ids)
        if 2 * len(states) < len(rollout_ids):
            reason = f"{len(states)} of {len(rollout_ids)} rollouts have readable tags"
            return Scored((), "tags", BundleStatus.UNTAGGED, reason)
        rubric_ids = [criterion.rubric_id for criterion in draft.criteria]
        rows = [self._row(states.get(rollout_id, {}), rubric_ids) for rollout_id in rollout_ids]
        return Scored(tuple(rows), "tags")

    def _row(self, found: dict[str, TagState], rubric_ids: Sequence[str]) -> tuple[float, ...]:
        if not all(rubric_id in found for rubric_id in rubric_ids):
            return ()
        return tuple(SCORES[self.vocabulary.polarity(i)][found[i]] for i in rubric_ids)
