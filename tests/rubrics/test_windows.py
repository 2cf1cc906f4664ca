"""The window of recent tags: counts, lift, rankings, and its exact restoration."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rised.records.types import Rollout, Tag, TagState, TagStatus
from rised.rubrics.base import RubricError
from rised.rubrics.vocabulary import Vocabulary
from rised.rubrics.windows import TagWindow

MakeRollout = Callable[..., Rollout]
D, V, A = TagState.DEMONSTRATES, TagState.VIOLATES, TagState.ABSENT
OPENS, TAKES, REPEATS = "opens_closed_receptacle", "picks_up_target_object", "repeats_failed_action"
Row = tuple[str, bool | None, dict[str, TagState | None]]


def step_of(make_rollout: MakeRollout, step: int, rows: list[Row]) -> tuple[int, list[Rollout], list[Tag]]:
    """A step's arguments for ``push``: per rollout its environment, its success (None: invalid) and its states."""
    rollouts, tags = [], []
    for index, (environment, success, states) in enumerate(rows):
        rollout_id = f"s{step}-r{index}"
        rollouts.append(
            make_rollout(environment, rollout_id=rollout_id, success=success, reward_valid=success is not None)
        )
        for rubric_id, state in states.items():
            status = TagStatus.ERROR if state is None else TagStatus.OK
            tags.append(Tag(rollout_id, rubric_id, state, None, "rules-test", status))
    return step, rollouts, tags


def window_of(make_rollout: MakeRollout, steps: list[list[Row]], length: int = 5) -> TagWindow:
    window = TagWindow(length)
    for step, rows in enumerate(steps):
        window.push(*step_of(make_rollout, step, rows))
    return window


def test_counts_are_kept_apart_by_environment(make_rollout: MakeRollout) -> None:
    rows: list[Row] = [
        ("alfworld", False, {OPENS: D, REPEATS: V}),
        ("alfworld", True, {OPENS: D, REPEATS: A}),
        ("webshop", False, {REPEATS: V}),
    ]
    window = window_of(make_rollout, [rows])
    assert window.counts("alfworld").demonstrates == {OPENS: 2} and window.counts("alfworld").violates == {REPEATS: 1}
    assert window.counts("webshop").violates.total() == 1
    assert window.counts("dbbench").rollouts == 0


def test_the_oldest_step_drops_out(make_rollout: MakeRollout) -> None:
    row: Row = ("alfworld", False, {REPEATS: V})
    window = window_of(make_rollout, [[row]] * 7, length=5)
    assert window.steps == (2, 3, 4, 5, 6)
    assert window.counts("alfworld").violates[REPEATS] == 5


def test_a_step_without_rollouts_of_an_environment_still_moves_the_window(make_rollout: MakeRollout) -> None:
    steps: list[list[Row]] = [[("alfworld", False, {REPEATS: V})], [], []]
    assert window_of(make_rollout, steps, length=2).counts("alfworld").violates[REPEATS] == 0


def test_rollouts_with_tag_errors_are_left_out(make_rollout: MakeRollout) -> None:
    window = window_of(make_rollout, [[("alfworld", True, {OPENS: D, REPEATS: None}), ("alfworld", True, {OPENS: D})]])
    assert window.counts("alfworld").rollouts == 1 and window.counts("alfworld").demonstrates[OPENS] == 1


def test_lift_is_the_difference_of_success_with_and_without_the_rubric(make_rollout: MakeRollout) -> None:
    rows: list[Row] = [
        ("alfworld", True, {OPENS: D}),
        ("alfworld", True, {OPENS: D}),
        ("alfworld", False, {OPENS: D}),
        ("alfworld", True, {OPENS: A}),
        ("alfworld", False, {OPENS: A}),
        ("alfworld", False, {OPENS: V}),
        ("alfworld", False, {OPENS: V}),
        ("alfworld", None, {OPENS: D}),
    ]
    window = window_of(make_rollout, [rows[:4], rows[4:]])
    assert window.lift("alfworld", OPENS) == pytest.approx(2 / 3 - 1 / 4)
    assert window.counts("alfworld").demonstrates[OPENS] == 4


