"""Runs written for a test from the outcomes of their episodes, with the metrics that the loop makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rised.records.commit import RunDirectory
from rised.records.schemas import to_table
from rised.records.types import Rollout, StopReason
from stages.loop import validation_metrics

OUTCOMES = {"1": True, "0": False, "x": None}
Outcomes = Mapping[str, Mapping[str, str]]
"""environment -> task -> one character a rollout: 1 passed, 0 failed, x lost by the environment."""


def episode(run: str, step: int, environment: str, task: str, index: int, outcome: str) -> Rollout:
    success = OUTCOMES[outcome]
    group = f"{environment}-{task}"
    return Rollout(
        rollout_id=f"validation-{step:06d}-{group}-{index}",
        run=run,
        step=step,
        weight_version=step,
        split="validation",
        environment=environment,
        task_id=task,
        group_id=group,
        rollout_index=index,
        seed=index,
        system_prompt="",
        steering_rubrics=(),
        steering_text="",
        steering_text_hash="",
        turns=(),
        final_observation="",
        token_ids=(),
        policy_mask=(),
        logprobs=(),
        reward=None if success is None else float(success),
        reward_valid=success is not None,
        success=success,
        stop_reason=StopReason.ENVIRONMENT_ERROR if success is None else StopReason.ENVIRONMENT_DONE,
    )


def episodes(run: str, step: int, outcomes: Outcomes) -> list[Rollout]:
    return [
        episode(run, step, environment, task, index, outcome)
        for environment, tasks in outcomes.items()
        for task, each in tasks.items()
        for index, outcome in enumerate(each)
    ]


def write_run(
    root: Path, method: str, seed: int, outcomes: Outcomes, finished: bool = True, steps: Sequence[int] = (0, 1)
) -> Path:
    """A run evaluated with the same outcomes at each of ``steps``, below ``root/<method>/seed-<seed>``."""
    path = root / method / f"seed-{seed}"
    with RunDirectory(path) as run:
        run.write_config(f"updates: {steps[-1]}\n")
        run.write_header({"synthetic": True, "experiment": root.name, "method": method, "seed": seed})
        run.recover()
        for step in steps:
            rollouts = episodes("/".join(path.parts[-3:]), step, outcomes)
            with run.step(step, {"validation": len(rollouts)}) as writer:
                writer.write("validation", to_table(rollouts))
                writer.write("metrics", to_table(validation_metrics(rollouts, step), "metrics"))
                writer.commit()
        if finished:
            run.finish(steps[-1])
    return path
