"""SYNTHETIC runs for tests and previews: no model, no environment, no result. Written through the real run writer.

``write_experiment`` makes a small grid with known shapes (a rising pass rate, tags, selections, step times). Its
header and every observation say that it is synthetic.

    python -m analysis.synthetic --out DIR
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rised.config.paths import add_named_path, required
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

ENVIRONMENTS = ("alfworld", "webshop", "dbbench")
RUBRICS = {
    "alfworld": (
        "systematic_object_search",
        "revises_plan_after_failure",
        "uses_appliance_for_state_change",
        "repeats_failed_action",
        "ignores_task_constraint",
    ),
    "webshop": ("formulates_constrained_search_query", "ignores_task_constraint"),
    "dbbench": (
        "explores_database_schema",
        "repeats_failed_action",
        "claims_false_completion",
        "hallucinates_observation",
        "refers_to_unobserved_entity",
    ),
    "appworld": ("handles_pagination", "hallucinates_api"),
}
LEVELS = {
    "repeats_failed_action": (0.4, 2.4),
    "claims_false_completion": (0.3, 2.0),
    "hallucinates_observation": (0.35, 1.1),
    "refers_to_unobserved_entity": (0.3, 0.6),
    "ignores_task_constraint": (0.3, 0.5),
    "hallucinates_api": (0.3, 0.5),
}
"""Negative rubric -> its share at the start, and how many times it halves until the end. All others are positive."""
JUDGE = "rules-synthetic"
START = {"alfworld": 0.18, "webshop": 0.31, "dbbench": 0.45, "appworld": 0.02}
GAIN = {
    "grpo_64": 0.12,
    "grpo_128": 0.15,
    "global_variance": 0.14,
    "round_robin_variance": 0.16,
    "all_rubric_sd": 0.13,
    "rised": 0.20,
    "rised_selection_only": 0.15,
    "rised_teacher_only": 0.14,
    "rised_steering_only": 0.13,
    "rised_no_steering": 0.18,
    "rised_no_teacher": 0.16,
    "rised_no_selection": 0.15,
    "rised_all_rubrics": 0.14,
}
SELECTING = (
    "global_variance",
    "round_robin_variance",
    "rised",
    "rised_selection_only",
    "rised_no_steering",
    "rised_no_teacher",
    "rised_all_rubrics",
)
JUDGE_DEVICES = 2


def write_experiment(
    root: Path,
    methods: Sequence[str] = ("grpo_64", "rised"),
    seeds: Sequence[int] = (0, 1),
    updates: int = 6,
    every: int = 2,
    tasks: int = 20,
    name: str = "synthetic_grid",
    unfinished: Sequence[tuple[str, int]] = (),
    panel: str = "a",
    environments: Sequence[str] = ENVIRONMENTS,
    judge_model: str = "",
) -> Path:
    """A grid of synthetic runs below ``root/name``; ``unfinished`` runs stop half-way and have no DONE.

    ``judge_model``: the runs claim to have asked this model, of a server with ``JUDGE_DEVICES`` devices.
    """
    for method in methods:
        for seed in seeds:
            stop = updates // 2 if (method, seed) in unfinished else updates
            path = root / name / method / f"seed-{seed}"
            write_run(path, method, seed, updates, stop, every, tasks, panel, environments, judge_model)
    return root / name


def write_run(
    path: Path,
    method: str,
    seed: int,
    updates: int,
    stop: int,
    every: int,
    tasks: int,
    panel: str = "a",
    environments: Sequence[str] = ENVIRONMENTS,
    judge_model: str = "",
) -> None:
    """One synthetic run up to step ``stop`` of ``updates``."""
    names = [method, judge_model] if judge_model else [method]
    rng = np.random.default_rng([seed, *[zlib.crc32(name.encode()) for name in names]])
    with RunDirectory(path) as run:
        run.write_config(
            f"synthetic: true\nmethod: {{type: {method}}}\nmodel: {{name: synthetic-none}}\nupdates: {updates}\n"
            + _judge_config(judge_model)
        )
        run.write_header(
            {
                "synthetic": True,
                "experiment": path.parent.parent.name,
                "method": method,
                "seed": seed,
                "config_hash": f"c0ffee{seed:02d}" * 8,
                "panel_hashes": {"train": "c" * 64, "validation": panel * 64},
                "vocabulary_hash": "d" * 64,
                "versions": {"python": "0.0 synthetic"},
            }
        )
        run.recover()
        for step in range(stop + 1):
            evaluated = step % every == 0
            here = (rng, panel, environments)
            validation = episodes(path, method, step, updates, "validation", tasks, *here) if evaluated else []
            train = episodes(path, method, step, updates, "train", 4, *here) if step else []
            expected = {"validation": len(validation)} if validation else {}
            with run.step(step, {**expected, **({"rollouts": len(train)} if train else {})}) as writer:
                metrics = validation_metrics(step, validation) if validation else []
                if validation:
                    writer.write("validation", to_table(validation))
                    writer.write("validation_tags", to_table(tags(validation, rng, updates)), judge=JUDGE)
                if train:
                    writer.write("rollouts", to_table(train))
                    found = tags(train, rng, updates)
                    writer.write("tags", to_table(found), judge=JUDGE)
                    writer.write("selections", to_table(selections(step, train, method)))
                    metrics += training_metrics(step, train, found, judge_model)
                    writer.write("timings", to_table(timings(step, method, rng, judge_model)))
                writer.write("metrics", to_table(metrics, "metrics"))
                writer.commit()
        if stop == updates:
            run.finish(updates)


def _judge_config(judge_model: str) -> str:
    if not judge_model:
        return ""
    return (
        f"rubrics: {{judge: {{type: llm, model: {judge_model}}}}}\n"
        f"judge_server: {{replicas: 1, tensor_parallel: {JUDGE_DEVICES}}}\n"
    )


def episodes(
    path: Path,
    method: str,
    step: int,
    updates: int,
    split: str,
    tasks: int,
    rng: np.random.Generator,
    panel: str,
    environments: Sequence[str] = ENVIRONMENTS,
) -> list[Rollout]:
    """``tasks`` tasks per environment, one validation rollout or four training rollouts each."""
    found = []
    for environment in environments:
        rate = START[environment] + GAIN.get(method, 0.1) * step / updates
        for task in range(tasks):
            task_id = f"{environment}-{split}-{panel}-{task:04d}"
            for index in range(1 if split == "validation" else 4):
                success = bool(rng.random() < rate)
                broken = bool(rng.random() < 0.01)
                stop = (
                    StopReason.ENVIRONMENT_DONE
                    if success
                    else rng.choice([StopReason.TURN_LIMIT, StopReason.ENVIRONMENT_DONE, StopReason.REPEATED_OUTPUT])
                )
                turns = tuple(
                    Turn(
                        f"SYNTHETIC observation {t}: nothing was run <b>here</b>.",
                        f"synthetic action {t}",
                        f"synthetic action {t}",
                        bool(rng.random() < 0.9),
                        4 * t + 2,
                        4 * t + 4,
                        False,
                        {"turn": t},
                    )
                    for t in range(int(rng.integers(1, 5)))
                )
                length = 4 * len(turns)
                mask = tuple(i % 4 >= 2 for i in range(length))
                found.append(
                    Rollout(
                        rollout_id=f"{method}/{path.name}/{split}/step-{step:06d}/{task_id}/{index}",
                        run="/".join(path.parts[-3:]),
                        step=step,
                        weight_version=step,
                        split=split,
                        environment=environment,
                        task_id=task_id,
                        group_id=f"step-{step:06d}/{task_id}",
                        rollout_index=index,
                        seed=int(rng.integers(1 << 30)),
                        system_prompt="SYNTHETIC prompt",
                        steering_rubrics=(),
                        steering_text="",
                        steering_text_hash="",
                        turns=turns,
                        final_observation="SYNTHETIC end.",
                        token_ids=tuple(range(length)),
                        policy_mask=mask,
                        logprobs=(-0.5,) * sum(mask),
                        reward=None if broken else float(success),
                        reward_valid=not broken,
                        success=None if broken else success,
                        stop_reason=StopReason.ENVIRONMENT_ERROR if broken else StopReason(stop),
                    )
                )
    return found


def tags(rollouts: Sequence[Rollout], rng: np.random.Generator, updates: int = 1) -> list[Tag]:
    """The listed rubrics of each rollout's environment; one verdict in fifty is an error."""
    found = []
    for rollout in rollouts:
        for rubric in RUBRICS[rollout.environment]:
            if rubric in LEVELS:
                level, halvings = LEVELS[rubric]
                chance, state = level * 0.5 ** (halvings * rollout.step / updates), TagState.VIOLATES
            else:
                chance = 0.3 + 0.4 * bool(rollout.success) + (0.1 if "rised" in rollout.rollout_id else 0)
                state = TagState.DEMONSTRATES
            shown = rng.random() < chance
            if rng.random() < 0.02:
                found.append(Tag(rollout.rollout_id, rubric, None, None, JUDGE, TagStatus.ERROR, "synthetic error"))
            else:
                turn = int(rng.integers(len(rollout.turns))) if shown else None
                found.append(
                    Tag(rollout.rollout_id, rubric, state if shown else TagState.ABSENT, turn, JUDGE, TagStatus.OK)
                )
    return found


