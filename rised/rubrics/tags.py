"""What a set of tags says of a set of rollouts: which rollouts count, and which rubrics they show.

A rollout is *validly tagged* when it has at least one tag and none of its tags has an error [ours]: one unreadable
verdict makes the rollout's other verdicts a selection of what happened to be readable. A rollout that is not validly
tagged contributes nothing: neither a state nor a place in a denominator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rised.records.types import Tag, TagState, TagStatus
from rised.rubrics.base import RubricError
from rised.rubrics.vocabulary import Polarity, Vocabulary

StatesByRollout = dict[str, dict[str, TagState]]
"""rollout id -> rubric id -> state, for validly tagged rollouts only."""


def valid_states(tags: Iterable[Tag], rollout_ids: Sequence[str]) -> StatesByRollout:
    """The states of the validly tagged rollouts among ``rollout_ids``, in their order.

    Tags of other rollouts are ignored. Raises RubricError when a rubric is tagged twice in a rollout, when tags of
    several judges are mixed, or when a state and its status contradict each other.
    """
    if len(set(rollout_ids)) != len(rollout_ids):
        raise RubricError("the same rollout id is given twice; a rollout counts once in its group")
    states: StatesByRollout = {rollout_id: {} for rollout_id in rollout_ids}
    seen: set[tuple[str, str]] = set()
    failed: set[str] = set()
    judges: set[str] = set()
    for tag in tags:
        if tag.rollout_id not in states:
            continue
        key = (tag.rollout_id, tag.rubric_id)
        if key in seen:
            raise RubricError(f"rollout {tag.rollout_id!r}: rubric {tag.rubric_id!r} is tagged twice")
        seen.add(key)
        judges.add(tag.judge)
        if (tag.status is TagStatus.OK) != (tag.state is not None):
            raise RubricError(
                f"rollout {tag.rollout_id!r}, rubric {tag.rubric_id!r}: status {tag.status.value!r} with state "
                f"{tag.state!r}; a state stands exactly with status ok"
            )
        if tag.state is None:
            failed.add(tag.rollout_id)
        else:
            states[tag.rollout_id][tag.rubric_id] = tag.state
    if len(judges) > 1:
        raise RubricError(f"tags of {len(judges)} judges are mixed ({', '.join(sorted(judges))}); pass those of one")
    return {rollout_id: found for rollout_id, found in states.items() if found and rollout_id not in failed}


def demonstrated_positives(tags: Iterable[Tag], rollout_ids: Sequence[str], vocabulary: Vocabulary) -> tuple[str, ...]:
    """P(g): the positive rubrics that at least one validly tagged rollout of the group demonstrates, in order."""
    return _shown(tags, rollout_ids, vocabulary, Polarity.POSITIVE, TagState.DEMONSTRATES)


def violated_negatives(tags: Iterable[Tag], rollout_ids: Sequence[str], vocabulary: Vocabulary) -> tuple[str, ...]:
    """The negative rubrics that at least one validly tagged rollout of the group violates, in order."""
    return _shown(tags, rollout_ids, vocabulary, Polarity.NEGATIVE, TagState.VIOLATES)


def _shown(
    tags: Iterable[Tag], rollout_ids: Sequence[str], vocabulary: Vocabulary, polarity: Polarity, state: TagState
) -> tuple[str, ...]:
    found = {
        rubric_id
        for states in valid_states(tags, rollout_ids).values()
        for rubric_id, value in states.items()
        if value is state and vocabulary.polarity(rubric_id) is polarity
    }
    return tuple(sorted(found, key=vocabulary.index))
