"""A step of RISED against one of GRPO-64 under the paper's latencies: what the loop hides of them.

Everything is the product's but what needs a GPU: plans, collector, rendering, judge's client, tagger, selector, teacher
hints, steering, commits. Generation, the judge's model and the learner are models of latency, fitted to the paper's
Table 9 (`data/paper/rised_table9_step_time.csv`, seconds of a step on 32 GPUs, 8 more for the judge):

- *collection*: the paper collects the next step's rollouts while it trains, so that `rollout_wait` is what is left of
  it. The variance selectors collect 1,024 rollouts, train 162 s and 155 s, and wait: their collector never rests, and
  1,024 rollouts take as long as their whole steps, 178 s (the mean of both). GRPO-128 and GRPO-64 then wait for nothing
  (0.8 and 0.5 s in the table). The engine makes a constant number of tokens a second, at which the candidates of
  RISED's counted steps take that long on average; each step takes what its tokens cost.
- *judge*: `tag_wait`, 63 s for 1,024 rollouts of RISED, is all of them at once, at the batch's end. The server answers
  at that rate, with so many requests in flight that a reply takes 4 s.
- *reference, actor*: seconds over trained sequences, all five rows together (512 sequences; GRPO-128: 1,024).
- *teacher*: RISED's seconds over its 512 sequences. *other*: the mean of the five rows, the same for every method.

The model's own check is the asynchronous arm with tags at the batch's end, which is what the paper does: it has to give
the paper's 252.9 / 155.5 = 1.63 again.

Steps are smaller and faster than the paper's: `--group-scale` of its groups at `--time-scale` of its seconds; what the
loop itself computes is not scaled and counts in full. Episodes are played once by the nano policy in the real
environments and replayed. Runs of all arms alternate; a value is the mean step of a run without its first one, a ratio
is over GRPO-64 of the same repetition and loop, and where the synchronous loop ran also of each loop over it.

    python -m benchmarks.paper_latencies --config configs/experiments/quickstart.yaml
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.replay import Recording, RecordingEngine, RecordingPool, ReplayEngine, ReplayPool
from benchmarks.results import RESULTS, Measurement, against, duration, read, table, write
from rised.environments.base import Task
from rised.experiment import RunConfig
from rised.learner.types import LossTerm, Need, Timings, TrainingSequence, UpdateReport
from rised.methods.composition import Method
from rised.records.shards import RunReader
from rised.rollouts.episodes import CollectionRequest, collect_rollouts
from rised.rubrics.vocabulary import load_vocabulary
from stages.evaluate import evaluate
from stages.loop import TRAIN, VALIDATION, quotas, training_plans, validation_plans, validation_rollout
from stages.policy import open_policy
from stages.prepare import prepare_tasks
from stages.ranks import Ranks
from stages.setup import load_experiment, load_run, open_pool, panel
from stages.train import drive
from stages.workers import WorkerGroup
from tests.scripted_judge_server import ScriptedServer

BENCHMARK = "paper_latencies"
TABLE = Path("data/paper/rised_table9_step_time.csv")
ROLLOUTS, SEQUENCES, WIDE_SEQUENCES = 1024, 512, 1024
IN_FLIGHT = 64
"""Requests at the judge at once, at the paper's size."""
BASE, PAPER = "grpo_64", "rised, tags at the end"


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds: of collecting and of judging one rollout, of each pass over one sequence, and what a step adds."""

    collect_s: float
    judge_s: float
    reference_s: float
    teacher_s: float
    actor_s: float
    other_s: float

    @classmethod
    def of_table(cls, path: Path = TABLE) -> Latencies:
        """As the module's docstring says."""
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        rows = {row["method"]: row for row in csv.DictReader(lines)}
        trained = {name: WIDE_SEQUENCES if name == "grpo_128" else SEQUENCES for name in rows}

        def each(column: str) -> float:
            return sum(float(row[column]) for row in rows.values()) / sum(trained.values())

        bound = [float(rows[name]["step"]) for name in ("global_variance", "round_robin_variance")]
        return cls(
            collect_s=statistics.mean(bound) / ROLLOUTS,
            judge_s=float(rows["rised"]["tag_wait"]) / ROLLOUTS,
            reference_s=each("reference"),
            teacher_s=float(rows["rised"]["teacher"]) / SEQUENCES,
            actor_s=each("actor"),
            other_s=statistics.mean(float(row["other"]) for row in rows.values()),
        )

    def scaled(self, seconds: float, groups: float) -> Latencies:
        """Of steps with ``groups`` of the paper's groups, in ``seconds`` of its time."""
        one = seconds / groups
        return Latencies(
            collect_s=self.collect_s * one,
            judge_s=self.judge_s * one,
            reference_s=self.reference_s * one,
            teacher_s=self.teacher_s * one,
            actor_s=self.actor_s * one,
            other_s=self.other_s * seconds,
        )