def selections(step: int, rollouts: Sequence[Rollout], method: str) -> list[Selection]:
    groups = sorted({(r.group_id, r.environment) for r in rollouts})
    chosen = [i for i in range(len(groups)) if method not in SELECTING or i % 2 == 0]
    order = {i: n for n, i in enumerate(chosen)}
    scored = method == "rised"
    return [
        Selection(
            step,
            group,
            environment,
            i in order,
            order.get(i),
            0.8 if scored else None,
            0.4 if scored else None,
            0.6 if scored else None,
        )
        for i, (group, environment) in enumerate(groups)
    ]


def validation_metrics(step: int, rollouts: Sequence[Rollout]) -> list[Metric]:
    found, means = [], []
    for environment in dict.fromkeys(r.environment for r in rollouts):
        valid = [r for r in rollouts if r.environment == environment and r.reward_valid]
        means.append(float(np.mean([bool(r.success) for r in valid])))
        count = len({r.task_id for r in rollouts if r.environment == environment})
        found += [
            Metric(step, f"validation/success/{environment}", means[-1], "fraction"),
            Metric(step, f"validation/reward/{environment}", means[-1], "reward"),
            Metric(step, f"validation/tasks/{environment}", float(count), "count"),
        ]
    return [*found, Metric(step, "validation/success/overall", float(np.mean(means)), "fraction")]


