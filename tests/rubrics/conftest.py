"""Fixtures of the rubrics room: the shipped vocabulary and hand-made rollouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rised.records.types import Rollout, StopReason, Turn
from rised.rubrics.vocabulary import Vocabulary, load_vocabulary

MakeRollout = Callable[..., Rollout]


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return load_vocabulary()


@pytest.fixture(scope="session")
def make_rollout() -> MakeRollout:
    """A factory of synthetic rollouts: ``make_rollout(environment, turns=[(observation, action), ...], **fields)``."""

    def make(environment: str, turns: list[tuple[str, str]] | None = None, **fields: Any) -> Rollout:
        pairs = [("You see nothing.", "look")] if turns is None else turns
        made = tuple(
            Turn(
                observation=observation,
                action_raw=action,
                action_mapped=action,
                action_valid=True,
                action_start=2 * index + 1,
                action_end=2 * index + 2,
                truncated=False,
                info={"synthetic": True},
            )
            for index, (observation, action) in enumerate(pairs)
        )
        values: dict[str, Any] = {
            "rollout_id": "r0",
            "run": "synthetic",
            "step": 0,
            "weight_version": 0,
            "split": "train",
            "environment": environment,
            "task_id": "t0",
            "group_id": "g0",
            "rollout_index": 0,
            "seed": 0,
            "system_prompt": "",
            "steering_rubrics": (),
            "steering_text": "",
            "steering_text_hash": "",
            "turns": made,
            "final_observation": "",
            "token_ids": tuple(range(2 * len(made))),
            "policy_mask": (False, True) * len(made),
            "logprobs": (-0.5,) * len(made),
            "reward": 0.0,
            "reward_valid": True,
            "success": False,
            "stop_reason": StopReason.ENVIRONMENT_DONE,
        }
        return Rollout(**(values | fields))

    return make
