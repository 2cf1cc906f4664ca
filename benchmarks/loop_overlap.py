"""The asynchronous loop against the synchronous one, as they are on this machine: no models of latency.

Whole runs of a few updates take turns: every method with `pipeline.lag: 0` and `1`, otherwise the same configuration
(the loss with truncated importance weights in both). Everything of a step is the product's, commits included; judge are
the detectors; validation is at the end alone. A value is the mean step of a run without its first one, by the wall, a
ratio that of the asynchronous loop over the synchronous one of the same method and repetition: below 1 the overlap of
episodes and update saves time. One process plays and learns here, so that both share its cores.

    python -m benchmarks.loop_overlap --config configs/experiments/quickstart.yaml
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Measurement, against, duration, table, write
from rised.records.shards import RunReader
from stages.evaluate import evaluate
from stages.prepare import prepare_tasks
from stages.setup import load_experiment, load_run
from stages.train import train

BENCHMARK = "loop_overlap"
SYNCHRONOUS, ASYNCHRONOUS = "synchronous", "asynchronous"
LAGS: dict[str, int] = {SYNCHRONOUS: 0, ASYNCHRONOUS: 1}
METHODS = ("grpo_64", "rised")
PARTS = ("step", "rollout_wait", "reference", "teacher", "actor", "other")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="experiment file")
    parser.add_argument("--updates", type=int, default=8, help="updates of a run")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of every method with either loop")
    parser.add_argument("--out", type=Path, help="folder of the Parquet file (default: the documentation's)")
    args = parser.parse_args(arguments)
    common = [f"updates={args.updates}", f"validation.every={args.updates}", "learner.gradient_share_every=0"]
    small = [f"environments.{name}.validation_tasks=2" for name in load_experiment(args.config).environments]
    experiment = load_experiment(args.config, [*common, *small])
    tasks = prepare_tasks(experiment)
    rows: list[Measurement] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        evaluate(experiment, tasks, folder / "warm_start")
        for repetition in range(args.repetitions):
            for method in METHODS:
                for loop, lag in list(LAGS.items())[:: 1 if repetition % 2 else -1]:
                    overlap = [f"pipeline.lag={lag}", "method.policy_loss.truncated_importance=2.0"]
                    out = folder / f"{method}-{loop}-{repetition}"
                    config = load_run(args.config, method, 0, [*common, *small, *overlap])
                    train(config, tasks, folder / "warm_start", out)
                    timings = RunReader(out).scan("timings").to_pylist()
                    for part in PARTS:
                        mean_s = statistics.mean(row["value"] for row in timings if row["name"] == f"time/{part}")
                        rows.append(duration(BENCHMARK, f"{method}, {part}", loop, repetition, mean_s))
                        if part == "step":
                            print(f"{method} {loop}: {mean_s:.1f} s a step", flush=True)
    found = [row for row in against(rows, SYNCHRONOUS) if row.case.endswith("step")]
    found += [row for row in rows if not row.case.endswith("step")]
    print(table(found))
    print("written:", write(found, args.out) if args.out else write(found))


if __name__ == "__main__":
    main()
