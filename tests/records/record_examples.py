"""Records made up for the tests of this room (synthetic)."""

from __future__ import annotations

import pyarrow as pa

from rised.records.commit import RunDirectory
from rised.records.schemas import to_table
from rised.records.types import (
    Metric,
    Rollout,
    Selection,
    StopReason,
    Tag,
    TagState,
    TagStatus,
    Timing,
    Turn,
)


def rollout(step: int, index: int, turn_count: int = 2) -> Rollout:
    token_count = 6 * turn_count
    turns = tuple(
        Turn(f"Zimmer {t} – наблюдение", f"go to shelf {t}", "go", t > 0, 6 * t + 3, 6 * t + 6, False, {"n": [t]})
        for t in range(turn_count)
    )
    return Rollout(
        rollout_id=f"{step}/{index}",
        run="test",
        step=step,
        weight_version=step,
        split="train",
        environment="alfworld",
        task_id=f"task-{index // 4}",
        group_id=f"{step}/group-{index // 4}",
        rollout_index=index % 4,
        seed=1000 * step + index,
        system_prompt="You are in a room.",
        steering_rubrics=("avoid_loops",) if index % 2 else (),
        steering_text="",
        steering_text_hash="",
        turns=turns,
        final_observation="done",
        token_ids=tuple((7 * index + t) % 1500 for t in range(token_count)),
        policy_mask=tuple(t % 6 >= 3 for t in range(token_count)),
        logprobs=tuple(-0.1 * (t + 1) for t in range(token_count // 2)),
        reward=float(index % 2),
        reward_valid=True,
        success=bool(index % 2),
        stop_reason=StopReason.ENVIRONMENT_DONE,
    )


def tags(rollouts: list[Rollout], judge: str = "rules-v1", rubric_count: int = 3) -> list[Tag]:
    states = list(TagState)
    return [
        Tag(one.rollout_id, f"rubric_{k}", states[k % 3], 0 if k % 3 < 2 else None, judge, TagStatus.OK)
        for one in rollouts
        for k in range(rubric_count)
    ]


def step_tables(step: int, rollout_count: int = 8) -> dict[str, pa.Table]:
    """Tables of one step by kind; tags are of judge ``rules-v1``."""
    rollouts = [rollout(step, index) for index in range(rollout_count)]
    groups = sorted({one.group_id for one in rollouts})
    return {
        "rollouts": to_table(rollouts),
        "tags": to_table(tags(rollouts)),
        "selections": to_table(
            [
                Selection(step, group, "alfworld", place == 0, 0 if place == 0 else None, 0.5, None, 0.1)
                for place, group in enumerate(groups)
            ]
        ),
        "metrics": to_table([Metric(step, "reward_mean", 0.5, "fraction"), Metric(step, "kl", None, "nats")]),
    }


def write_step(run: RunDirectory, step: int, rollout_count: int = 8, seconds: float = 1.0) -> None:
    """Commit one step with state, timings and all kinds of shards."""
    with run.step(step, expected={"rollouts": rollout_count}) as writer:
        for kind, table in step_tables(step, rollout_count).items():
            writer.write(kind, table, judge="rules-v1" if kind == "tags" else None)
        writer.write("timings", to_table([Timing(step, "collect", seconds, "s")]))
        writer.write_state("optimiser.bin", bytes(range(step + 1)) * 100)
        if step % 2 == 1:
            writer.write_state("model.safetensors", b"weights" * (step + 1), checkpoint=True)
        writer.commit({"cursor": step * 8})


def write_run(path: object, last_step: int, seconds: float = 1.0) -> None:
    """Recover, write the missing steps 0..last_step and finish: what a training stage does when it is started."""
    with RunDirectory(str(path)) as run:
        run.write_config("seed: 1\n")
        run.write_header({"panel": "abc"})
        last = run.recover().last_committed
        for step in range(0 if last is None else last + 1, last_step + 1):
            write_step(run, step, seconds=seconds)
        run.finish(last_step)
