"""This loop against TRL's GRPOTrainer: the same policy, tasks and update, in turns.

One environment, GRPO with the same group size, batch, optimiser, KL to the starting policy and limits of tokens, in
float32 on one core of a CPU, one thread. Arms, each a process of its own, all pinned to one core, taking turns update
by update: this loop as configured (groups without signal are not passed through the actor); the same with every group
trained on; TRL's `environment_factory`; and TRL's `rollout_func` with a key/value cache over the turns (see
`benchmarks.trl_arms`). A value is the tokens of the step's episodes, prompts and observations included, over the
processor seconds of the update, of environment workers too; a ratio is this loop's over the arm's in the same turn.
Wall-clock seconds stand beside. Also written: the success rate of each update's rollouts, and its difference from this
loop's in the same update, whose tasks are the same.

What differs: this loop commits every step to disk with token ids, log-probabilities and tags, TRL keeps nothing; this
loop draws from seeded uniforms of its own, TRL from torch's generator; TRL's micro-batches count sequences.

    python3 -m venv .venv-trl && .venv-trl/bin/pip install -r requirements/trl.txt
    python -m benchmarks.trl_comparison --config configs/experiments/quickstart.yaml --trl-python .venv-trl/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from scipy import stats

from benchmarks.results import Measurement, against, clock, rate, table, write
from benchmarks.turns import Told, Worker

BENCHMARK = "trl_comparison"
METHOD, BASE, ALL_GROUPS = "grpo_64", "this loop", "this loop, every group trained on"
PEERS = ("environment_factory", "rollout_func")


def overrides(plan: dict[str, object]) -> list[str]:
    """What both the driver and this loop's worker lay over the experiment."""
    groups = int(plan["groups"])  # type: ignore[call-overload]
    name = plan["environment"]
    return [
        f"method.candidate_groups={groups}",
        f"method.selected_groups={groups}",
        f"training_environments=[{name}]",
        *(f"environments.{other}.validation_tasks=1" for other in plan["environments"]),  # type: ignore[attr-defined]
        *(f"environments.{o}.train_tasks=2" for o in plan["environments"] if o != name),  # type: ignore[attr-defined]
        "validation.every=1000000",
        f"updates={int(plan['updates']) + 1}",  # type: ignore[call-overload]
        "learner.gradient_share_every=0",
        "rubrics.tag_training=when_needed",
        "rollout.environment_workers=1",
    ]


def play(plan_file: str, skip: str) -> None:
    """This loop's worker."""
    import torch

    from rised.methods.composition import Method
    from rised.records.commit import RunDirectory
    from rised.records.shards import RunReader
    from rised.rubrics.vocabulary import load_vocabulary
    from stages.evaluate import evaluate
    from stages.prepare import prepare_tasks
    from stages.progress import RunProgress
    from stages.ranks import Ranks
    from stages.setup import load_experiment, load_run
    from stages.train import Trainer, prepare_run
    from stages.workers import WorkerGroup

    plan, told = json.loads(Path(plan_file).read_text()), Told()
    torch.set_num_threads(1)
    every = [f"method.kl.skip_zero_signal={skip}"]
    words = overrides(plan)
    experiment = load_experiment(Path(plan["config"]), [w for w in words if not w.startswith("method.")])
    tasks = prepare_tasks(experiment)
    config = load_run(Path(plan["config"]), METHOD, plan["seed"], [*words, *every])
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        evaluate(experiment, tasks, folder / "warm_start")
        run = stack.enter_context(RunDirectory(folder / "run", config.keep_states, config.keep_exports))
        run.recover()
        method = Method.from_settings(config.method, load_vocabulary(Path(config.rubrics.vocabulary)))
        workers = stack.enter_context(WorkerGroup(config, Ranks.of_job(), method.loss_terms()))
        trainer = Trainer(config, tasks, run, workers, method)
        prepare_run(run, trainer, tasks, workers.system_prompts() | method.prompts())
        trainer.start(folder / "warm_start", tasks)
        progress = stack.enter_context(RunProgress("rised", folder / "run", config.updates, 0))
        told.say(ready=True)
        for number in range(1, plan["updates"] + 1):
            told.wait()
            with clock(workers._pool.worker_pids) as spent:
                trainer.update(number, progress, lambda: True)
                trainer.settle(progress)
            reader = RunReader(folder / "run")
            rollouts = reader.scan("rollouts", steps=[number]).to_pylist()
            parts = {row["name"]: row["value"] for row in reader.scan("timings", steps=[number]).to_pylist()}
            order = list(dict.fromkeys(row["task_id"] for row in rollouts))
            expected = plan["order"][(number - 1) * plan["groups"] : number * plan["groups"]]
            if order != [plan["tasks"][index]["task_id"] for index in expected]:
                raise AssertionError(f"step {number}: this loop played other tasks than TRL does")
            told.say(
                wall_s=spent.wall_s,
                cpu_s=spent.cpu_s,
                tokens=sum(len(row["token_ids"]) for row in rollouts),
                generated=sum(sum(row["policy_mask"]) for row in rollouts),
                success=sum(bool(row["success"]) for row in rollouts) / len(rollouts),
                rollout_s=parts["time/rollout_wait"],
            )
        told.wait()


