"""What the episode loop costs beside generation: its rollout tokens per second against those of the engine alone.

Episodes of the experiment are played once and recorded. Then two arms alternate: the loop (`collect_rollouts`) plays
them again with the same engine, its environments answering from the record at no cost; and the engine alone gets the
same requests in the same batches and the same order. Both generate the same tokens, which is checked. A ratio is the
loop's tokens per second over the engine's; 1 is the floor of the loop's cost. The profile says what the rest is made
of.

    python -m benchmarks.loop_against_generation --config configs/experiments/quickstart.yaml
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.replay import Recording, RecordingEngine, RecordingPool, ReplayPool
from benchmarks.results import Measurement, against, clock, rate, table, write
from rised.models.engine import TransformersEngine
from rised.models.protocols import Generated
from rised.rollouts.episodes import CollectionRequest, collect_rollouts
from rised.rollouts.plans import EpisodePlan
from stages.loop import TRAIN, training_plans
from stages.policy import open_policy
from stages.prepare import prepare_tasks
from stages.setup import load_experiment, load_run, open_pool, panel

BENCHMARK = "loop_against_generation"


def generate_again(engine: TransformersEngine, recording: Recording) -> list[list[Generated]]:
    """The recorded requests, made of the engine alone."""
    sessions = [engine.session(rows, temperature) for rows, temperature in recording.sessions]
    return [
        sessions[r.session].generate(r.rows, [list(ids) for ids in r.new_ids], r.max_new_tokens, r.uniforms)
        for r in recording.requests
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="experiment file")
    parser.add_argument(
        "--groups", type=int, default=12, help="prompt groups of each case, eight rollouts each (default: %(default)s)"
    )
    parser.add_argument("--repetitions", type=int, default=7, help="plays of either kind (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder of the Parquet file (default: the documentation's)")
    parser.add_argument("--profile", action="store_true", help="print what the loop spends its time on")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    experiment = load_experiment(args.config)
    sizes = [
        f"environments.{name}.{size}"
        for name in experiment.environments
        for size in (f"train_tasks={max(24, 4 * args.groups)}", "validation_tasks=1")
    ]
    config = load_run(args.config, "grpo_64", 0, sizes)
    tasks = prepare_tasks(load_experiment(args.config, sizes))
    panels = {name: panel(tasks, name, TRAIN) for name in config.environments}
    policy = open_policy(config)

    def plans(chosen: Sequence[str]) -> list[EpisodePlan]:
        some = {name: panels[name] for name in chosen}
        return training_plans(config, some, dict.fromkeys(chosen, 0), {}, None, args.groups, 1, "benchmark")  # type: ignore[arg-type]

    cases = {name: plans([name]) for name in panels} | {"all environments": plans(list(panels))}
    rows: list[Measurement] = []
    with open_pool(config) as pool:
        for case, planned in cases.items():
            recording = Recording()
            recorded: Any = RecordingPool(pool, recording)
            request = CollectionRequest(planned, policy.rendering, recorded, config.rollout)
            played = collect_rollouts(RecordingEngine(policy.engine, recording), request)
            tokens = sum(sum(rollout.policy_mask) for rollout in played)
            for repetition in range(args.repetitions):
                for arm in ("engine", "loop") if repetition % 2 else ("loop", "engine"):
                    with clock() as spent:
                        if arm == "loop":
                            replayed: Any = ReplayPool(recording)
                            again = collect_rollouts(policy.engine, replace(request, pool=replayed))
                        else:
                            replies = generate_again(policy.engine, recording)
                    if arm == "loop" and again != played:
                        raise AssertionError(f"{case}: the loop played other episodes than were recorded")
                    if arm == "engine" and sum(len(r.token_ids) for batch in replies for r in batch) != tokens:
                        raise AssertionError(f"{case}: the engine alone generated other tokens")
                    rows.append(rate(BENCHMARK, case, arm, repetition, tokens, spent.cpu_s, "processor"))
                    rows.append(rate(BENCHMARK, case, arm, repetition, tokens, spent.wall_s, "wall"))
            if args.profile:
                profile = cProfile.Profile()
                replayed = ReplayPool(recording)
                profile.runcall(collect_rollouts, policy.engine, replace(request, pool=replayed))
                pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    rows = against(rows, "engine")
    print(table(rows))
    print("written:", write(rows, args.out) if args.out else write(rows))


if __name__ == "__main__":
    main()
