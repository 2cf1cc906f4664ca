"""Advantages: the case table, invalid rollouts, and normalisation per environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_examples import group, rollout, vocabulary

from rised.methods.advantages.group_normalised import group_advantages
from rised.methods.base import Advantage, PromptGroup
from rised.methods.registry import build, piece_settings
from rised.methods.rewards import reward_variance, zero_variance


def advantage(**settings: Any) -> Advantage:
    built: Advantage = build("advantage", piece_settings("advantage", settings), vocabulary=vocabulary())
    return built


@pytest.fixture(scope="module")
def table(cases_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cases_dir / "28-advantage-table/expected.json").read_text())
    return found


def test_advantages_and_zero_variance_are_those_of_the_case_table(table: dict[str, Any]) -> None:
    for row in table["groups"]:
        rewards = np.array(row["rewards"])
        np.testing.assert_allclose(group_advantages(rewards), row["advantages"], atol=1e-6, err_msg=row["name"])
        assert zero_variance(rewards) is row["zero_variance"], row["name"]
        if row["std"] is not None:
            assert np.std(rewards, ddof=1) == pytest.approx(row["std"], rel=1e-9, abs=1e-16)


def test_a_zero_variance_group_gets_exactly_zero_and_every_other_group_its_row(table: dict[str, Any]) -> None:
    piece = advantage(type="group_normalised")
    for row in table["groups"]:
        (found,) = piece.advantages([group(row["name"], rewards=row["rewards"])])
        expected = [0.0] * len(row["rewards"]) if row["zero_variance"] else row["advantages"]
        np.testing.assert_allclose(np.array(found, dtype=float), expected, atol=0 if row["zero_variance"] else 1e-6)


def test_seven_equal_rewards_leave_no_residue_that_fp32_would_blow_up() -> None:
    naive = np.array([0.35] * 7, dtype=np.float32)
    residue = float(np.sqrt(np.abs(np.mean(naive**2) - np.mean(naive) ** 2)))
    assert residue == pytest.approx(1.495e-04, rel=1e-3)
    assert reward_variance(np.array([0.35] * 7)) == 0.0
    assert advantage(type="group_normalised").advantages([group("g", rewards=[0.35] * 7)]) == [[0.0] * 7]


def test_invalid_rollouts_have_no_advantage_and_leave_the_statistics(table: dict[str, Any]) -> None:
    case = table["with_invalid"]
    rewards = [r if valid else None for r, valid in zip(case["rewards"], case["reward_valid"], strict=True)]
    (found,) = advantage(type="group_normalised").advantages([group("g", rewards=rewards)])
    assert [value is None for value in found] == [value is None for value in case["advantages"]]
    for value, expected in zip(found, case["advantages"], strict=True):
        assert value is None or value == pytest.approx(expected, abs=1e-6)


def test_an_invalid_rollout_that_still_carries_a_nan_reward_poisons_nobody() -> None:
    members = [rollout(f"g/{i}", reward=r) for i, r in enumerate([1.0, 0.0, float("nan")])]
    members[2] = type(members[2])(
        **{**{f: getattr(members[2], f) for f in members[2].__slots__}, "reward_valid": False}
    )
    (found,) = advantage(type="group_normalised").advantages([PromptGroup("g", "alfworld", tuple(members))])
    assert found[2] is None
    np.testing.assert_allclose(np.array(found[:2], dtype=float), group_advantages(np.array([1.0, 0.0])))


def test_with_fewer_than_two_valid_rewards_the_advantage_is_zero() -> None:
    assert advantage(type="group_normalised").advantages([group("g", rewards=[1.0, None])]) == [[0.0, None]]


def test_without_division_the_advantage_is_the_difference_to_the_mean() -> None:
    (found,) = advantage(type="group_normalised", divide_by_std=False).advantages([group("g", rewards=[1.0, 0.0, 0.5])])
    np.testing.assert_allclose(np.array(found, dtype=float), [0.5, -0.5, 0.0])


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=10), st.floats(-100, 100))
def test_advantages_sum_to_zero_and_ignore_a_shift(rewards: list[float], shift: float) -> None:
    values = group_advantages(np.array(rewards))
    assert abs(values.sum()) < 1e-9
    if not zero_variance(np.array(rewards)):
        np.testing.assert_allclose(group_advantages(np.array(rewards) + shift), values, atol=1e-5)


def test_environment_normalisation_gives_each_environment_mean_zero_and_variance_one_over_its_tokens() -> None:
    groups = [
        PromptGroup(
            "a",
            "alfworld",
            tuple(rollout(f"a/{i}", reward=r, tokens=t) for i, (r, t) in enumerate([(0.0, 2), (1.0, 9)])),
        ),
        PromptGroup(
            "b",
            "alfworld",
            tuple(rollout(f"b/{i}", reward=r, tokens=t) for i, (r, t) in enumerate([(0.2, 5), (0.9, 1)])),
        ),
        PromptGroup(
            "c",
            "webshop",
            tuple(
                rollout(f"c/{i}", "webshop", reward=r, tokens=t)
                for i, (r, t) in enumerate([(1.0, 4), (0.0, 4), (0.0, 4)])
            ),
        ),
    ]
    values = advantage(type="environment_normalised").advantages(groups)
    for environment in ("alfworld", "webshop"):
        tokens = np.concatenate(
            [
                np.full(len(one.logprobs), value)
                for g, row in zip(groups, values, strict=True)
                for one, value in zip(g.rollouts, row, strict=True)
                if g.environment == environment
            ]
        )
        assert tokens.mean() == pytest.approx(0.0, abs=1e-6)
        assert tokens.std() == pytest.approx(1.0, abs=1e-5)


def test_environment_normalisation_of_equal_advantages_is_zero_and_leaves_invalid_rollouts_out() -> None:
    found = advantage(type="environment_normalised").advantages([group("g", rewards=[1.0, 1.0, None])])
    assert found == [[0.0, 0.0, None]]
