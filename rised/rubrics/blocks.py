"""How rubrics are worded for a policy: the hint block of a teacher's prompt and the avoid block of steering.

Text only: which rubrics go into a block is decided by teachers and steering, and where the block stands in a prompt by
the episode loop. The wording is ours; the paper names the blocks but does not show them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rised.rubrics.base import RubricError
from rised.rubrics.vocabulary import Polarity, Vocabulary

BlockStyle = Literal["compact", "full"]
"""``compact``: one line of names, for small models and short prompts; ``full``: name and definition, one a line."""

_TITLES = {
    Polarity.POSITIVE: ("hint", "Behaviours that help with this task:"),
    Polarity.NEGATIVE: ("avoid", "Behaviours to avoid in this task:"),
}


def hint_block(rubric_ids: Sequence[str], vocabulary: Vocabulary, style: BlockStyle = "compact") -> str:
    """The block of positive rubrics, in the given order; "" when there is none.

    Raises RubricError for an unknown, repeated or negative rubric.
    """
    return _block(rubric_ids, vocabulary, style, Polarity.POSITIVE)


def avoid_block(rubric_ids: Sequence[str], vocabulary: Vocabulary, style: BlockStyle = "compact") -> str:
    """The block of negative rubrics, in the given order; "" when there is none.

    Raises RubricError for an unknown, repeated or positive rubric: "avoid: opens closed receptacle" would ask for the
    opposite of what is meant.
    """
    return _block(rubric_ids, vocabulary, style, Polarity.NEGATIVE)


def _block(rubric_ids: Sequence[str], vocabulary: Vocabulary, style: BlockStyle, polarity: Polarity) -> str:
    label, title = _TITLES[polarity]
    if len(set(rubric_ids)) != len(rubric_ids):
        raise RubricError(f"{label} block: a rubric stands twice in {list(rubric_ids)}")
    rubrics = [vocabulary[rubric_id] for rubric_id in rubric_ids]
    for rubric in rubrics:
        if rubric.polarity is not polarity:
            raise RubricError(
                f"{label} block: {rubric.id!r} is {rubric.polarity.value}, only {polarity.value} ones fit"
            )
    if style not in ("compact", "full"):
        raise RubricError(f"unknown block style {style!r}; use 'compact' or 'full'")
    if not rubrics:
        return ""
    if style == "compact":
        return f"{label}: " + "; ".join(rubric.words for rubric in rubrics)
    return "\n".join([title, *(f"- {rubric.words}: {rubric.definition}" for rubric in rubrics)])
