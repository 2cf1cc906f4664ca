"""SYNTHETIC runs of the paper's size, to measure the analysis: no model, no environment, no result.

Columns are drawn as arrays and go through the real run writer: the size of every kind of record but texts and tokens,
which stay a few words long, because no table or figure reads them. One step has 128 prompt groups of 8 rollouts over
three environments and a tag for each rubric of the vocabulary on each rollout: 1,024 rollouts and 60,416 tags, so
that 1,000 steps hold 60 million tags. Headers and observations say that the runs are synthetic.

    python -m analysis.synthetic_scale --out DIR --steps 1000 --methods grpo_64 rised --seeds 0 1
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from analysis.synthetic import ENVIRONMENTS, GAIN, JUDGE, SELECTING, START, timings
from rised.config.paths import add_named_path, required
from rised.records.commit import RunDirectory
from rised.records.schemas import schema_of, to_table
from rised.records.types import Metric
from rised.rubrics.vocabulary import load_vocabulary

GROUPS = 128
ROLLOUTS_PER_GROUP = 8
VALIDATION_TASKS = {"alfworld": 109, "webshop": 200, "dbbench": 300}
TRAINING_TASKS = 3000
"""Per environment: task ids repeat over a run, as they do in training."""
STOPS = np.array(["environment_done", "turn_limit", "repeated_output", "environment_error"])
INVALID = 0.01


def write_experiment(
    root: Path, methods: Sequence[str], seeds: Sequence[int], steps: int, every: int = 20, groups: int = GROUPS
) -> Path:
    """Finished runs of ``steps`` updates below ``root``, evaluated every ``every`` steps and at the start."""
    for method in methods:
        for seed in seeds:
            write_run(root / method / f"seed-{seed}", method, seed, steps, every, groups)
    return root


def write_run(path: Path, method: str, seed: int, steps: int, every: int, groups: int) -> None:
    rng = np.random.default_rng([seed, zlib.crc32(method.encode())])
    rubrics = [rubric.id for rubric in load_vocabulary().rubrics]
    with RunDirectory(path) as run:
        run.write_config(
            f"synthetic: true\nmethod: {{name: {method}}}\nmodel: {{path: synthetic-none}}\nupdates: {steps}\n"
        )
        run.write_header(
            {
                "synthetic": True,
                "experiment": path.parent.parent.name,
                "method": method,
                "seed": seed,
                "panel_hashes": {"validation": "a" * 64},
            }
        )
        run.recover()
        for step in range(steps + 1):
            with run.step(step) as writer:
                measured: list[Metric] = []
                progress = step / max(steps, 1)
                if step % every == 0:
                    validation = episodes(validation_tasks(), method, seed, step, "validation", progress, rng)
                    writer.expect("validation", validation.num_rows)
                    writer.write("validation", validation)
                    writer.write("validation_tags", tags(validation, rubrics, rng), judge=JUDGE)
                    measured += validation_metrics(step, validation)
                if step:
                    train = episodes(training_tasks(groups, rng), method, seed, step, "train", progress, rng)
                    writer.expect("rollouts", train.num_rows)
                    writer.write("rollouts", train)
                    writer.write("tags", tags(train, rubrics, rng), judge=JUDGE)
                    writer.write("selections", selections(train, method, rng))
                    writer.write("timings", to_table(timings(step, method, rng)))
                    tokens = float(np.sum(train["token_count"].to_numpy()))
                    measured.append(Metric(step, "rollout/tokens", tokens, "tokens"))
                    measured.append(Metric(step, "rollout/generated_tokens", tokens / 2, "tokens"))
                writer.write("metrics", to_table(measured, "metrics"))
                writer.commit()
        run.finish(steps)


def validation_tasks() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Environment index, task number and rollout index of one evaluation: the same tasks every time."""
    counts = list(VALIDATION_TASKS.values())
    numbers = np.concatenate([np.arange(count) for count in counts])
    return np.repeat(np.arange(len(counts)), counts), numbers, np.zeros(len(numbers), dtype=np.int64)


