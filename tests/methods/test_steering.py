"""Steering: when the switch turns, what it names, and that its state survives a restart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from method_examples import rollout, tags_of, vocabulary

from rised.methods.base import Steering
from rised.methods.errors import MethodError
from rised.methods.registry import build, piece_settings
from rised.records.types import TagState
from rised.rubrics.vocabulary import Polarity
from rised.rubrics.windows import TagWindow

POSITIVE = [r.id for r in vocabulary().applicable("alfworld", Polarity.POSITIVE)]
NEGATIVE = [r.id for r in vocabulary().applicable("alfworld", Polarity.NEGATIVE)]


def steering(type_name: str = "negative_rubrics", **more: Any) -> Steering:
    built: Steering = build(
        "steering", piece_settings("steering", {"type": type_name, **more}), vocabulary=vocabulary()
    )
    return built


def push(
    window: TagWindow, step: int, violates: dict[str, int], demonstrates: int, environment: str = "alfworld"
) -> None:
    """A step in which each rubric of ``violates`` is violated so often and one positive demonstrated so often."""
    rollouts, tags = [], []
    events = [(rubric, TagState.VIOLATES) for rubric, count in violates.items() for _ in range(count)]
    events += [(POSITIVE[0], TagState.DEMONSTRATES)] * demonstrates
    for index, (rubric, state) in enumerate(events):
        one = rollout(f"{environment}{step}/{index}", environment)
        rollouts.append(one)
        tags += tags_of(one.rollout_id, {rubric: state})
    window.push(step, rollouts, tags)


def test_the_three_most_violated_rubrics_are_named_where_violations_dominate() -> None:
    window = TagWindow(5)
    a, b, c, d = NEGATIVE[:4]
    push(window, 0, {a: 1, b: 4, c: 2, d: 3}, demonstrates=9)
    assert steering().next_step(window) == {"alfworld": (b, d, c)}


def test_equal_counts_do_not_switch_on() -> None:
    window = TagWindow(5)
    push(window, 0, {NEGATIVE[0]: 5}, demonstrates=5)
    assert steering().next_step(window) == {}


def test_the_switch_stays_on_down_to_the_off_ratio_and_must_pass_the_on_ratio_again() -> None:
    rule = steering()
    on = []
    for violated, demonstrated in [(11, 10), (9, 10), (8, 10), (7, 10), (9, 10), (11, 10)]:
        window = TagWindow(1)
        push(window, 0, {NEGATIVE[0]: violated}, demonstrated)
        on.append("alfworld" in rule.next_step(window))
    assert on == [True, True, True, False, False, True]


def test_environments_are_judged_apart() -> None:
    window = TagWindow(5)
    push(window, 0, {NEGATIVE[0]: 5}, demonstrates=1)
    push(window, 1, {}, demonstrates=5, environment="webshop")
    assert set(steering().next_step(window)) == {"alfworld"}


def test_violated_positives_count_towards_the_switch_but_are_never_named() -> None:
    window = TagWindow(5)
    push(window, 0, {POSITIVE[1]: 9, NEGATIVE[2]: 1}, demonstrates=3)
    assert steering().next_step(window) == {"alfworld": (NEGATIVE[2],)}
    window = TagWindow(5)
    push(window, 0, {POSITIVE[1]: 9}, demonstrates=3)
    assert steering().next_step(window) == {}


def test_the_state_survives_json() -> None:
    rule, window = steering(), TagWindow(1)
    push(window, 0, {NEGATIVE[0]: 5}, demonstrates=1)
    rule.next_step(window)
    restored = steering()
    restored.load_state(json.loads(json.dumps(rule.state())))
    window = TagWindow(1)
    push(window, 0, {NEGATIVE[0]: 9}, demonstrates=10)
    assert restored.next_step(window) == rule.next_step(window) == {"alfworld": (NEGATIVE[0],)}
    assert steering().next_step(window) == {}


def test_a_state_of_another_kind_is_refused() -> None:
    with pytest.raises(MethodError, match="is not one of `negative_rubrics`"):
        steering().load_state({})


def test_no_steering_never_steers() -> None:
    window = TagWindow(5)
    push(window, 0, {NEGATIVE[0]: 5}, demonstrates=0)
    assert steering("none").next_step(window) == {}