def test_lift_is_undefined_when_all_or_none_demonstrate_the_rubric(make_rollout: MakeRollout) -> None:
    window = window_of(
        make_rollout, [[("alfworld", True, {OPENS: D, TAKES: A}), ("alfworld", False, {OPENS: D, TAKES: A})]]
    )
    assert window.lift("alfworld", OPENS) is None and window.lift("alfworld", TAKES) is None
    assert window.lift("webshop", OPENS) is None


def test_positives_rank_by_lift_then_count_then_vocabulary_order(
    make_rollout: MakeRollout, vocabulary: Vocabulary
) -> None:
    def states(**shown: TagState) -> dict[str, TagState | None]:
        return {rubric_id: shown.get(rubric_id, A) for rubric_id in ids}

    ids = [rubric.id for rubric in vocabulary.applicable("alfworld") if rubric.polarity.value == "positive"]
    rows: list[Row] = [
        ("alfworld", True, states(picks_up_target_object=D, finishes_without_detour=D, systematic_object_search=D)),
        ("alfworld", True, states(picks_up_target_object=D, finishes_without_detour=D)),
        ("alfworld", False, states(finishes_without_detour=D, opens_closed_receptacle=D)),
        ("alfworld", False, states(finishes_without_detour=D)),
    ]
    window = window_of(make_rollout, [rows])
    ranked = window.rank_positives("alfworld", reversed(ids), vocabulary, limit=len(ids))
    assert ranked[:3] == ("picks_up_target_object", "systematic_object_search", "finishes_without_detour")
    assert ranked[-1] == "opens_closed_receptacle"
    undefined = ranked[3:-1]
    assert list(undefined) == sorted(undefined, key=vocabulary.index)
    assert window.rank_positives("alfworld", ids, vocabulary) == ranked[:8]


def test_most_violated_lists_negative_rubrics_only(make_rollout: MakeRollout, vocabulary: Vocabulary) -> None:
    states: dict[str, TagState | None] = {
        OPENS: V,
        REPEATS: V,
        "malformed_action": V,
        "cycles_between_states": V,
        "commits_too_early": V,
    }
    more = {rubric_id: (V if rubric_id in (OPENS, "malformed_action") else A) for rubric_id in states}
    window = window_of(make_rollout, [[("alfworld", False, states), ("alfworld", False, dict(more))]])
    assert window.most_violated("alfworld", vocabulary) == ("malformed_action", REPEATS, "cycles_between_states")
    assert window.most_violated("webshop", vocabulary) == ()


def test_steps_must_increase(make_rollout: MakeRollout) -> None:
    window = window_of(make_rollout, [[], []])
    with pytest.raises(RubricError, match="step 1 was pushed after step 1"):
        window.push(1, [], [])


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(RubricError, match="at least one step"):
        TagWindow(0)


rows_ = st.tuples(
    st.sampled_from(["alfworld", "webshop"]),
    st.sampled_from([True, False, None]),
    st.fixed_dictionaries(
        {REPEATS: st.sampled_from([V, A, None]), "revises_plan_after_failure": st.sampled_from([D, V, A])}
    ),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(rows_, max_size=5), max_size=8), st.integers(1, 4), st.integers(0, 8))
def test_a_window_restored_from_json_goes_on_exactly_as_the_original(
    make_rollout: MakeRollout, steps: list[list[Row]], length: int, cut: int
) -> None:
    whole = window_of(make_rollout, steps, length)
    first = window_of(make_rollout, steps[:cut], length)
    resumed = TagWindow.from_json(json.loads(json.dumps(first.to_json())))
    for step, rows in list(enumerate(steps))[cut:]:
        resumed.push(*step_of(make_rollout, step, rows))
    assert json.dumps(resumed.to_json()) == json.dumps(whole.to_json())
    for environment in ("alfworld", "webshop"):
        assert resumed.counts(environment) == whole.counts(environment)
        assert resumed.lift(environment, "revises_plan_after_failure") == whole.lift(
            environment, "revises_plan_after_failure"
        )