def make_plan(config_file: Path, environment: str, groups: int, updates: int, seed: int, folder: Path) -> Path:
    """Write what all arms share, and return the file."""
    from rised.environments.discovery import get
    from stages.loop import TRAIN, draw_tasks
    from stages.prepare import prepare_tasks
    from stages.setup import load_experiment, load_run, panel

    names = list(load_experiment(config_file).environments)
    plan: dict[str, object] = {"environment": environment, "environments": names, "groups": groups}
    plan |= {"updates": updates, "seed": seed}
    words = overrides(plan)
    experiment = load_experiment(config_file, [w for w in words if not w.startswith("method.")])
    config = load_run(config_file, METHOD, seed, words)
    tasks = panel(prepare_tasks(experiment), environment, TRAIN)
    number_of = {task.task_id: number for number, task in enumerate(tasks)}
    drawn = [
        task for step in range(updates + 1) for task in draw_tasks(tasks, step * groups, groups, groups, config.seed)
    ]
    settings = config.environments[environment].settings
    learner, rollout = config.learner, config.rollout
    plan |= {
        "config": str(config_file),
        "folder": str(folder / f"trl-{seed}"),
        "model": config.model.path,
        "settings": settings.model_dump(mode="json"),
        "tasks": [asdict(task) for task in tasks],
        "order": [number_of[task.task_id] for task in drawn],
        "system_prompt": get(environment).make(settings).system_prompt(),
        "group": config.rollouts_per_group,
        "episodes": groups * config.rollouts_per_group,
        "micro_batch": groups * config.rollouts_per_group // 2,
        "max_turns": rollout.max_turns[environment],
        "max_new_tokens": rollout.max_new_tokens(environment),
        "max_episode_tokens": rollout.max_episode_tokens,
        "kl": config.method.kl.coefficient,
        "learning_rate": learner.learning_rate,
        "betas": learner.betas,
        "warmup": learner.warmup_updates,
    }
    file = folder / f"plan-{seed}.json"
    file.write_text(json.dumps(plan))
    return file


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="experiment file")
    parser.add_argument("--trl-python", required=True, help="interpreter with TRL")
    parser.add_argument("--environment", default="dbbench", help="the environment that is trained on")
    parser.add_argument("--groups", type=int, default=8, help="prompt groups of an update, eight rollouts each")
    parser.add_argument("--updates", type=int, default=25, help="updates of each arm, the first of which warms up")
    parser.add_argument("--seeds", type=int, default=1, help="runs, each with another seed")
    parser.add_argument("--core", type=int, help="processor core that everything is pinned to (default: the last one)")
    parser.add_argument("--out", type=Path, help="folder of the Parquet file (default: the documentation's)")
    args = parser.parse_args(arguments)
    core = args.core if args.core is not None else max(os.sched_getaffinity(0))
    rows: list[Measurement] = []
    curves: list[Measurement] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(args.seeds):
            file = make_plan(args.config, args.environment, args.groups, args.updates, seed, folder)
            here = [sys.executable, "-m", "benchmarks.trl_comparison", "--play", str(file)]
            commands = {BASE: [*here, "true"], ALL_GROUPS: [*here, "false"]}
            commands |= {f"TRL {p}": [args.trl_python, "-m", "benchmarks.trl_arms", str(file), p] for p in PEERS}
            one_thread = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.getcwd()}
            os.sched_setaffinity(0, {core})
            with ExitStack() as stack:
                workers: dict[str, Worker] = {}
                for arm, command in commands.items():
                    log = stack.enter_context((folder / f"{seed}-{len(workers)}.log").open("w+"))
                    workers[arm] = stack.enter_context(Worker(command, one_thread, log))
                    try:
                        workers[arm].heard()
                    except RuntimeError as error:
                        log.seek(0)
                        sys.exit(f"{error}\n{log.read()[-3000:]}")
                for update in range(args.updates):
                    order = list(workers)
                    for arm in order[update % len(order) :] + order[: update % len(order)]:
                        found = workers[arm].turn()
                        shown = {key: round(value, 2) for key, value in found.items()}
                        print(f"seed {seed} update {update + 1} {arm}: {shown}", flush=True)
                        number = seed * args.updates + update
                        curves.append(Measurement(BENCHMARK, "success", arm, number, "fraction", found["success"]))
                        if update == 0:
                            continue
                        for kind, seconds in (("processor", found["cpu_s"]), ("wall", found["wall_s"])):
                            rows.append(rate(BENCHMARK, args.environment, arm, number, found["tokens"], seconds, kind))
                    done = against(rows, BASE, inverse=True) + summary(curves, args.updates)
                    if done and rows:  # a long benchmark that is stopped leaves what it has
                        write(done, args.out) if args.out else write(done)
    print(table(done))
    print("\n".join(mean_differences(done, args.updates)))


