"""What packing saves: the same update on padded and on packed sequences, alternated.

Takes the lengths of one step's rollouts from a stored run (a compacted one will do), fills them with random tokens, of
which a third counts as the policy's, and trains on them with one term (no reference, no teacher). Prints seconds of an
update, tokens passed with padding, and the ratio of each pair of updates; writes the pairs as Parquet if asked.

    python -m benchmarks.packing --run data/sample_results/laptop_grid/rised/seed-0 --model data/nano_policy
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rised.learner.learner import Learner
from rised.learner.settings import LearnerSettings
from rised.learner.types import LossTerm, Need, TrainingSequence
from rised.methods.registry import build, piece_settings
from rised.models.loading import load_policy
from rised.models.scoring import Layout, padded_length, plan_micro_batches
from rised.models.settings import ModelSettings
from rised.records.shards import RunReader

LAYOUTS: tuple[Layout, ...] = ("padded", "packed")


def sequences_of(lengths: Sequence[int], vocabulary: int) -> list[TrainingSequence]:
    """Random sequences, the advantages 1 and -1 in turn."""
    rng = np.random.default_rng(0)
    found = []
    for place, length in enumerate(lengths):
        mask = tuple(token % 3 == 2 for token in range(length))
        count = sum(mask)
        ids = tuple(int(token) for token in rng.integers(vocabulary, size=length))
        advantages = np.full(count, 1.0 if place % 2 else -1.0)
        found.append(TrainingSequence("", str(place), "", ids, mask, np.full(count, -1.0), advantages, None))
    return found


def passed_tokens(lengths: Sequence[int], budget: int, layout: Layout) -> int:
    """Tokens of all passes of an update, padding included."""
    batches = plan_micro_batches(lengths, budget, layout)
    if layout == "packed":
        return sum(padded_length(sum(lengths[i] for i in batch)) for batch in batches)
    return sum(len(batch) * padded_length(max(lengths[i] for i in batch)) for batch in batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="run directory")
    parser.add_argument("--model", required=True, help="policy directory")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096, help="tokens of a pass")
    parser.add_argument("--pairs", type=int, default=5, help="updates of either kind")
    parser.add_argument("--out", type=Path, help="Parquet file of the pairs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    reader = RunReader(args.run)
    lengths = reader.scan("rollouts", ["token_count"], steps=[reader.steps()[-1]])["token_count"].to_pylist()
    policy = build("policy_loss", piece_settings("policy_loss", {"type": "clipped_surrogate"}), vocabulary=None)
    term = LossTerm("rl", 1.0, policy.token_loss, frozenset({Need.ADVANTAGE}))
    learners = {}
    sequences: list[TrainingSequence] = []
    for layout in LAYOUTS:
        settings = LearnerSettings(
            layout=layout, micro_batch_tokens=args.micro_batch_tokens, gradient_share_every=0, threads=1
        )
        model = load_policy(ModelSettings(path=args.model))[0]
        sequences = sequences or sequences_of(lengths, model.config.vocab_size)
        learners[layout] = Learner(model, None, settings, temperature=1.0)
        learners[layout].update(sequences, [term])  # warms up
    rows = []
    for pair in range(args.pairs):
        for layout in LAYOUTS if pair % 2 else LAYOUTS[::-1]:
            started, used = time.perf_counter(), time.process_time()
            learners[layout].update(sequences, [term])
            seconds, cpu_s = time.perf_counter() - started, time.process_time() - used
            rows.append({"pair": pair, "layout": layout, "seconds": seconds, "cpu_s": cpu_s})
    print(f"{len(sequences)} sequences of {min(lengths)} to {max(lengths)} tokens, {sum(lengths):,} in all")
    for layout in LAYOUTS:
        passed = passed_tokens(lengths, args.micro_batch_tokens, layout)
        cpu = statistics.median(row["cpu_s"] for row in rows if row["layout"] == layout)
        print(f"{layout}: {passed:,} tokens passed ({passed / sum(lengths) - 1:.0%} padding), {cpu:.2f} s CPU")
    for clock in ("seconds", "cpu_s"):
        ratios = [
            next(r[clock] for r in rows if r["pair"] == pair and r["layout"] == "padded")
            / next(r[clock] for r in rows if r["pair"] == pair and r["layout"] == "packed")
            for pair in range(args.pairs)
        ]
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        print(f"padded / packed by {clock}: median {middle:.2f} ({low:.2f} to {high:.2f})")
    if args.out is not None:
        pq.write_table(pa.Table.from_pylist(rows), args.out)


if __name__ == "__main__":
    main()
