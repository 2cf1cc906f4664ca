"""Teachers: which rubrics they show, for whom, and when they stay silent."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from method_examples import group, rollout, tags_of, vocabulary

from rised.methods.base import PromptGroup, Teacher
from rised.methods.registry import build, piece_settings
from rised.records.types import TagState, Turn
from rised.rubrics.vocabulary import Polarity
from rised.rubrics.windows import TagWindow

POSITIVE = [r.id for r in vocabulary().applicable("alfworld", Polarity.POSITIVE)]
NEGATIVE = [r.id for r in vocabulary().applicable("alfworld", Polarity.NEGATIVE)]
SHOWS, BREAKS, ABSENT = TagState.DEMONSTRATES, TagState.VIOLATES, TagState.ABSENT


def teacher(type_name: str, **more: Any) -> Teacher:
    built: Teacher = build("teacher", piece_settings("teacher", {"type": type_name, **more}), vocabulary=vocabulary())
    return built


def window(lifts: dict[str, float] | None = None) -> TagWindow:
    """A window in which each rubric was shown by two of four rollouts, with the wanted lift of -1, 0 or 1."""
    filled = TagWindow(5)
    for step, (rubric, lift) in enumerate((lifts or {}).items()):
        outcomes = {1.0: [1, 1, 0, 0], 0.0: [1, 0, 1, 0], -1.0: [0, 0, 1, 1]}[lift]
        rollouts = [rollout(f"{step}/{i}", reward=float(value)) for i, value in enumerate(outcomes)]
        states = [{rubric: SHOWS if i < 2 else ABSENT} for i in range(4)]
        tags = [tag for one, state in zip(rollouts, states, strict=True) for tag in tags_of(one.rollout_id, state)]
        filled.push(step, rollouts, tags)
    return filled


def test_positives_of_the_group_are_shown_ranked_by_lift_with_success() -> None:
    a, b, c = POSITIVE[:3]
    shown = group("g", states={a: SHOWS, b: SHOWS, c: ABSENT, NEGATIVE[0]: BREAKS})
    contexts = teacher("positive_rubrics").contexts(shown, window({b: 1.0}), "compact")
    assert len(contexts) == 2
    assert contexts[0] is not None and contexts[0] == contexts[1]
    assert contexts[0].rubric_ids == (b, a)
    assert contexts[0].text == f"hint: {b.replace('_', ' ')}; {a.replace('_', ' ')}"


def test_a_rubric_that_goes_with_failure_ranks_behind_one_without_evidence() -> None:
    a, b = POSITIVE[:2]
    (context, _) = teacher("positive_rubrics").contexts(
        group("g", states={a: SHOWS, b: SHOWS}), window({a: -1.0}), "full"
    )
    assert context is not None and context.rubric_ids == (b, a)
    assert vocabulary()[a].definition in context.text


def test_at_most_eight_rubrics_are_shown() -> None:
    many = group("g", states=dict.fromkeys(POSITIVE[:12], SHOWS))
    (context, _) = teacher("positive_rubrics").contexts(many, window(), "compact")
    assert context is not None and len(context.rubric_ids) == 8


@pytest.mark.parametrize("states", [{POSITIVE[0]: ABSENT}, {POSITIVE[0]: BREAKS}, {NEGATIVE[0]: BREAKS}, None])
def test_without_positives_the_group_carries_no_distillation_token(states: dict[str, TagState] | None) -> None:
    assert teacher("positive_rubrics").contexts(group("g", states=states), window(), "compact") == [None, None]


def test_a_demonstration_whose_tags_failed_is_no_positive() -> None:
    failed = group("g", states={POSITIVE[0]: SHOWS}, tag_errors=2)
    assert teacher("positive_rubrics").contexts(failed, window(), "compact") == [None, None]


def test_one_demonstrating_rollout_is_enough_for_the_whole_group() -> None:
    rollouts = (rollout("g/0"), rollout("g/1"), rollout("g/2"))
    tags = (
        tags_of("g/0", {POSITIVE[0]: ABSENT})
        + tags_of("g/1", {POSITIVE[0]: SHOWS})
        + tags_of("g/2", {POSITIVE[0]: ABSENT})
    )
    contexts = teacher("positive_rubrics").contexts(
        PromptGroup("g", "alfworld", rollouts, tuple(tags)), window(), "compact"
    )
    assert all(context is not None and context.rubric_ids == (POSITIVE[0],) for context in contexts)


def test_the_zero_variance_scope_teaches_only_groups_whose_rewards_are_equal() -> None:
    scoped = teacher("positive_rubrics", scope="zero_variance")
    states = {POSITIVE[0]: SHOWS}
    assert scoped.contexts(group("g", rewards=[0.0, 1.0], states=states), window(), "compact") == [None, None]
    assert None not in scoped.contexts(group("g", rewards=[0.0, 1e-9], states=states), window(), "compact")


def test_all_rubrics_shows_violated_negatives_after_the_positives() -> None:
    both = group("g", states={POSITIVE[0]: SHOWS, NEGATIVE[0]: BREAKS, NEGATIVE[1]: ABSENT})
    (context, _) = teacher("all_rubrics").contexts(both, window(), "compact")
    assert context is not None and context.rubric_ids == (POSITIVE[0], NEGATIVE[0])
    hint, avoid = context.text.split("\n")
    assert hint.startswith("hint: ") and avoid.startswith("avoid: ")


def test_all_rubrics_teaches_with_negatives_alone_and_never_lists_a_violated_positive() -> None:
    only_bad = group("g", states={POSITIVE[0]: BREAKS, NEGATIVE[0]: BREAKS})
    (context, _) = teacher("all_rubrics").contexts(only_bad, window(), "compact")
    assert context is not None and context.rubric_ids == (NEGATIVE[0],)
    assert teacher("all_rubrics").contexts(group("g", states={POSITIVE[0]: ABSENT}), window(), "compact") == [
        None,
        None,
    ]


def test_no_teacher_never_speaks() -> None:
    assert teacher("none").contexts(group("g", states={POSITIVE[0]: SHOWS}), window(), "compact") == [None, None]


def attempts(*outcomes: tuple[float | None, int]) -> PromptGroup:
    """Rollouts of so many turns, each with the given reward; action i of rollout r reads `act r.i`."""
    rollouts = []
    for r, (reward, count) in enumerate(outcomes):
        turns = tuple(Turn(f"see {r}.{i}", f"ACT {r}.{i}", f"act {r}.{i}", True, 2, 3, False) for i in range(count))
        rollouts.append(dataclasses.replace(rollout(f"g/{r}", reward=reward), turns=turns, rollout_index=r))
    return PromptGroup("g", "alfworld", tuple(rollouts))


def test_each_rollout_is_told_the_shortest_success_of_another() -> None:
    shown = attempts((0.0, 1), (1.0, 3), (1.0, 2), (None, 1))
    texts = [c and c.text for c in teacher("sibling_success").contexts(shown, window(), "compact")]
    second, third = "example: act 1.0; act 1.1; act 1.2", "example: act 2.0; act 2.1"
    assert texts == [third, third, second, third]


def test_the_only_success_is_not_told_its_own_and_without_one_nobody_is_taught() -> None:
    one = attempts((0.0, 1), (1.0, 2))
    assert [c is None for c in teacher("sibling_success").contexts(one, window(), "full")] == [False, True]
    none = attempts((0.0, 1), (None, 2))
    assert teacher("sibling_success").contexts(none, window(), "full") == [None, None]


def test_the_full_style_tells_observations_and_a_long_attempt_its_last_actions_alone() -> None:
    shown = attempts((0.0, 1), (1.0, 2))
    (context, _) = teacher("sibling_success").contexts(shown, window(), "full")
    assert context is not None and context.text.endswith("Observation: see 1.1\nAction: act 1.1")
    (context, _) = teacher("sibling_success", max_characters=10).contexts(shown, window(), "full")
    assert context is not None and context.text == "example: act 1.1"
