"""prepare: write an experiment's task panels.

Reads the experiment file (and, for environments with user files, those files); writes tasks.parquet with one row per
task. Generated train and validation panels share no task; for the benchmarks' own files what they share is printed.

    python -m stages.prepare --config configs/experiments/quickstart.yaml --out results/quickstart/tasks.parquet
"""

from __future__ import annotations

from pathlib import Path

from rised.config import ConfigError
from rised.environments.base import Task
from rised.environments.discovery import get
from rised.experiment import ExperimentConfig
from stages.cli import run_stage, stage_parser
from stages.setup import load_experiment, panel_hash, write_tasks


def prepare_tasks(config: ExperimentConfig) -> list[Task]:
    """Both panels of every environment. ConfigError if a panel is short or the panels overlap."""
    tasks: list[Task] = []
    for name, entry in config.environments.items():
        spec = get(name)
        panels = {
            split: spec.prepare(entry.settings, split, count, config.panels.seed)
            for split, count in (("train", entry.train_tasks), ("validation", entry.validation_tasks))
        }
        for split, count in (("train", entry.train_tasks), ("validation", entry.validation_tasks)):
            if len(panels[split]) != count:
                raise ConfigError(
                    f"{name}: {count} {split} tasks are asked for and {len(panels[split])} exist: "
                    f"lower environments.{name}.{split}_tasks"
                )
        shared = spec.overlap(panels["validation"], panels["train"])
        if shared["tasks"] and getattr(entry.settings, "source", "") != "files":
            raise ConfigError(
                f"{name}: {shared['tasks']} validation tasks are training tasks as well; change the panels' seed or "
                "ranges"
            )
        tasks += panels["train"] + panels["validation"]
        print(
            f"{name}: {len(panels['train'])} train and {len(panels['validation'])} validation tasks. "
            f"Of the latter have in common with training: {', '.join(f'{n} {what}' for what, n in shared.items())}",
            flush=True,
        )
    return tasks


def main() -> None:
    parser = stage_parser("prepare", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="tasks.parquet to write")
    args = parser.parse_args()
    config = load_experiment(args.config, args.set)
    if args.dry_run:
        for name, entry in config.environments.items():
            print(f"{name}: {entry.train_tasks} train, {entry.validation_tasks} validation tasks")
        return
    tasks = prepare_tasks(config)
    write_tasks(args.out, tasks)
    print(f"wrote {len(tasks)} tasks to {args.out}; validation panel {panel_hash(tasks, 'validation')[:12]}")


if __name__ == "__main__":
    run_stage(main)