def training_metrics(
    step: int, rollouts: Sequence[Rollout], found: Sequence[Tag], judge_model: str = ""
) -> list[Metric]:
    tokens = sum(len(r.token_ids) for r in rollouts)
    asked = {"judge/calls": len(rollouts), "judge/prompt_tokens": 2 * tokens, "judge/completion_tokens": tokens}
    judged = [Metric(step, name, float(count), "count") for name, count in asked.items()] if judge_model else []
    rewards = [
        Metric(
            step,
            f"rollout/reward/{environment}",
            float(np.mean([r.reward for r in rollouts if r.environment == environment and r.reward is not None])),
            "reward",
        )
        for environment in dict.fromkeys(r.environment for r in rollouts)
    ]
    return [
        *judged,
        *rewards,
        Metric(step, "rollout/tokens", float(tokens), "tokens"),
        Metric(step, "rollout/generated_tokens", float(sum(sum(r.policy_mask) for r in rollouts)), "tokens"),
        Metric(step, "rollout/invalid", float(sum(not r.reward_valid for r in rollouts)), "count"),
        Metric(step, "tags/errors", float(sum(t.status is TagStatus.ERROR for t in found)), "count"),
        Metric(step, "update/grad_norm", None, "norm"),
    ]


def timings(step: int, method: str, rng: np.random.Generator, judge_model: str = "") -> list[Timing]:
    """Parts that add up to the step exactly; one process."""
    parts = {
        "rollout_wait": 4.0,
        "tag_wait": 0.2,
        "reference": 0.5,
        "teacher": 0.6 if method == "rised" else 0.0,
        "actor": 2.0,
        "other": 0.1,
    }
    parts = {name: value * float(rng.uniform(0.9, 1.1)) for name, value in parts.items()}
    found = [Timing(step, f"time/{name}", value, "s") for name, value in parts.items()]
    found.append(Timing(step, "time/step", sum(parts.values()), "s"))
    found.append(Timing(step, "process/peak_memory", 100.0 + step, "MiB"))
    found.append(Timing(step, "process/count", 1.0, "count"))
    if judge_model:
        found.append(Timing(step, "judge/tag", 0.5 * parts["rollout_wait"], "s", subject=JUDGE))
    return [*found, Timing(step, "time/rollout", 1.0, "s", subject="one rollout")]


if __name__ == "__main__":
    made = argparse.ArgumentParser(
        prog="python -m analysis.synthetic",
        description="A made-up grid of runs, each named SYNTHETIC, to try tables, figures and the report on",
    )
    add_named_path(made, "out", "folder of the experiment that is written")
    out = required(made, made.parse_args(), "out")
    print(write_experiment(out, methods=tuple(GAIN), updates=40, every=5, tasks=100))