def training_tasks(groups: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same three arrays for a training step, a group's rollouts beside each other."""
    environment = np.arange(groups) % len(ENVIRONMENTS)
    number = rng.permutation(TRAINING_TASKS)[:groups] if groups <= TRAINING_TASKS else np.arange(groups)
    each = ROLLOUTS_PER_GROUP
    return np.repeat(environment, each), np.repeat(number, each), np.tile(np.arange(each), groups)


def episodes(
    tasks: tuple[np.ndarray, np.ndarray, np.ndarray],
    method: str,
    seed: int,
    step: int,
    split: str,
    progress: float,
    rng: np.random.Generator,
) -> pa.Table:
    """Rollouts with a success rate that rises with ``progress`` in [0, 1], two turns of synthetic text each."""
    environment, number, index = tasks
    n = len(number)
    rate = np.array([START[e] + GAIN.get(method, 0.1) * progress for e in ENVIRONMENTS])[environment]
    broken = rng.random(n) < INVALID
    success = rng.random(n) < rate
    stop = np.where(success, 0, rng.integers(0, 3, n))
    names = np.array(ENVIRONMENTS)[environment]
    task_ids = [f"{e}-{split}-{k:05d}" for e, k in zip(names, number, strict=True)]
    groups = [f"step-{step:06d}/{task}" for task in task_ids]
    turns = [
        {
            "observation": f"SYNTHETIC observation {t}: nothing was run.",
            "action_raw": f"synthetic action {t}",
            "action_mapped": f"synthetic action {t}",
            "action_valid": True,
            "action_start": 4 * t + 2,
            "action_end": 4 * t + 4,
            "truncated": False,
            "info": "{}",
        }
        for t in range(2)
    ]
    turn_type = schema_of("rollouts").field("turns").type
    columns: dict[str, object] = {
        "rollout_id": [f"{method}/{seed}/{g}/{i}" for g, i in zip(groups, index, strict=True)],
        "run": [f"{method}/seed-{seed}"] * n,
        "step": np.full(n, step),
        "weight_version": np.full(n, step),
        "split": [split] * n,
        "environment": names,
        "task_id": task_ids,
        "group_id": groups,
        "rollout_index": index,
        "seed": rng.integers(1 << 30, size=n),
        "system_prompt": ["SYNTHETIC prompt"] * n,
        "steering_rubrics": [[]] * n,
        "steering_text": [""] * n,
        "steering_text_hash": [""] * n,
        "messages": [[]] * n,
        "turns": pa.array([turns], turn_type).take(pa.array(np.zeros(n, dtype=np.int32))),
        "final_observation": ["SYNTHETIC end."] * n,
        "token_ids": [list(range(8))] * n,
        "policy_mask": [[False, False, True, True] * 2] * n,
        "logprobs": [[-0.5] * 4] * n,
        "turn_count": np.full(n, 2),
        "token_count": rng.integers(200, 4000, n),
        "reward": pa.array(success.astype(np.float64), mask=broken),
        "reward_valid": ~broken,
        "success": pa.array(success, mask=broken),
        "stop_reason": STOPS[np.where(broken, 3, stop)],
    }
    schema = schema_of("rollouts")
    return pa.Table.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


def tags(rollouts: pa.Table, rubrics: Sequence[str], rng: np.random.Generator) -> pa.Table:
    """Every rubric on every rollout: 70% absent, 18% demonstrated, 10% violated, 2% errors."""
    n = rollouts.num_rows * len(rubrics)
    state = rng.choice(4, size=n, p=[0.70, 0.18, 0.10, 0.02])
    absent_or_error = (state == 0) | (state == 3)
    rows = pa.array(np.repeat(np.arange(rollouts.num_rows), len(rubrics)))
    states, statuses = pa.array(["absent", "demonstrates", "violates", None]), pa.array(["ok", "error"])
    reasons = pa.array(["", "synthetic error"])
    is_error = pa.array((state == 3).astype(np.int8))
    columns = {
        "rollout_id": rollouts["rollout_id"].combine_chunks().take(rows),
        "rubric_id": pa.array(rubrics).take(pa.array(np.tile(np.arange(len(rubrics)), rollouts.num_rows))),
        "state": states.take(pa.array(state)),
        "evidence_turn": pa.array(rng.integers(0, 2, n), pa.int32(), mask=absent_or_error),
        "judge": pa.repeat(JUDGE, n),
        "status": statuses.take(is_error),
        "reason": reasons.take(is_error),
        "cached": pa.repeat(False, n),
    }
    schema = schema_of("tags")
    return pa.Table.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


def selections(rollouts: pa.Table, method: str, rng: np.random.Generator) -> pa.Table:
    """One row per group; methods that select take every second one."""
    first = np.flatnonzero(rollouts["rollout_index"].to_numpy() == 0)
    groups = rollouts.select(["step", "group_id", "environment"]).take(pa.array(first))
    n = groups.num_rows
    selected = np.arange(n) % 2 == 0 if method in SELECTING else np.ones(n, dtype=bool)
    order = np.where(selected, np.cumsum(selected) - 1, 0)
    scored = np.full(n, method != "rised")
    columns = {
        "selected": selected,
        "order": pa.array(order, pa.int32(), mask=~selected),
        "similarity": pa.array(rng.random(n), mask=scored),
        "redundancy": pa.array(rng.random(n), mask=scored),
        "score": pa.array(rng.random(n), mask=scored),
    }
    for name, column in columns.items():
        groups = groups.append_column(name, pa.array(column))
    schema = schema_of("selections")
    return pa.Table.from_arrays([groups[f.name].combine_chunks().cast(f.type) for f in schema], schema=schema)


def validation_metrics(step: int, rollouts: pa.Table) -> list[Metric]:
    """The rates counted in the episodes, so that the report's check of both agrees."""
    frame = rollouts.select(["environment", "success", "reward_valid"]).to_pandas()
    found = []
    for environment in ENVIRONMENTS:
        mine = frame[(frame["environment"] == environment) & frame["reward_valid"]]
        found.append(
            Metric(step, f"validation/success/{environment}", float(mine["success"].astype(float).mean()), "fraction")
        )
        count = float((frame["environment"] == environment).sum())
        found.append(Metric(step, f"validation/tasks/{environment}", count, "count"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.synthetic_scale",
        description="Synthetic runs of the paper's size, to measure the analysis on",
    )
    add_named_path(parser, "out", "folder of the experiment that is written")
    parser.add_argument("--methods", nargs="+", default=["grpo_64", "rised"], help="default: grpo_64 rised")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="default: 0")
    parser.add_argument("--steps", type=int, default=1000, help="updates of a run (default: 1000)")
    parser.add_argument("--groups", type=int, default=GROUPS, help=f"prompt groups of a step (default: {GROUPS})")
    options = parser.parse_args()
    out = required(parser, options, "out")
    print(write_experiment(out, options.methods, options.seeds, options.steps, groups=options.groups))


if __name__ == "__main__":
    main()