def summary(curves: Sequence[Measurement], updates: int) -> list[Measurement]:
    """The success rates by thirds of the updates, and what each arm's are above this loop's on the same tasks."""
    third = max(1, updates // 3)
    bases = {row.repetition: row.value for row in curves if row.arm == BASE}
    rates, differences = [], []
    for first in range(0, updates, third):
        last = updates if first + 2 * third > updates else first + third
        if last - first < third:
            break
        for row in curves:
            base, place = bases.get(row.repetition), row.repetition % updates
            if not first <= place < last or row.value is None:
                continue
            rates.append(replace(row, case=f"success, updates {first + 1} to {last} of {updates}"))
            if row.arm != BASE and base is not None:
                case = f"success less this loop's, updates {first + 1} to {last} of {updates}"
                differences.append(replace(row, case=case, value=row.value - base))
        if last == updates:
            break
    return rates + differences


def mean_differences(rows: Sequence[Measurement], updates: int) -> list[str]:
    """A line for each arm and third: the mean of its differences, with the 95% interval over the seeds (Student's t).

    Updates of one run are no independent draws: each seed counts once.
    """
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in rows:
        if row.case.startswith("success less") and row.value is not None:
            seeds = found.setdefault((row.case, row.arm), {})
            seeds.setdefault(row.repetition // updates, []).append(row.value)
    lines = []
    for (case, arm), seeds in found.items():
        means = [statistics.mean(values) for values in seeds.values()]
        if len(means) < 2:
            continue
        half = float(stats.t.ppf(0.975, len(means) - 1)) * statistics.stdev(means) / len(means) ** 0.5
        middle = statistics.mean(means)
        lines.append(f"{case}, {arm}: {middle:+.3f} ({middle - half:+.3f} to {middle + half:+.3f}), {len(means)} seeds")
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        play(*sys.argv[2:4])
    else:
        main()
