"""SYNTHETIC runs for tests and previews: no model, no environment, no result. Written through the real run writer.

``write_experiment`` makes a small grid with known shapes (a rising pass rate, tags, selections, step times). Its
header and every observation say that it is synthetic.

    python -m analysis.synthetic DIR
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

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
    "alfworld": ("systematic_object_search", "repeats_failed_action"),
    "webshop": ("formulates_constrained_search_query", "ignores_task_constraint"),
    "dbbench": ("explores_database_schema", "repeats_failed_action"),
}
JUDGE = "rules-synthetic"
START = {"alfworld": 0.18, "webshop": 0.31, "dbbench": 0.45}
GAIN = {
    "grpo_64": 0.12,
    "grpo_128": 0.15,
    "global_variance": 0.14,
    "round_robin_variance": 0.16,
    "all_rubric_sd": 0.13,
    "rised": 0.20,
}
SELECTING = ("global_variance", "round_robin_variance", "rised")


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
) -> Path:
    """A grid of synthetic runs below ``root/name``; ``unfinished`` runs stop half-way and have no DONE."""
    for method in methods:
        for seed in seeds:
            stop = updates // 2 if (method, seed) in unfinished else updates
            write_run(root / name / method / f"seed-{seed}", method, seed, updates, stop, every, tasks, panel)
    return root / name


def write_run(
    path: Path, method: str, seed: int, updates: int, stop: int, every: int, tasks: int, panel: str = "a"
) -> None:
    """One synthetic run up to step ``stop`` of ``updates``."""
    rng = np.random.default_rng([seed, zlib.crc32(method.encode())])
    with RunDirectory(path) as run:
        run.write_config(
            f"synthetic: true\nmethod: {{type: {method}}}\nmodel: {{name: synthetic-none}}\nupdates: {updates}\n"
        )
        run.write_header(
            {
                "synthetic": True,
                "seed": seed,
                "method": method,
                "config_hash": f"c0ffee{seed:02d}" * 8,
                "panel_hashes": {"train": "c" * 64, "validation": panel * 64},
                "vocabulary_hash": "d" * 64,
                "versions": {"python": "0.0 synthetic"},
            }
        )
        run.recover()
        for step in range(stop + 1):
            evaluated = step % every == 0
            validation = episodes(path, method, step, updates, "validation", tasks, rng, panel) if evaluated else []
            train = episodes(path, method, step, updates, "train", 4, rng, panel) if step else []
            expected = {"validation": len(validation)} if validation else {}
            with run.step(step, {**expected, **({"rollouts": len(train)} if train else {})}) as writer:
                metrics = validation_metrics(step, validation) if validation else []
                if validation:
                    writer.write("validation", to_table(validation))
                    writer.write("validation_tags", to_table(tags(validation, rng)), judge=JUDGE)
                if train:
                    writer.write("rollouts", to_table(train))
                    found = tags(train, rng)
                    writer.write("tags", to_table(found), judge=JUDGE)
                    writer.write("selections", to_table(selections(step, train, method)))
                    metrics += training_metrics(step, train, found)
                    writer.write("timings", to_table(timings(step, method, rng)))
                writer.write("metrics", to_table(metrics, "metrics"))
                writer.commit()
        if stop == updates:
            run.finish(updates)


def episodes(
    path: Path, method: str, step: int, updates: int, split: str, tasks: int, rng: np.random.Generator, panel: str
) -> list[Rollout]:
    """``tasks`` tasks per environment, one validation rollout or four training rollouts each."""
    found = []
    for environment in ENVIRONMENTS:
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
                        run=str(path.name),
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


def tags(rollouts: Sequence[Rollout], rng: np.random.Generator) -> list[Tag]:
    """Both rubrics of each rollout's environment; one verdict in fifty is an error."""
    found = []
    for rollout in rollouts:
        positive, negative = RUBRICS[rollout.environment]
        chance = 0.3 + 0.4 * bool(rollout.success) + (0.1 if "rised" in rollout.rollout_id else 0)
        for rubric, shown, state in (
            (positive, rng.random() < chance, TagState.DEMONSTRATES),
            (negative, rng.random() < 0.3, TagState.VIOLATES),
        ):
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
    for environment in ENVIRONMENTS:
        valid = [r for r in rollouts if r.environment == environment and r.reward_valid]
        means.append(float(np.mean([bool(r.success) for r in valid])))
        count = len({r.task_id for r in rollouts if r.environment == environment})
        found += [
            Metric(step, f"validation/success/{environment}", means[-1], "fraction"),
            Metric(step, f"validation/reward/{environment}", means[-1], "reward"),
            Metric(step, f"validation/tasks/{environment}", float(count), "count"),
        ]
    return [*found, Metric(step, "validation/success/overall", float(np.mean(means)), "fraction")]


def training_metrics(step: int, rollouts: Sequence[Rollout], found: Sequence[Tag]) -> list[Metric]:
    tokens = sum(len(r.token_ids) for r in rollouts)
    return [
        Metric(step, "rollout/tokens", float(tokens), "tokens"),
        Metric(step, "rollout/generated_tokens", float(sum(sum(r.policy_mask) for r in rollouts)), "tokens"),
        Metric(step, "rollout/invalid", float(sum(not r.reward_valid for r in rollouts)), "count"),
        Metric(step, "tags/errors", float(sum(t.status is TagStatus.ERROR for t in found)), "count"),
        Metric(step, "update/grad_norm", None, "norm"),
    ]


def timings(step: int, method: str, rng: np.random.Generator) -> list[Timing]:
    """Parts that add up to the step exactly."""
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
    return [*found, Timing(step, "time/rollout", 1.0, "s", subject="one rollout")]


if __name__ == "__main__":
    print(write_experiment(Path(sys.argv[1]), methods=tuple(GAIN), updates=40, every=5, tasks=100))
