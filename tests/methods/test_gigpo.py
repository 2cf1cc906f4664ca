"""GiGPO's advantage: returns of steps, states that are shared, and tokens that belong to a step."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_examples import group, rollout, vocabulary

from rised.methods.advantages.group_normalised import group_advantages
from rised.methods.base import Advantage, PromptGroup
from rised.methods.registry import build, piece_settings
from rised.records.types import Rollout, Turn


def gigpo(**settings: Any) -> Advantage:
    found = piece_settings("advantage", {"type": "gigpo", **settings})
    built: Advantage = build("advantage", found, vocabulary=vocabulary())
    return built


def episode(index: int, reward: float | None, *observations: str, tokens_per_turn: int = 2) -> Rollout:
    """One turn per observation: an observation token, then the reply's tokens."""
    turns, mask = [], [False]
    for text in observations:
        mask += [False, *[True] * tokens_per_turn]
        turns.append(Turn(text, "act", "act", True, len(mask) - tokens_per_turn, len(mask), False))
    plain = rollout(f"g/{index}", reward=reward, tokens=tokens_per_turn * len(observations))
    ids = tuple(range(1, len(mask) + 1))
    return dataclasses.replace(plain, turns=tuple(turns), token_ids=ids, policy_mask=tuple(mask))


def values(advantage: Advantage, *rollouts: Rollout) -> list[Any]:
    return advantage.advantages([PromptGroup("g", "alfworld", rollouts)])[0]


def test_a_step_is_compared_with_steps_that_saw_the_same() -> None:
    """By hand: r = 1, 0; γ = 0.5. State `a`: returns .5 (of 2 turns), 0, 0; `b`: 1 alone; `c`: 0 alone."""
    found = values(gigpo(discount=0.5, step_weight=2.0), episode(0, 1.0, "a", "b"), episode(1, 0.0, "a", "c", "a"))
    episodes = group_advantages(np.array([1.0, 0.0]))
    steps = 2.0 * group_advantages(np.array([0.5, 0.0, 0.0]))
    np.testing.assert_allclose(found[0], episodes[0] + np.repeat([steps[0], 0.0], 2))
    np.testing.assert_allclose(found[1], episodes[1] + np.repeat([steps[1], 0.0, steps[2]], 2))


def test_without_weight_or_shared_states_it_is_the_group_advantage() -> None:
    apart = (episode(0, 1.0, "a", "b"), episode(1, 0.0, "c", "d"))
    same = (episode(0, 1.0, "a", "b"), episode(1, 0.0, "a", "b"))
    expected = group_advantages(np.array([1.0, 0.0]))
    for found in (values(gigpo(), *apart), values(gigpo(step_weight=0.0), *same)):
        np.testing.assert_array_equal(np.stack(found), np.repeat(expected, 4).reshape(2, 4))


def test_where_all_succeed_the_shorter_way_is_still_preferred() -> None:
    short, long = values(gigpo(), episode(0, 1.0, "a"), episode(1, 1.0, "a", "b", "c"))
    assert short[0] > 0 > long[0] and long[2:].tolist() == [0.0] * 4


def test_where_all_fail_no_token_has_an_advantage() -> None:
    for found in values(gigpo(), episode(0, 0.0, "a"), episode(1, 0.0, "a", "b")):
        assert not np.any(found)


def test_invalid_rollouts_have_no_advantage_and_are_no_neighbours() -> None:
    alone = values(gigpo(), episode(0, 1.0, "a"), episode(1, 0.0, "b"))
    beside = values(gigpo(), episode(0, 1.0, "a"), episode(1, 0.0, "b"), episode(2, None, "a", "b"))
    assert beside[2] is None
    np.testing.assert_array_equal(np.stack(beside[:2]), np.stack(alone))


def test_similar_observations_share_a_state_only_if_asked() -> None:
    rollouts = (episode(0, 1.0, "You are in room 1."), episode(1, 0.0, "You are in room 2."))
    exact, alike = values(gigpo(), *rollouts), values(gigpo(similarity=0.9), *rollouts)
    assert alike[0][0] == pytest.approx(2 * exact[0][0])
    assert values(gigpo(similarity=0.99), *rollouts)[0][0] == exact[0][0]


def test_rollouts_without_turns_get_their_groups_advantage_for_each_token() -> None:
    found = gigpo().advantages([group("g", rewards=[1.0, 0.0])])[0]
    assert [f.shape for f in found if isinstance(f, np.ndarray)] == [(3,), (3,)]


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.lists(st.sampled_from("abc"), min_size=1, max_size=4)), min_size=2, max_size=6
    )
)
def test_step_advantages_of_a_state_sum_to_zero(episodes: list[tuple[float, list[str]]]) -> None:
    rollouts = [episode(i, reward, *states, tokens_per_turn=1) for i, (reward, states) in enumerate(episodes)]
    whole, plain = values(gigpo(), *rollouts), values(gigpo(step_weight=0.0), *rollouts)
    by_state: dict[str, list[float]] = {}
    for one, base, (_, states) in zip(whole, plain, episodes, strict=True):
        for state, value in zip(states, one - base, strict=True):
            by_state.setdefault(state, []).append(float(value))
    for found in by_state.values():
        assert sum(found) == pytest.approx(0.0, abs=1e-6)
