"""Profiles, their means and cosines, and the window of recent tags."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rised.records.types import Tag, TagState, TagStatus
from rised.rubrics.base import RubricError
from rised.rubrics.profiles import (
    cosine,
    group_shares,
    mean_profile,
    rubric_profile,
    skill_membership,
    skill_profile,
)
from rised.rubrics.tags import demonstrated_positives, valid_states, violated_negatives
from rised.rubrics.vocabulary import Polarity, Vocabulary, load_vocabulary

D, V, A = TagState.DEMONSTRATES, TagState.VIOLATES, TagState.ABSENT
POSITIVE, NEGATIVE = "opens_closed_receptacle", "repeats_failed_action"
VOCABULARY = load_vocabulary()
ALFWORLD = VOCABULARY.applicable("alfworld")


def tag(rollout_id: str, rubric_id: str, state: TagState | None, judge: str = "rules-test") -> Tag:
    status = TagStatus.ERROR if state is None else TagStatus.OK
    return Tag(rollout_id, rubric_id, state, None, judge, status, "unreadable" if state is None else "")


def group(states: dict[str, dict[str, TagState | None]]) -> tuple[list[Tag], list[str]]:
    return [tag(rollout, rubric, state) for rollout, by in states.items() for rubric, state in by.items()], list(states)


def eight(states: Iterable[TagState | None], rubric_id: str = POSITIVE) -> tuple[list[Tag], list[str]]:
    return group({f"r{index}": {rubric_id: state} for index, state in enumerate(states)})


def test_shares_count_validly_tagged_rollouts_only(vocabulary: Vocabulary) -> None:
    tags, ids = eight([D, D, A, A, A, None, None, None])
    profile = rubric_profile(tags, ids, vocabulary)
    assert profile is not None
    assert profile[vocabulary.index(POSITIVE)] == 2 / 5


def test_a_group_with_fewer_than_half_tagged_is_untagged_and_exactly_half_is_tagged(vocabulary: Vocabulary) -> None:
    assert rubric_profile(*eight([D, D, A] + [None] * 5), vocabulary) is None
    assert skill_profile(*eight([D, D, A] + [None] * 5), vocabulary) is None
    tagged = rubric_profile(*eight([D, D, A, A] + [None] * 4), vocabulary)
    assert tagged is not None and tagged[vocabulary.index(POSITIVE)] == 0.5


def test_a_rollout_without_any_tag_counts_as_untagged(vocabulary: Vocabulary) -> None:
    tags, ids = eight([D, D, D])
    assert rubric_profile(tags, [*ids, "r3", "r4", "r5"], vocabulary) is not None
    assert rubric_profile(tags, [*ids, "r3", "r4", "r5", "r6"], vocabulary) is None


def test_a_group_without_rollouts_or_tags_is_untagged(vocabulary: Vocabulary) -> None:
    assert rubric_profile([], [], vocabulary) is None
    assert rubric_profile([], ["r0"], vocabulary) is None


def test_one_error_makes_the_whole_rollout_invalid(vocabulary: Vocabulary) -> None:
    tags, ids = group({"r0": {POSITIVE: D, NEGATIVE: None}, "r1": {POSITIVE: A, NEGATIVE: A}})
    shares = group_shares(tags, ids, vocabulary)
    assert (shares.valid_count, shares.rollout_count) == (1, 2)
    assert shares.demonstrates_K.sum() == 0.0


def test_the_halves_are_demonstrates_then_violates(vocabulary: Vocabulary) -> None:
    tags, ids = group({"r0": {POSITIVE: D, NEGATIVE: V}, "r1": {POSITIVE: V, NEGATIVE: A}})
    both, pos, neg = (rubric_profile(tags, ids, vocabulary, signal) for signal in ("all", "pos", "neg"))
    assert both is not None and pos is not None and neg is not None
    assert (both.shape, pos.shape, neg.shape) == ((118,), (59,), (59,))
    assert both.dtype == np.float64
    assert np.array_equal(both, np.concatenate([pos, neg]))
    assert pos[vocabulary.index(POSITIVE)] == 0.5 and pos[vocabulary.index(NEGATIVE)] == 0.0
    assert neg[vocabulary.index(POSITIVE)] == 0.5 and neg[vocabulary.index(NEGATIVE)] == 0.5


def test_skill_profiles_average_the_rubrics_of_a_skill(vocabulary: Vocabulary) -> None:
    tags, ids = group({"r0": {POSITIVE: D, NEGATIVE: V}, "r1": {POSITIVE: A, NEGATIVE: V}})
    both = skill_profile(tags, ids, vocabulary)
    neg = skill_profile(tags, ids, vocabulary, "neg")
    assert both is not None and neg is not None
    assert (both.shape, neg.shape) == ((20,), (10,))
    manipulation = vocabulary.skill_ids.index("object_manipulation")
    recovery = vocabulary.skill_ids.index("error_recovery_and_exploration")
    assert both[manipulation] == pytest.approx(0.5 / 6)
    assert neg[recovery] == pytest.approx(1 / 7)
    assert both.sum() == pytest.approx(0.5 / 6 + 1 / 7)


def test_unequal_coverage_within_a_group_is_refused(vocabulary: Vocabulary) -> None:
    tags, ids = group({"r0": {POSITIVE: D, NEGATIVE: V}, "r1": {POSITIVE: D}})
    with pytest.raises(RubricError, match="other rubrics than its group: repeats_failed_action"):
        rubric_profile(tags, ids, vocabulary)


def test_contradicting_tags_are_refused(vocabulary: Vocabulary) -> None:
    tags, ids = eight([D, A])
    with pytest.raises(RubricError, match="tagged twice"):
        valid_states([*tags, tags[0]], ids)
    with pytest.raises(RubricError, match="2 judges are mixed"):
        valid_states([tags[0], tag("r1", POSITIVE, A, judge="rules-other")], ids)
    with pytest.raises(RubricError, match="same rollout id is given twice"):
        valid_states(tags, ["r0", "r0"])
    broken = Tag("r0", POSITIVE, A, None, "rules-test", TagStatus.ERROR)
    with pytest.raises(RubricError, match="a state stands exactly with status ok"):
        valid_states([broken], ids)
    with pytest.raises(RubricError, match="'is_polite' is not in the vocabulary"):
        rubric_profile([tag("r0", "is_polite", D)], ["r0"], vocabulary)


def test_tags_of_other_groups_are_ignored(vocabulary: Vocabulary) -> None:
    tags, ids = eight([D, A])
    other = [tag("elsewhere", POSITIVE, D)]
    assert valid_states(tags + other, ids) == valid_states(tags, ids)


def test_positives_and_negatives_of_a_group_follow_polarity_and_validity(vocabulary: Vocabulary) -> None:
    tags, ids = group(
        {
            "r0": {"picks_up_target_object": D, POSITIVE: V, NEGATIVE: V},
            "r1": {"picks_up_target_object": A, POSITIVE: D, NEGATIVE: None},
        }
    )
    assert demonstrated_positives(tags, ids, vocabulary) == ("picks_up_target_object",)
    assert violated_negatives(tags, ids, vocabulary) == (NEGATIVE,)


def test_the_mean_over_groups_and_over_environments_differ_with_unequal_sizes() -> None:
    profiles = [np.array([1.0, 0.0]), np.array([0.0, 0.0]), np.array([0.0, 0.0]), np.array([0.0, 1.0])]
    environments = ["webshop", "webshop", "webshop", "alfworld"]
    assert mean_profile(profiles, environments).tolist() == [0.25, 0.25]
    assert mean_profile(profiles, environments, "mean_of_environments") == pytest.approx([1 / 6, 0.5])


def test_a_mean_of_nothing_and_unequal_lists_are_refused() -> None:
    with pytest.raises(RubricError, match="no tagged group"):
        mean_profile([], [])
    with pytest.raises(RubricError, match="1 profiles but 2 environments"):
        mean_profile([np.zeros(2)], ["a", "b"])
    with pytest.raises(RubricError, match="unknown mean mode"):
        mean_profile([np.zeros(2)], ["a"], "median")  # type: ignore[arg-type]


def test_the_cosine_with_a_zero_vector_is_zero() -> None:
    zero, one = np.zeros(4), np.array([1.0, 0.0, 0.0, 0.0])
    assert cosine(zero, one) == cosine(one, zero) == cosine(zero, zero) == 0.0


shares_ = st.lists(st.integers(0, 8), min_size=6, max_size=6).map(lambda counts: np.array(counts) / 8)


@settings(deadline=None)
@given(shares_, shares_, st.floats(0.01, 100.0))
def test_the_cosine_of_profiles_is_symmetric_bounded_and_blind_to_scale(
    a: np.ndarray, b: np.ndarray, scale: float
) -> None:
    value = cosine(a, b)
    assert 0.0 <= value <= 1.0
    assert value == cosine(b, a)
    assert cosine(scale * a, b) == pytest.approx(value, abs=1e-12)
    if a.any():
        assert cosine(a, a) == pytest.approx(1.0, abs=1e-12)


def _states_for(polarity: Polarity) -> st.SearchStrategy[TagState | None]:
    return st.sampled_from([D, V, A, None] if polarity is Polarity.POSITIVE else [V, A, None])


groups_ = st.lists(
    st.fixed_dictionaries({rubric.id: _states_for(rubric.polarity) for rubric in ALFWORLD[:5]}), min_size=1, max_size=8
).map(lambda rows: group({f"r{index}": row for index, row in enumerate(rows)}))


@settings(max_examples=60, deadline=None)
@given(groups_, st.randoms(use_true_random=False))
def test_profiles_are_shares_that_never_depend_on_the_order_of_tags(
    tagged: tuple[list[Tag], list[str]], random: object
) -> None:
    tags, ids = tagged
    shuffled, other_ids = list(tags), list(ids)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    random.shuffle(other_ids)  # type: ignore[attr-defined]
    profile, again = rubric_profile(tags, ids, VOCABULARY), rubric_profile(shuffled, other_ids, VOCABULARY)
    valid = {
        rollout for rollout in ids if all(entry.status is TagStatus.OK for entry in tags if entry.rollout_id == rollout)
    }
    assert (profile is None) == (not valid or 2 * len(valid) < len(ids))
    if profile is None or again is None:
        assert profile is again
        return
    assert np.array_equal(profile, again)
    assert ((profile >= 0) & (profile <= 1)).all()
    assert (profile[:59] + profile[59:] <= 1 + 1e-12).all()
    assert np.allclose(profile * len(valid), np.round(profile * len(valid)))
    by_skill = skill_profile(tags, ids, VOCABULARY)
    assert by_skill is not None
    members_SK = skill_membership(VOCABULARY)
    assert np.allclose(by_skill, np.concatenate([members_SK @ profile[:59], members_SK @ profile[59:]]))


@settings(max_examples=60, deadline=None)
@given(groups_)
def test_an_invalid_rollout_changes_nothing_but_the_number_of_rollouts(tagged: tuple[list[Tag], list[str]]) -> None:
    tags, ids = tagged
    before = group_shares(tags, ids, VOCABULARY)
    broken = [tag("broken", POSITIVE, None), tag("broken", NEGATIVE, V)]
    after = group_shares([*tags, *broken], [*ids, "broken"], VOCABULARY)
    assert np.array_equal(before.demonstrates_K, after.demonstrates_K)
    assert np.array_equal(before.violates_K, after.violates_K)
    assert (after.valid_count, after.rollout_count) == (before.valid_count, before.rollout_count + 1)


def test_skill_membership_rows_sum_to_one(vocabulary: Vocabulary) -> None:
    assert np.allclose(skill_membership(vocabulary).sum(axis=1), 1.0)
    assert ((skill_membership(vocabulary) > 0).sum(axis=0) == 1).all()
