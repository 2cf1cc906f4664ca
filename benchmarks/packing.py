"""What packing saves: the same update on padded and on packed sequences, alternated, for several spreads of lengths.

Random tokens of which a third counts as the policy's, trained on with one term (no reference, no teacher). Lengths:
those of one step's rollouts of a stored run (a compacted one will do), or drawn from a distribution. A value is the
seconds of an update, a ratio padded over packed in the same repetition: above 1 packing saves. There is no fused kernel
for packed rows on a CPU, so that what is saved is padding alone.

    python -m benchmarks.packing --run data/sample_results/laptop_grid/rised/seed-0 --model data/nano_policy
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.results import Measurement, against, clock, duration, table, write
from rised.learner.learner import Learner
from rised.learner.settings import LearnerSettings
from rised.learner.types import LossTerm, Need, TrainingSequence
from rised.methods.registry import build, piece_settings
from rised.models.loading import load_policy
from rised.models.scoring import Layout, padded_length, plan_micro_batches
from rised.models.settings import ModelSettings
from rised.records.shards import RunReader

BENCHMARK = "packing"
LAYOUTS: tuple[Layout, ...] = ("padded", "packed")


def distributions(count: int) -> Mapping[str, list[int]]:
    """Lengths of ``count`` sequences by how they spread."""
    rng = np.random.default_rng(0)
    skewed = np.clip(np.exp(rng.normal(np.log(150), 0.8, count)), 20, 1200)
    mixed = np.where(np.arange(count) % 5 == 0, 700, 70)
    return {
        "all of 256 tokens": [256] * count,
        "uniform, 40 to 400": rng.integers(40, 401, count).tolist(),
        "log-normal, median 150, up to 1,200": skewed.astype(int).tolist(),
        "four in five of 70, one of 700": mixed.tolist(),
    }


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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="run directory whose last step's lengths are a case")
    parser.add_argument("--model", required=True, help="policy directory")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096, help="tokens of a pass (default: %(default)s)")
    parser.add_argument(
        "--sequences", type=int, default=48, help="sequences of an update in the drawn cases (default: %(default)s)"
    )
    parser.add_argument("--repetitions", type=int, default=7, help="updates of either kind (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder of the Parquet file (default: the documentation's)")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases = dict(distributions(args.sequences))
    if args.run is not None:
        reader = RunReader(args.run)
        last = reader.scan("rollouts", ["token_count"], steps=[reader.steps()[-1]])
        cases = {"a step of the laptop's RISED": last["token_count"].to_pylist()} | cases
    policy = build("policy_loss", piece_settings("policy_loss", {"type": "clipped_surrogate"}), vocabulary=None)
    term = LossTerm("rl", 1.0, policy.token_loss, frozenset({Need.ADVANTAGE}))
    learners = {}
    for layout in LAYOUTS:
        settings = LearnerSettings(
            layout=layout, micro_batch_tokens=args.micro_batch_tokens, gradient_share_every=0, threads=1
        )
        learners[layout] = Learner(load_policy(ModelSettings(path=args.model))[0], None, settings, temperature=1.0)
    vocabulary = learners["padded"].model.config.vocab_size
    rows: list[Measurement] = []
    for name, lengths in cases.items():
        sequences = sequences_of(lengths, vocabulary)
        padding = {
            layout: passed_tokens(lengths, args.micro_batch_tokens, layout) / sum(lengths) - 1 for layout in LAYOUTS
        }
        case = f"{name} (padding {padding['padded']:.0%}, packed {padding['packed']:.0%})"
        for layout in LAYOUTS:
            learners[layout].update(sequences, [term])  # warms up
        for repetition in range(args.repetitions):
            for layout in LAYOUTS if repetition % 2 else LAYOUTS[::-1]:
                with clock() as spent:
                    learners[layout].update(sequences, [term])
                rows.append(duration(BENCHMARK, case, layout, repetition, spent.cpu_s, "processor"))
                rows.append(duration(BENCHMARK, case, layout, repetition, spent.wall_s))
    rows = against(rows, "packed")
    print(table(rows))
    print("written:", write(rows, args.out) if args.out else write(rows))


if __name__ == "__main__":
    main()
