"""Fixtures of the rubrics room: the shipped vocabulary, hand-made rollouts, a judge model's scripted server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_judge_server import ScriptedServer

from rised.records.types import Rollout, StopReason, Turn
from rised.rubrics.judge_llm import LlmJudge
from rised.rubrics.judges import make_judge
from rised.rubrics.settings import LlmJudgeSettings
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


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def server(running: ScriptedServer) -> ScriptedServer:
    running.script()
    return running


@pytest.fixture
def make(vocabulary: Vocabulary, server: ScriptedServer) -> Callable[..., LlmJudge]:
    """A judge with short waits: ``make(endpoint=…, **settings)``."""

    def build(endpoint: str | Path | None = None, **fields: Any) -> LlmJudge:
        values: dict[str, Any] = {
            "type": "llm",
            "model": "test/judge",
            "endpoint": str(endpoint or server.url),
            "concurrency": 1,
            "max_attempts": 3,
            "backoff_s": 0.01,
            "max_backoff_s": 0.05,
            "rest_s": 0.05,
            "deadline_s": 60,
            "wait_for_server_s": 0.3,
            "max_failed_share": 1,
        }
        judge = make_judge(LlmJudgeSettings(**values | fields), vocabulary)
        assert isinstance(judge, LlmJudge)
        judge._replicas.poll_s = 0.02
        return judge

    return build
