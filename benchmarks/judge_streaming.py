"""How much of a step is spent waiting for tags: judging rollouts as they end, against judging the batch at its end.

The real loop trains the nano policy (collector, judge's client, update, commit); the judge's server is a real HTTP
server whose every reply is valid and takes a fixed time. That time, and the requests in flight, follow from the
faster of two steps without a judge model, so that judging the batch at its end costs about the share asked for. Runs
alternate, for a shared machine is no two minutes the same. All play the same episodes and must end in the same bytes.
Then one run fills a cache and another one reads it. Prints one Markdown table.

    python -m benchmarks.judge_streaming --config configs/experiments/quickstart.yaml
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rised.environments.base import Task
from rised.records.digest import reproducible_digest
from rised.records.shards import RunReader
from stages.evaluate import evaluate
from stages.prepare import prepare_tasks
from stages.setup import load_experiment, load_run
from stages.train import train
from tests.scripted_judge_server import ScriptedServer

LATENCY_SHARE = 0.02
"""Time of one reply, as a share of a step without a judge model."""
METHOD = "rised"


@dataclass(frozen=True)
class Bench:
    """What all runs share."""

    config: Path
    tasks: Sequence[Task]
    folder: Path
    overrides: tuple[str, ...]

    def run(self, name: str, *overrides: str) -> RunReader:
        config = load_run(self.config, METHOD, 0, [*self.overrides, *overrides])
        train(config, self.tasks, self.folder / "warm_start", self.folder / name)
        return RunReader(self.folder / name)


def values(run: RunReader, kind: str) -> list[dict[str, float]]:
    """name -> value of every update."""
    by_step: dict[int, dict[str, float]] = {}
    for row in run.scan(kind).to_pylist():
        if row["step"] > 0:
            by_step.setdefault(row["step"], {})[row["name"]] = row["value"]
    return list(by_step.values())


def digest(run: RunReader) -> dict[str, str]:
    return {path: value for path, value in reproducible_digest(run.path).items() if path != "config.yaml"}


def line(name: str, runs: Sequence[RunReader]) -> tuple[str, float, float]:
    """A row of the table; the share of tag wait and the seconds of a step, medians over all updates."""
    timings = [row for run in runs for row in values(run, "timings")]
    metrics = [row for run in runs for row in values(run, "metrics")]
    step = median(t["time/step"] for t in timings)
    wait = median(t["time/tag_wait"] for t in timings)
    share = median(t["time/tag_wait"] / t["time/step"] for t in timings)
    rate = median(m["judge/calls"] / t["judge/tag"] for m, t in zip(metrics, timings, strict=True))
    hits = sum(m["judge/cached"] for m in metrics) / sum(m["rollout/count"] for m in metrics)
    estimates = [t["judge/tag_after_batch"] for t in timings if "judge/tag_after_batch" in t]
    estimate = f"{median(estimates):.1f} s" if estimates else "–"
    return f"| {name} | {step:.1f} s | {wait:.2f} s | {share:.1%} | {estimate} | {rate:.1f} | {hits:.0%} |", share, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="experiment file")
    parser.add_argument(
        "--groups", type=int, default=12, help="prompt groups of an update, eight rollouts each (default: %(default)s)"
    )
    parser.add_argument("--cohort", type=int, default=8, help="episodes that generate together (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=1, help="updates of a run (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of either kind (default: %(default)s)")
    parser.add_argument(
        "--share",
        type=float,
        default=0.27,
        help="intended share of the step of tagging at its end (default: %(default)s)",
    )
    args = parser.parse_args()
    experiment = load_experiment(args.config)
    small = [
        word
        for name in experiment.environments
        for word in (
            f"environments.{name}.validation_tasks=2",
            f"environments.{name}.train_tasks={max(24, 4 * args.groups)}",
        )
    ]
    overrides = (
        *small,
        f"method.candidate_groups={args.groups}",
        f"method.selected_groups={args.groups // 2}",
        f"rollout.cohort_size={args.cohort}",
        f"updates={args.updates}",
        "learner.gradient_share_every=0",
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        experiment = load_experiment(args.config, [o for o in overrides if not o.startswith("method.")])
        bench = Bench(args.config, prepare_tasks(experiment), folder, overrides)
        evaluate(experiment, bench.tasks, folder / "warm_start")
        count = args.groups * experiment.rollouts_per_group
        in_flight = max(1, round(count * LATENCY_SHARE * (1 - args.share) / args.share))
        kinds: dict[str, list[RunReader]] = {"streaming": [], "at the batch's end": []}
        plain_s = min(row["time/step"] for n in range(2) for row in values(bench.run(f"rules-{n}"), "timings"))
        latency = LATENCY_SHARE * plain_s
        with ScriptedServer(latency_s=latency) as server:
            judge = f"{{type: llm, model: bench, endpoint: {server.url}, concurrency: {in_flight}"
            for repeat in range(args.repeats):
                for kind, runs in kinds.items():
                    streaming = str(kind == "streaming").lower()
                    runs.append(bench.run(f"{kind}-{repeat}", f"rubrics.judge={judge}, streaming: {streaming}}}"))
            cached = f"rubrics.judge={judge}, cache: {folder / 'cache'}}}"
            filled, found_all = (bench.run(f"cache-{state}", cached) for state in ("empty", "full"))
        digests = [digest(run) for runs in kinds.values() for run in runs]
        same = all(found == digests[0] for found in digests)
        pairs = zip(*(runs for runs in kinds.values()), strict=True)
        each = ", ".join(" against ".join(f"{line('', [run])[1]:.1%}" for run in pair) for pair in pairs)
        kinds |= {"streaming, cache empty": [filled], "streaming, cache full": [found_all]}
        print(
            f"\n{count} rollouts a step in cohorts of {args.cohort}; a step without a judge model takes {plain_s:.1f} "
            f"s, a reply {latency:.2f} s; {in_flight} are in flight at most.\n"
        )
        print("| tags | step | tag wait | share | estimate of the wait at the end | requests/s | cached |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        found = {kind: line(kind, runs) for kind, runs in kinds.items()}
        print("\n".join(text for text, _, _ in found.values()))
        streamed, waited = found["streaming"], found["at the batch's end"]
        print(f"\nShares by repeat: {each}.")
        print(
            f"Tag wait: {streamed[1]:.1%} of the step against {waited[1]:.1%}; the step takes "
            f"{streamed[2] / waited[2]:.2f} of the time. Records of both kinds are {'' if same else 'NOT '}the same."
        )


if __name__ == "__main__":
    main()
