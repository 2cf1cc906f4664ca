"""The wording of hint and avoid blocks."""

from __future__ import annotations

import pytest

from rised.rubrics.base import RubricError
from rised.rubrics.blocks import avoid_block, hint_block
from rised.rubrics.vocabulary import Polarity, Vocabulary


def test_the_compact_style_is_one_line_of_names_in_the_given_order(vocabulary: Vocabulary) -> None:
    ids = ["selects_requested_option", "formulates_constrained_search_query"]
    assert hint_block(ids, vocabulary) == "hint: selects requested option; formulates constrained search query"
    assert avoid_block(["malformed_action"], vocabulary, "compact") == "avoid: malformed action"


def test_the_full_style_gives_one_line_of_name_and_definition_for_each_rubric(vocabulary: Vocabulary) -> None:
    lines = avoid_block(["repeats_failed_action", "malformed_action"], vocabulary, "full").splitlines()
    assert len(lines) == 3
    assert (
        lines[1].startswith("- repeats failed action: ") and vocabulary["repeats_failed_action"].definition in lines[1]
    )
    assert "hint" not in lines[0].lower() and "avoid" in lines[0].lower()


@pytest.mark.parametrize("style", ["compact", "full"])
def test_no_rubrics_make_no_block(vocabulary: Vocabulary, style: str) -> None:
    assert hint_block([], vocabulary, style) == avoid_block([], vocabulary, style) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize("style", ["compact", "full"])
def test_every_rubric_of_the_vocabulary_can_be_worded(vocabulary: Vocabulary, style: str) -> None:
    for rubric in vocabulary.rubrics:
        render = hint_block if rubric.polarity is Polarity.POSITIVE else avoid_block
        block = render([rubric.id], vocabulary, style)  # type: ignore[arg-type]
        assert rubric.words in block and "_" not in block


def test_a_rubric_of_the_other_polarity_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(RubricError, match="hint block: 'malformed_action' is negative"):
        hint_block(["malformed_action"], vocabulary)
    with pytest.raises(RubricError, match="avoid block: 'opens_closed_receptacle' is positive"):
        avoid_block(["opens_closed_receptacle"], vocabulary)


def test_repeated_and_unknown_rubrics_and_styles_are_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(RubricError, match="stands twice"):
        hint_block(["compares_candidates", "compares_candidates"], vocabulary)
    with pytest.raises(RubricError, match="'is_polite' is not in the vocabulary"):
        hint_block(["is_polite"], vocabulary)
    with pytest.raises(RubricError, match="unknown block style 'long'"):
        hint_block([], vocabulary, "long")  # type: ignore[arg-type]
