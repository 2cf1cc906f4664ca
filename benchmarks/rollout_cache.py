"""How much one key/value cache per episode saves: the episode loop against generating each turn from its whole prefix.

The same policy, the same recorded episodes. The loop plays validation tasks; then `generate` of transformers produces
replies of the same lengths from the same prefixes, turn by turn, as trainers do that render the history anew. Prints
generated tokens per second of both, and their ratio. Environment time is part of the loop's.

    python -m benchmarks.rollout_cache --config configs/experiments/quickstart.yaml \\
        --tasks results/quickstart/tasks.parquet
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from rised.models.engine import TransformersEngine
from rised.models.loading import load_policy
from rised.models.rendering import ChatRendering
from rised.records.types import Rollout
from rised.rollouts.episodes import CollectionRequest, collect_rollouts
from stages.loop import VALIDATION, validation_plans, validation_rollout
from stages.setup import load_experiment, open_pool, panel, read_tasks


@torch.no_grad()
def regenerate(model: PreTrainedModel, rollouts: Sequence[Rollout], pad_id: int, end_id: int) -> tuple[int, float]:
    """Generate every turn of every rollout again from its prefix, a batch per turn; tokens and seconds."""
    tokens, started = 0, time.perf_counter()
    for index in range(max(len(r.turns) for r in rollouts)):
        batch = [r for r in rollouts if len(r.turns) > index]
        prefixes = [r.token_ids[: r.turns[index].action_start] for r in batch]
        length = max(r.turns[index].action_end - r.turns[index].action_start for r in batch)
        width = max(map(len, prefixes))
        ids_BT = torch.full((len(batch), width), pad_id)
        mask_BT = torch.zeros((len(batch), width), dtype=torch.long)
        for row, prefix in enumerate(prefixes):
            ids_BT[row, width - len(prefix) :] = torch.tensor(prefix)
            mask_BT[row, width - len(prefix) :] = 1
        model.generate(  # type: ignore[operator]  # a generating model, of which transformers has no type
            input_ids=ids_BT,
            attention_mask=mask_BT,
            max_new_tokens=length,
            min_new_tokens=length,
            do_sample=True,
            pad_token_id=pad_id,
            eos_token_id=end_id,
        )
        tokens += sum(r.turns[index].action_end - r.turns[index].action_start for r in batch)
    return tokens, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="experiment file")
    parser.add_argument("--tasks", type=Path, required=True, help="tasks.parquet of the experiment")
    parser.add_argument("--episodes", type=int, default=32, help="episodes per environment (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = load_experiment(args.config)
    tasks = read_tasks(args.tasks)
    model, tokenizer = load_policy(config.model)
    rendering = ChatRendering(tokenizer)
    engine = TransformersEngine(model, rendering.end_token_id)
    with open_pool(config) as pool:
        for name in config.environments:
            plans = validation_plans(config, {name: panel(tasks, name, VALIDATION)[: args.episodes]}, 0, "benchmark")
            request = CollectionRequest(plans, rendering, pool, validation_rollout(config))
            timings = request.timings
            rollouts = collect_rollouts(engine, request)
            loop = timings.tokens_generated / timings.wall_s
            tokens, seconds = regenerate(model, rollouts, tokenizer.pad_token_id, rendering.end_token_id)
            share = timings.environment_s / timings.wall_s
            print(
                f"{name}: loop {loop:,.0f} tokens/s (environment {share:.0%} of it), "
                f"from whole prefixes {tokens / seconds:,.0f} tokens/s, ratio {loop / (tokens / seconds):.2f}"
            )


if __name__ == "__main__":
    main()
