"""Expert transcripts as rollouts: what the warm start learns from.

An environment's expert plays its own task, with a share of wasteful or wrong steps from which it recovers. The
result has turns and the environment's log like any rollout, but no tokens: nothing was sampled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from rised.environments.base import Environment, Task
from rised.environments.discovery import get
from rised.records.text import storable
from rised.records.types import Rollout, StopReason, Turn
from rised.rollouts.episode import storable_result

_CHUNK = 20


def play_expert(environment: Environment, task: Task, seed: int, noise: float, max_turns: int) -> Rollout:
    """Replay the expert on ``task``; ends at the environment's end, the expert's end or ``max_turns``."""
    observation = storable(environment.reset(task, seed))
    turns: list[Turn] = []
    reward: float | None = None
    success: bool | None = None
    stop = StopReason.TURN_LIMIT
    for action in environment.expert(seed, noise):
        result = storable_result(environment.step(action))
        turns.append(
            Turn(observation, action, result.action_mapped, result.action_valid, 0, 0, False, dict(result.info))
        )
        observation = result.observation
        if result.done:
            reward, success = result.reward, result.success
            stop = StopReason(result.stop or StopReason.ENVIRONMENT_DONE)
            break
        if len(turns) >= max_turns:
            break
    return Rollout(
        rollout_id=f"demonstration-{task.environment}-{task.task_id}-{seed}",
        run="demonstrations",
        step=0,
        weight_version=0,
        split=task.split,
        environment=task.environment,
        task_id=task.task_id,
        group_id=f"{task.environment}-{task.task_id}",
        rollout_index=0,
        seed=seed,
        system_prompt=environment.system_prompt(),
        steering_rubrics=(),
        steering_text="",
        steering_text_hash="",
        turns=tuple(turns),
        final_observation=observation,
        token_ids=(),
        policy_mask=(),
        logprobs=(),
        reward=0.0 if reward is None else reward,
        reward_valid=True,
        success=bool(success),
        stop_reason=stop,
    )


def record_demonstrations(
    settings: Any, tasks: Sequence[Task], count: int, noise: float, seed: int, max_turns: int, workers: int
) -> Iterator[Rollout]:
    """``count`` demonstrations over ``tasks`` (cycled), in a fixed order whatever the number of ``workers``.

    ``settings``: the environment's own settings. Each demonstration's randomness follows from ``seed``, the task
    and how often the task was used before.
    """
    if not tasks:
        raise ValueError("no tasks to demonstrate")
    jobs = [
        (tasks[i % len(tasks)], _demonstration_seed(seed, tasks[i % len(tasks)], i // len(tasks))) for i in range(count)
    ]
    chunks = [jobs[i : i + _CHUNK] for i in range(0, len(jobs), _CHUNK)]
    with ProcessPoolExecutor(max_workers=workers, mp_context=get_context("spawn")) as pool:
        for rollouts in pool.map(
            _play_chunk,
            [settings] * len(chunks),
            [tasks[0].environment] * len(chunks),
            chunks,
            [noise] * len(chunks),
            [max_turns] * len(chunks),
        ):
            yield from rollouts


def _demonstration_seed(seed: int, task: Task, repeat: int) -> int:
    digest = hashlib.sha256(f"{seed}/{task.environment}/{task.task_id}/{repeat}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


_environments: dict[str, Environment] = {}


def _play_chunk(
    settings: Any, name: str, jobs: Sequence[tuple[Task, int]], noise: float, max_turns: int
) -> list[Rollout]:
    if name not in _environments:
        _environments[name] = get(name).make(settings)
    environment = _environments[name]
    return [play_expert(environment, task, seed, noise, max_turns) for task, seed in jobs]