def latency_update(latencies: Latencies) -> Callable[..., UpdateReport]:
    """A learner's ``update`` that takes its time and changes nothing."""

    def update(sequences: Sequence[TrainingSequence], terms: Sequence[LossTerm]) -> UpdateReport:
        needs = {need for term in terms for need in term.needs}
        count = len(sequences)
        parts = Timings(
            count * latencies.reference_s * (Need.REFERENCE in needs),
            count * latencies.teacher_s * bool(needs & {Need.TEACHER, Need.TEACHER_GAP}),
            count * latencies.actor_s,
        )
        time.sleep(parts.reference_s + parts.teacher_s + parts.actor_s + latencies.other_s)
        return UpdateReport((), parts, empty=False)

    return update


def latency_workers(recording: Recording, latencies: Latencies, token_s: float) -> type[WorkerGroup]:
    """A worker group whose engine, environments and updates are models of latency."""

    class LatencyWorkers(WorkerGroup):
        def __init__(self, config: Any, ranks: Ranks, terms: Sequence[LossTerm] = ()) -> None:
            super().__init__(config, ranks, terms)
            engine: Any = ReplayEngine(recording, lambda tokens: time.sleep(tokens * token_s))
            self.policy = replace(self.policy, engine=engine)
            self.learner.update = latency_update(latencies)  # type: ignore[method-assign]

        def __enter__(self) -> WorkerGroup:
            self._pool = ReplayPool(recording)
            return self

    return LatencyWorkers


def record(config: RunConfig, tasks: Sequence[Task], recording: Recording) -> list[tuple[int, int]]:
    """Play all that a run will play, up to its validation; episodes and generated tokens of each training step."""
    policy = open_policy(config)
    method = Method.from_settings(config.method, load_vocabulary(Path(config.rubrics.vocabulary)))
    run_name = f"{config.experiment}/{config.method.name}/seed-{config.seed}"
    panels = {name: panel(tasks, name, TRAIN) for name in config.trained_on}
    validation = {name: panel(tasks, name, VALIDATION) for name in config.environments}
    cursors = dict.fromkeys(panels, 0)
    candidates = method.candidate_count()
    played_steps = []
    with open_pool(config) as pool:
        engine: Any = RecordingEngine(policy.engine, recording)
        keeper: Any = RecordingPool(pool, recording)
        for step in range(1, config.updates + 1):
            plans = training_plans(config, panels, cursors, {}, None, candidates, step, run_name)  # type: ignore[arg-type]
            played = collect_rollouts(engine, CollectionRequest(plans, policy.rendering, keeper, config.rollout))
            played_steps.append((len(played), sum(sum(r.policy_mask) for r in played)))
            for name, count in quotas(candidates, list(panels), step).items():
                cursors[name] += count
        plans = validation_plans(config, validation, config.updates, run_name)
        collect_rollouts(engine, CollectionRequest(plans, policy.rendering, keeper, validation_rollout(config)))
    recording.requests.clear()
    return played_steps


@dataclass(frozen=True)
class Arm:
    """``judge``: words to add to the judge's settings, None for a method that is not tagged."""

    name: str
    method: str
    judge: str | None
    overrides: tuple[str, ...] = ()


WEIGHED = "method.policy_loss.truncated_importance=2.0"
LOOPS: Mapping[str, tuple[str, ...]] = {
    "synchronous": (),
    "asynchronous": ("pipeline.lag=1", WEIGHED),
    "two steps ahead": ("pipeline.lag=2", WEIGHED),
}
"""In the asynchronous ones later steps' episodes are played during a step's tagging and update, as in the paper."""


def arms(loops: Sequence[str]) -> list[tuple[str, Arm]]:
    """Loop and arm: every way of tagging in each loop."""
    found = []
    for case in loops:
        lag = LOOPS[case]
        found += [
            (case, Arm(BASE, "grpo_64", None, lag)),
            (case, Arm("rised", "rised", "streaming: true", lag)),
            (case, Arm(PAPER, "rised", "streaming: false", lag)),
        ]
    return found


def others(folder: Path, loops: Sequence[str], scale: str) -> list[Measurement]:
    """What earlier runs measured of other loops or at other scales, which stays."""
    known = read(BENCHMARK, folder) if (folder / f"{BENCHMARK}.parquet").is_file() else []
    measured = [f"{loop}, {scale}" for loop in (*loops, "by loop")]
    return [row for row in known if not row.case.endswith(tuple(measured))]


def overlaps(found: Sequence[Measurement], scale: str) -> list[Measurement]:
    """Every arm's step in each loop, with its ratio over the same arm's in the synchronous one, where that ran."""
    cases = {f"step, {loop}, {scale}": loop for loop in LOOPS}
    turned = [
        replace(row, case=f"{row.arm}, by loop, {scale}", arm=cases[row.case])
        for row in sorted(found, key=lambda row: row.arm)
    ]
    return against(turned, "synchronous") if "synchronous" in {row.arm for row in turned} else []


