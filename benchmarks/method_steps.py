"""A step of RISED against one of GRPO-64 as they are on this machine: the experiment's own configuration, no models of
latency.

Both runs of the experiment live side by side in one process and make their updates in turn (environments in worker
processes, detectors as judge). Every part of a step is the product's, commits included; validation is left out. A
ratio is RISED's seconds over those of GRPO-64 in the same turn. RISED plays twice as many episodes here, as everywhere.

    python -m benchmarks.method_steps --config configs/experiments/quickstart.yaml
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.results import Measurement, against, clock, duration, table, write
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

BENCHMARK = "method_steps"
BASE, METHODS = "grpo_64", ("grpo_64", "rised")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="experiment file")
    parser.add_argument(
        "--repetitions",
        type=int,
        default=6,
        help="updates of each method, after one that warms up (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, help="folder of the Parquet file (default: the documentation's)")
    args = parser.parse_args(arguments)
    many = [f"updates={args.repetitions + 2}", "validation.every=1000000", "learner.gradient_share_every=0"]
    small = [f"environments.{name}.validation_tasks=2" for name in load_experiment(args.config).environments]
    experiment = load_experiment(args.config, [*many, *small])
    tasks = prepare_tasks(experiment)
    rows: list[Measurement] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        evaluate(experiment, tasks, folder / "warm_start")
        trainers, shown, pids = {}, {}, {}
        for method in METHODS:
            config = load_run(args.config, method, 0, [*many, *small])
            run = stack.enter_context(RunDirectory(folder / method, config.keep_states, config.keep_exports))
            run.recover()
            learnt = Method.from_settings(config.method, load_vocabulary(Path(config.rubrics.vocabulary)))
            workers = stack.enter_context(WorkerGroup(config, Ranks.of_job(), learnt.loss_terms()))
            pids[method] = workers._pool.worker_pids
            trainers[method] = Trainer(config, tasks, run, workers, learnt)
            prepare_run(run, trainers[method], tasks, workers.system_prompts() | learnt.prompts())
            trainers[method].start(folder / "warm_start", tasks)
            shown[method] = stack.enter_context(RunProgress(method, folder / method, config.updates, 0))
        for repetition in range(args.repetitions + 1):
            for method in METHODS[:: 1 if repetition % 2 else -1]:
                with clock(pids[method]) as spent:
                    trainers[method].update(repetition + 1, shown[method], lambda: True)
                    trainers[method].settle(shown[method])
                print(
                    f"{method} {repetition + 1}: {spent.wall_s:.1f} s, {spent.cpu_s:.1f} s of the processor", flush=True
                )
                if repetition == 0:
                    continue
                rows.append(duration(BENCHMARK, "step", method, repetition, spent.cpu_s, "processor"))
                rows.append(duration(BENCHMARK, "step", method, repetition, spent.wall_s))
                timings = RunReader(folder / method).scan("timings", steps=[repetition + 1]).to_pylist()
                parts = {row["name"].removeprefix("time/"): row["value"] for row in timings}
                for part in ("rollout_wait", "tag_wait", "reference", "teacher", "actor", "other"):
                    rows.append(duration(BENCHMARK, part, method, repetition, parts[part]))
    rows = against([row for row in rows if row.case == "step"], BASE) + [row for row in rows if row.case != "step"]
    print(table(rows))
    print("written:", write(rows, args.out) if args.out else write(rows))


if __name__ == "__main__":
    main()
