"""How a step's cost grows: seconds and memory against groups, turns, length of an episode, and ranks.

The loop plays episodes of a synthetic environment, which answers so many turns with so many tokens at no cost, and the
learner makes an update of them; one of the four sizes varies, the others stand at the base. Values are processor
seconds of the rollouts and of the update, and the update's peak of resident memory above what stood before. With two
ranks, each a process, they are those of the slower rank. The growth is the exponent e of a fit size^e: 1 is linear;
with ranks -1 would be ideal.

    python -m benchmarks.cost_growth --model data/nano_policy
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

from benchmarks.packing import sequences_of
from benchmarks.results import Measurement, clock, table, write
from rised.environments.base import StepResult, Task
from rised.learner.learner import Learner
from rised.learner.ranks import ALONE, LearnerRanks
from rised.learner.settings import LearnerSettings
from rised.learner.types import LossTerm, Need
from rised.methods.registry import build, piece_settings
from rised.models.engine import TransformersEngine
from rised.models.loading import load_policy
from rised.models.rendering import ChatRendering
from rised.models.settings import ModelSettings
from rised.rollouts.episodes import CollectionRequest, collect_rollouts
from rised.rollouts.plans import EpisodePlan
from rised.rollouts.settings import RolloutSettings
from tests.scripted_judge_server import free_port

BENCHMARK = "cost_growth"
GROUP = 8
REPLY = 12
WORD = " shelf"
RANK_LENGTHS = [200] * 32


@dataclass(frozen=True, slots=True)
class Size:
    """Prompt groups, turns of an episode, words that the environment says in each."""

    groups: int = 4
    turns: int = 4
    words: int = 24


BASE = Size()
VARIED: Mapping[str, tuple[int, ...]] = {"groups": (2, 4, 8), "turns": (2, 4, 8), "words": (12, 24, 48)}
SHOWN = {"groups": "groups of 8", "turns": "turns", "words": "words of an observation"}


class Talker:
    """A pool of environments that say the same words, so many turns long."""

    def __init__(self, size: Size) -> None:
        self._text, self._turns, self._left = WORD * size.words, size.turns, dict[int, int]()
        self.max_turns = {"synthetic": size.turns + 1}

    def system_prompt(self, environment: str) -> str:
        return "database"

    def reset_many(self, requests: Iterable[tuple[int, Task, int]]) -> dict[int, str]:
        begun = [slot for slot, _, _ in requests]
        self._left |= dict.fromkeys(begun, self._turns)
        return dict.fromkeys(begun, self._text)

    def step_many(self, requests: Iterable[tuple[int, str]]) -> dict[int, StepResult]:
        found = {}
        for slot, action in requests:
            self._left[slot] -= 1
            over = self._left[slot] == 0
            reward = 1.0 if over else None
            stop = "environment_done" if over else None
            found[slot] = StepResult(self._text, over, action, True, reward, over or None, stop)
        return found

    def release(self, slots: Iterable[int]) -> None:
        """They cost nothing."""


def plans(size: Size) -> list[EpisodePlan]:
    tasks = [Task("synthetic", "train", str(number), number, {}, str(number)) for number in range(size.groups)]
    return [
        EpisodePlan(task, "train", 1, task.task_id, index, "growth", 0, 0) for task in tasks for index in range(GROUP)
    ]


def peak_mib(begin: bool = False) -> float:
    """Peak of this process's resident memory since the last call with ``begin`` (Linux with glibc).

    ``begin`` gives what the allocator kept of earlier work back to the system first, and says what stands then.
    """
    if begin:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    name = "VmRSS:" if begin else "VmHWM:"
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def term() -> LossTerm:
    policy = build("policy_loss", piece_settings("policy_loss", {"type": "clipped_surrogate"}), vocabulary=None)
    return LossTerm("rl", 1.0, policy.token_loss, frozenset({Need.ADVANTAGE}))


def make_learner(model: str, ranks: LearnerRanks = ALONE) -> tuple[Learner, Any]:
    settings = LearnerSettings(
        layout="packed", micro_batch_tokens=2048, gradient_share_every=0, threads=1, learning_rate=1e-9
    )
    policy, tokenizer = load_policy(ModelSettings(path=model))
    return Learner(policy, None, settings, temperature=1.0, ranks=ranks), tokenizer


def one(size: Size, learner: Learner, rendering: ChatRendering) -> dict[str, float]:
    """A step of this size: its measures."""
    settings = RolloutSettings(max_new_tokens_per_turn=REPLY, max_episode_tokens=2000, cohort_size=GROUP)
    engine: Any = TransformersEngine(learner.model, rendering.end_token_id)
    pool: Any = Talker(size)
    with clock() as rollout:
        played = collect_rollouts(engine, CollectionRequest(plans(size), rendering, pool, settings))
    sequences = sequences_of([len(r.token_ids) for r in played], learner.model.config.vocab_size)
    before = peak_mib(begin=True)
    with clock() as update:
        learner.update(sequences, [term()])
    return {
        "rollouts, s (processor)": rollout.cpu_s,
        "update, s (processor)": update.cpu_s,
        "update, MiB": peak_mib() - before,
    }


def rank_job(model: str, repetitions: int) -> None:
    """One process of a job: updates of a fixed batch; prints what each took."""
    torch.set_num_threads(1)
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ranks = ALONE
    if count > 1:
        distributed.init_process_group("gloo")
        ranks = LearnerRanks(rank, count, distributed.group.WORLD)
    learner, _ = make_learner(model, ranks)
    sequences = sequences_of(RANK_LENGTHS, learner.model.config.vocab_size)
    learner.update(sequences, [term()])
    before = peak_mib(begin=True)
    found = []
    for _ in range(repetitions):
        with clock() as spent:
            learner.update(sequences, [term()])
        found.append(spent.cpu_s)
    print(json.dumps({"cpu_s": found, "mib": peak_mib() - before}), flush=True)
    if count > 1:
        distributed.destroy_process_group()


def of_ranks(model: str, count: int, repetitions: int) -> list[dict[str, Any]]:
    """What every process of a job says."""
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "benchmarks.cost_growth", "--model", model, "--repetitions", str(repetitions)]
    processes = [
        subprocess.Popen(
            [*command, "--rank-job"], env=os.environ | shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(count)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"a job of {count} ranks failed: {[process.returncode for process in processes]}")
    return [json.loads(output.strip().splitlines()[-1]) for output in outputs]


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Of the power law through the points, by least squares of logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="policy directory")
    parser.add_argument("--repetitions", type=int, default=3, help="steps of each size (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder of the Parquet file (default: the documentation's)")
    parser.add_argument("--rank-job", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.rank_job:
        rank_job(args.model, args.repetitions)
        return
    torch.set_num_threads(1)
    learner, tokenizer = make_learner(args.model)
    rendering = ChatRendering(tokenizer)
    one(BASE, learner, rendering)  # warms up
    points: dict[tuple[str, str, int], dict[float, float]] = {}
    rows: list[Measurement] = []
    for repetition in range(args.repetitions):
        for name, values in VARIED.items():
            for value in values:
                for measure, found in one(replace(BASE, **{name: value}), learner, rendering).items():
                    points.setdefault((SHOWN[name], measure, repetition), {})[value] = found
    for count in (1, 2):
        said = of_ranks(args.model, count, args.repetitions)
        for repetition in range(args.repetitions):
            slowest = max(process["cpu_s"][repetition] for process in said)
            points.setdefault(("ranks", "update, s (processor)", repetition), {})[count] = slowest
        points.setdefault(("ranks", "update, MiB", 0), {})[count] = max(process["mib"] for process in said)
    for (case, measure, repetition), curve in points.items():
        for place, amount in curve.items():
            rows.append(Measurement(BENCHMARK, case, f"{place:g}", repetition, measure, amount))
        growth = exponent(list(curve), list(curve.values()))
        rows.append(Measurement(BENCHMARK, case, "exponent", repetition, f"{measure}, growth", growth))
    rows.sort(key=lambda row: (row.case, row.unit.removesuffix(", growth"), row.arm == "exponent"))
    print(table(rows))
    print("written:", write(rows, args.out) if args.out else write(rows))


if __name__ == "__main__":
    main()