def steps(run: RunReader) -> dict[str, list[float]]:
    """timing -> its values, the first step left out."""
    found: dict[str, list[float]] = {}
    for row in run.scan("timings").to_pylist():
        if row["step"] > 1:
            found.setdefault(row["name"], []).append(row["value"])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="experiment file")
    parser.add_argument("--time-scale", type=float, default=0.1, help="share of the paper's seconds")
    parser.add_argument("--group-scale", type=float, default=0.25, help="share of the paper's 128 and 64 groups")
    parser.add_argument("--updates", type=int, default=7, help="updates of a run, of which the first is not counted")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of every arm")
    parser.add_argument("--loop", choices=LOOPS, action="append", help="one of the loops (default: all)")
    parser.add_argument("--out", type=Path, help="folder of the Parquet file (default: the documentation's)")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    latencies = Latencies.of_table()
    print(f"fitted, seconds at the paper's size: {latencies}")
    scaled = latencies.scaled(args.time_scale, args.group_scale)
    candidates = round(128 * args.group_scale)
    in_flight = max(1, round(IN_FLIGHT * args.group_scale))
    experiment = load_experiment(args.config)
    sizes = [
        f"environments.{name}.{size}"
        for name in experiment.environments
        for size in (f"train_tasks={max(24, 4 * candidates)}", "validation_tasks=2")
    ]
    common = [
        *sizes,
        f"method.candidate_groups={candidates}",
        f"method.selected_groups={candidates // 2}",
        f"updates={args.updates}",
        f"validation.every={args.updates}",
        "rollout.max_episode_tokens=1400",  # a steered prompt must not cut an episode that was recorded unsteered
        f"rollout.cohort_size={max(8, round(32 * args.group_scale) // 8 * 8)}",
        "rubrics.tag_training=when_needed",
    ]
    prepared = load_experiment(args.config, [o for o in common if not o.startswith("method.")])
    tasks = prepare_tasks(prepared)
    recording = Recording()
    record(load_run(args.config, BASE, 0, common), tasks, recording)
    counted = record(load_run(args.config, "rised", 0, common), tasks, recording)[1:]
    episodes, tokens = (sum(part) for part in zip(*counted, strict=True))
    token_s = scaled.collect_s * episodes / tokens
    print(f"{episodes} episodes of {tokens / episodes:.1f} generated tokens; {1 / token_s:,.0f} tokens/s")
    print("collection of each counted step, s:", *(f"{n * token_s / args.time_scale:.0f}" for _, n in counted))
    scale = f"time x {args.time_scale:g}, groups x {args.group_scale:g}"
    loops = args.loop or list(LOOPS)
    earlier = others(args.out or RESULTS, loops, scale)
    found: list[Measurement] = []
    waits: list[Measurement] = []
    with tempfile.TemporaryDirectory() as name, ScriptedServer(latency_s=scaled.judge_s * in_flight) as server:
        folder = Path(name)
        evaluate(prepared, tasks, folder / "warm_start")
        judge = f"type: llm, model: bench, endpoint: {server.url}, concurrency: {in_flight}"
        workers = latency_workers(recording, scaled, token_s)
        for repetition in range(args.repetitions):
            for case, arm in arms(loops)[:: 1 if repetition % 2 else -1]:
                asked = () if arm.judge is None else (f"rubrics.judge={{{judge}, {arm.judge}}}",)
                config = load_run(args.config, arm.method, 0, [*common, *arm.overrides, *asked])
                out = folder / f"{case}-{arm.name}-{repetition}"
                with mock.patch("stages.train.WorkerGroup", workers), Ranks.of_job() as ranks:
                    learnt = Method.from_settings(config.method, load_vocabulary(Path(config.rubrics.vocabulary)))
                    drive(config, tasks, folder / "warm_start", out, ranks, learnt)
                server.script()
                parts = steps(RunReader(out))
                step_s = statistics.mean(parts["time/step"]) / args.time_scale
                found.append(duration(BENCHMARK, f"step, {case}, {scale}", arm.name, repetition, step_s))
                for part in ("rollout_wait", "tag_wait"):
                    part_s = statistics.mean(parts[f"time/{part}"]) / args.time_scale
                    waits.append(duration(BENCHMARK, f"{part}, {case}, {scale}", arm.name, repetition, part_s))
                print(f"{case} {arm.name}: {step_s:.1f} s, {repetition}", flush=True)
            done = earlier + against(found, BASE) + overlaps(found, scale) + waits
            write(done, args.out or RESULTS)
    print(table(done))


if __name__ == "__main__":
    main()
