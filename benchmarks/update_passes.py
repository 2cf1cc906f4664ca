"""What the passes of an update cost against one forward pass over the same tokens.

Reads the last rollout shard of a run and trains on it once with every term switched on. Prints seconds, tokens per
second and ratios; the floor is 1 for passes without gradient and about 3 for the actor.

    python -m benchmarks.update_passes --run results/quickstart/rised/seed-0
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from rised.config.loader import load_text
from rised.experiment import RunConfig
from rised.learner.learner import Learner
from rised.learner.passes import scored_without_gradient, token_scorer
from rised.methods.composition import Method
from rised.models.loading import load_policy
from rised.models.rendering import ChatRendering
from rised.records.schemas import from_table
from rised.records.shards import RunReader
from rised.rubrics.judges import JUDGES
from rised.rubrics.vocabulary import load_vocabulary
from rised.rubrics.windows import TagWindow
from stages.loop import prompt_groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="run directory of a method with a teacher")
    args = parser.parse_args()
    reader = RunReader(args.run)
    config = load_text(RunConfig, reader.config_text(), str(args.run))
    step = reader.steps()[-1]
    rollouts = from_table(reader.scan("rollouts", steps=[step]), str(args.run))
    vocabulary = load_vocabulary(Path(config.rubrics.vocabulary))
    tags = JUDGES[config.rubrics.judge.type](config.rubrics.judge, vocabulary).tag(rollouts)
    model, tokenizer = load_policy(config.model)
    method = Method.from_settings(config.method, vocabulary)
    window = TagWindow(config.rubrics.window_steps)
    window.push(step, rollouts, tags)
    sequences = method.training_sequences(
        prompt_groups(rollouts, tags), window, ChatRendering(tokenizer), config.block_style
    )
    learner = Learner(model, load_policy(config.model)[0], config.learner, temperature=config.rollout.temperature)
    torch.set_num_threads(config.learner.threads or 1)
    learner.update(sequences, method.loss_terms())  # warms up; the first one also measures each term's gradient share
    started = time.perf_counter()
    scored_without_gradient(
        token_scorer(model, config.learner), sequences, config.learner, config.rollout.temperature, model.device
    )
    forward_s = time.perf_counter() - started
    report = learner.update(sequences, method.loss_terms())
    tokens = sum(len(s.token_ids) for s in sequences)
    print(f"{len(sequences)} sequences, {tokens:,} tokens")
    print(f"forward pass: {forward_s:.2f} s, {tokens / forward_s:,.0f} tokens/s")
    for name in ("reference", "teacher", "actor"):
        seconds = getattr(report.timings, f"{name}_s")
        print(f"{name}: {seconds:.2f} s, {tokens / max(seconds, 1e-9):,.0f} tokens/s, ratio {seconds / forward_s:.2f}")


if __name__ == "__main__":
    main()
