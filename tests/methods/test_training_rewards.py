"""Training rewards: ORSD's formulas by hand, what stays as it was, and that records keep the raw reward."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_examples import group, rollout, vocabulary

from rised.methods.base import PromptGroup, TrainingReward
from rised.methods.composition import Method
from rised.methods.registry import build, piece_settings
from rised.methods.settings import MethodSettings
from rised.records.types import Rollout, Turn


def reward_of(one: Rollout, **settings: Any) -> float | None:
    found = piece_settings("reward", {"type": "orsd", **settings})
    built: TrainingReward = build("reward", found, vocabulary=vocabulary())
    return built.reward(one)


def shopping(reward: float | None, *actions: tuple[str, bool, bool]) -> Rollout:
    """A WebShop episode of (action, accepted, changed the session) turns."""
    turns = [Turn("page", a, a, valid, 0, 0, False, {"changed": changed}) for a, valid, changed in actions]
    return dataclasses.replace(rollout("g/0", "webshop", reward), turns=tuple(turns))


def test_webshops_reward_is_equation_13_by_hand() -> None:
    """T = 5; refused: 1; repeated without effect: 1 (the second `click[red]`); the repeated search changed the page."""
    actions = [
        ("search[a]", True, True),
        ("click[red]", True, True),
        ("click[red]", True, False),
        ("click[nothing]", False, False),
        ("search[a]", True, True),
    ]
    penalty = 0.05 * 1 / 5 + 0.025 * 1 / 5
    assert reward_of(shopping(0.6, *actions)) == pytest.approx(0.3 - penalty)
    assert reward_of(shopping(1.0, *actions)) == pytest.approx(1.0 - penalty)
    assert reward_of(shopping(1.0, *actions), invalid_penalty=0.0, loop_penalty=0.0) == 1.0


def test_a_first_action_without_effect_and_a_refused_repetition_are_no_loops() -> None:
    assert reward_of(shopping(0.0, ("click[x]", True, False))) == 0.0
    refused = [("click[y]", False, False), ("click[y]", False, False)]
    assert reward_of(shopping(0.0, *refused)) == pytest.approx(-0.05)


def test_an_episode_without_turns_is_not_divided_by_zero() -> None:
    assert reward_of(shopping(0.5)) == 0.25


def test_alfworld_is_binary_and_other_environments_keep_their_reward() -> None:
    assert reward_of(rollout("g/0", "alfworld", 0.7, success=True)) == 1.0
    assert reward_of(rollout("g/0", "alfworld", 0.7, success=False)) == 0.0
    assert reward_of(rollout("g/0", "dbbench", 0.7)) == 0.7


def test_an_invalid_reward_stays_invalid_and_is_no_zero() -> None:
    for environment in ("alfworld", "webshop", "dbbench"):
        assert reward_of(rollout("g/0", environment, None)) is None


@given(st.floats(0, 1), st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.booleans()), max_size=6))
def test_webshops_reward_lies_between_its_bounds_and_never_above_the_unshaped(
    score: float, actions: list[tuple[str, bool, bool]]
) -> None:
    found = reward_of(shopping(score, *actions))
    assert found is not None and -0.05 - 1e-12 <= found <= 0.5 * score + 0.5 * (score == 1.0) + 1e-12


def test_a_method_trains_on_shaped_rewards_and_leaves_the_stored_rollouts_alone() -> None:
    settings = {"name": "m", "candidate_groups": 1, "selected_groups": 1, "selector": {"type": "random"}}
    shaped = Method.from_settings(MethodSettings.model_validate(settings | {"reward": {"type": "orsd"}}), vocabulary())
    raw = PromptGroup("g", "webshop", (shopping(1.0), shopping(0.5), shopping(None)))
    (seen,) = shaped.rewarded([raw])
    assert seen.valid_rewards.tolist() == [1.0, 0.25] and raw.valid_rewards.tolist() == [1.0, 0.5]
    assert [r.reward_valid for r in seen.rollouts] == [True, True, False]
    (metric,) = shaped.reward_metrics(3, [seen])
    assert (metric.name, metric.value) == ("training_reward/webshop", 0.625)
    plain = Method.from_settings(MethodSettings.model_validate(settings), vocabulary())
    assert plain.rewarded([raw]) == [raw] and plain.reward_metrics(3, [raw]) == []
    np.testing.assert_array_equal(plain.rewarded([group("h")])[0].valid_rewards, [0.0, 1.0])
