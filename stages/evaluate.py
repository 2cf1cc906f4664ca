"""evaluate: validate a policy on the experiment's held-out tasks, on the original prompts.

Reads the experiment file, tasks.parquet and a policy (default: the one that every run starts from); writes a folder
with one committed step: the validation rollouts and their pass rates. The train stage takes its step 0 from there.

    python -m stages.evaluate --config configs/experiments/quickstart.yaml --tasks results/quickstart/tasks.parquet \\
        --out results/quickstart/warm_start
    python -m stages.evaluate ... --policy results/quickstart/rised/seed-0/checkpoints/step-000060 --out somewhere
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rised.config import ConfigError
from rised.config.resolved import dump
from rised.environments.base import Task
from rised.experiment import RunSettings
from rised.records.commit import RunDirectory
from rised.records.layout import MANIFESTS
from rised.records.schemas import to_table
from rised.rollouts.rules import refuse_long_prompts
from stages.cli import run_stage, stage_parser
from stages.loop import (
    VALIDATION,
    probes,
    token_limit_warnings,
    validation_metrics,
    validation_plans,
    validation_rollout,
)
from stages.progress import rates
from stages.provenance import refuse_other_basis, validation_basis
from stages.ranks import Ranks
from stages.setup import load_experiment, panel, read_tasks
from stages.workers import WorkerGroup


def remove_evaluation(out: Path) -> None:
    """Remove the folder of an earlier evaluation. ConfigError for any other run directory: nothing is removed then."""
    if not (out / MANIFESTS).is_dir():
        return
    with RunDirectory(out) as run:
        committed = run.committed_steps()
        if committed not in ([], [0]) or (committed and "basis" not in run.manifest(0).extra):
            raise ConfigError(f"{out} is not the folder of an evaluation: nothing was removed; choose another --out")
    shutil.rmtree(out)


def evaluate(config: RunSettings, tasks: Sequence[Task], out: Path, again: bool = False) -> None:
    """Play every held-out task and commit the result as step 0 of ``out``; ``again``: replace one that is there.

    In a job of several processes each calls this and plays its share; the first one writes ``out``.
    """
    with Ranks.of_job() as ranks:
        if ranks.drives:
            if again:
                remove_evaluation(out)
            drive(config, tasks, out, ranks)
        else:
            with WorkerGroup(config, ranks) as workers:
                workers.follow()


def drive(config: RunSettings, tasks: Sequence[Task], out: Path, ranks: Ranks) -> None:
    """The first process's part."""
    with RunDirectory(out) as run:
        run.recover()
        basis = validation_basis(config, tasks)
        if run.last_committed() == 0:
            refuse_other_basis(
                run.manifest(0).extra.get("basis", {}), basis, out, "give --again, or another folder as --out"
            )
            run.finish(0)
            return
        panels = {name: panel(tasks, name, VALIDATION) for name in config.environments}
        plans = validation_plans(config, panels, 0, f"{config.experiment}/warm_start")
        with WorkerGroup(config, ranks) as workers, run.step(0, expected={VALIDATION: len(plans)}) as step:
            refuse_long_prompts(workers.prompt_tokens(probes(panels)), config.rollout)
            rollouts, timings = workers.collect(plans, validation_rollout(config), _print_progress)
            metrics = validation_metrics(rollouts, 0)
            step.write(VALIDATION, to_table(rollouts, "rollouts"))
            step.write("metrics", to_table(metrics, "metrics"))
            step.commit({"basis": basis})
        run.write_config(dump(config))
        run.finish(0)
    for warning in token_limit_warnings(rollouts, config.rollout.max_episode_tokens):
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    found = {m.name.removeprefix("validation/success/"): m.value for m in metrics if "/success/" in m.name}
    print(
        f"{len(rollouts)} episodes in {timings.wall_s:.0f} s "
        f"({timings.tokens_generated / timings.wall_s:,.0f} generated tokens/s): {rates(found)}"
    )


def _print_progress(done: int, total: int) -> None:
    if done == total or done % max(1, total // 10) == 0:
        print(f"{done}/{total} episodes", flush=True)


def main() -> None:
    parser = stage_parser("evaluate", __doc__)
    parser.add_argument("--tasks", type=Path, required=True, help="tasks.parquet of the experiment")
    parser.add_argument("--policy", type=Path, help="Hugging Face directory (default: the experiment's model)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--again", action="store_true", help="replace an evaluation that is already in the folder")
    args = parser.parse_args()
    overrides = [*args.set, *([f"model.path={args.policy}"] if args.policy else [])]
    config = load_experiment(args.config, overrides)
    if args.dry_run:
        print(dump(config))
        return
    tasks = read_tasks(args.tasks)
    evaluate(config, tasks, args.out, args.again)


if __name__ == "__main__":
    run_stage(main)
