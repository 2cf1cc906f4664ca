"""Rollouts, tags and groups for the tests of methods; synthetic, only as real as the pieces need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from rised.methods.base import PromptGroup
from rised.records.types import Rollout, StopReason, Tag, TagState, TagStatus
from rised.rubrics.vocabulary import Vocabulary, load_vocabulary


@cache
def vocabulary() -> Vocabulary:
    return load_vocabulary()


def rollout(
    rollout_id: str,
    environment: str = "alfworld",
    reward: float | None = 0.0,
    tokens: int = 3,
    success: bool | None = None,
) -> Rollout:
    """An episode of two prompt tokens and ``tokens`` policy tokens; reward None: not valid."""
    return Rollout(
        rollout_id=rollout_id,
        run="run",
        step=0,
        weight_version=0,
        split="train",
        environment=environment,
        task_id="task",
        group_id=rollout_id.split("/")[0],
        rollout_index=0,
        seed=0,
        system_prompt="",
        steering_rubrics=(),
        steering_text="",
        steering_text_hash="",
        turns=(),
        final_observation="",
        token_ids=(1, 2, *range(3, 3 + tokens)),
        policy_mask=(False, False, *[True] * tokens),
        logprobs=tuple([-1.0] * tokens),
        reward=reward,
        reward_valid=reward is not None,
        success=(None if reward is None else reward >= 1.0) if success is None else success,
        stop_reason=StopReason.ENVIRONMENT_DONE if reward is not None else StopReason.ENVIRONMENT_ERROR,
    )


def tags_of(rollout_id: str, states: Mapping[str, TagState], error: bool = False) -> list[Tag]:
    """Tags of one rollout; ``error``: none of them could be read."""
    status = TagStatus.ERROR if error else TagStatus.OK
    return [
        Tag(rollout_id, rubric, None if error else state, None, "judge", status) for rubric, state in states.items()
    ]


def group(
    group_id: str,
    environment: str = "alfworld",
    rewards: Sequence[float | None] = (0.0, 1.0),
    states: Mapping[str, TagState] | None = None,
    tag_errors: int = 0,
) -> PromptGroup:
    """A group whose rollouts all show ``states``; the tags of the first ``tag_errors`` rollouts failed."""
    rollouts = tuple(rollout(f"{group_id}/{i}", environment, reward) for i, reward in enumerate(rewards))
    tags: list[Tag] = []
    if states is not None:
        for i, one in enumerate(rollouts):
            tags += tags_of(one.rollout_id, states, error=i < tag_errors)
    return PromptGroup(group_id, environment, rollouts, tuple(tags))
