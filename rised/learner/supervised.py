"""Supervised next-token training on weighted sequences: the warm start of the nano policy.

Policy tokens weigh 1, observation tokens a fraction (predicting observations teaches copying at no cost), padding 0.
Reinforcement learning is not here; it has its own learner.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BUCKET = 32
"""Lengths are padded to a multiple of this: kernels are planned once per shape, and varying shapes are slow."""


@dataclass(frozen=True, slots=True)
class SupervisedExample:
    """One sequence: ``token_ids`` and the loss weight of each token, both of length T; the first is never predicted."""

    token_ids: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True)
class SupervisedProgress:
    """State after an optimiser step; ``loss`` is the weighted mean in nats per token."""

    step: int
    tokens: int
    total_tokens: int
    loss: float


@dataclass(frozen=True, slots=True)
class SupervisedPlan:
    """Optimisation settings; see :class:`rised.models.nano.settings.WarmStartSettings` for units."""

    learning_rate: float
    warm_up_steps: int
    batch_tokens: int
    total_tokens: int
    weight_decay: float
    seed: int


def train_supervised(
    model: PreTrainedModel,
    examples: Sequence[SupervisedExample],
    plan: SupervisedPlan,
    on_progress: Callable[[SupervisedProgress], None] | None = None,
) -> SupervisedProgress:
    """Train ``model`` in place until ``plan.total_tokens`` real tokens were seen; deterministic on CPU.

    Raises ValueError if there is nothing to train on.
    """
    if not examples:
        raise ValueError("no examples to train on")
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": plan.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=plan.learning_rate,
        betas=(0.9, 0.98),
        fused=True,
    )
    shuffler = random.Random(plan.seed)
    step = seen = 0
    progress = SupervisedProgress(0, 0, plan.total_tokens, math.nan)
    model.train()
    while seen < plan.total_tokens:
        for batch in _batches(examples, plan.batch_tokens, shuffler):
            done = seen / plan.total_tokens
            if done >= 1:
                break
            rate = plan.learning_rate * min(1.0, (step + 1) / max(1, plan.warm_up_steps))
            rate *= 0.1 + 0.45 * (1 + math.cos(math.pi * done))
            for group in optimiser.param_groups:
                group["lr"] = rate
            loss = weighted_loss(model, batch)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            step += 1
            seen += sum(len(example.token_ids) for example in batch)
            progress = SupervisedProgress(step, seen, plan.total_tokens, float(loss.detach()))
            if on_progress is not None:
                on_progress(progress)
    model.eval()
    return progress


def weighted_loss(model: PreTrainedModel, batch: Sequence[SupervisedExample]) -> torch.Tensor:
    """Weighted mean cross-entropy of the batch in nats (scalar, with gradient). Right padding is causal-safe."""
    width = _padded(max(len(example.token_ids) for example in batch)) + 1
    ids_BT = torch.zeros(len(batch), width, dtype=torch.long)
    weights_BT = torch.zeros(len(batch), width)
    for row, example in enumerate(batch):
        ids_BT[row, : len(example.token_ids)] = torch.tensor(example.token_ids)
        weights_BT[row, : len(example.weights)] = torch.tensor(example.weights)
    hidden_BTD = model.base_model(input_ids=ids_BT[:, :-1], use_cache=False).last_hidden_state
    weights_N = weights_BT[:, 1:].reshape(-1)
    kept = weights_N.nonzero()[:, 0]
    logits = model.get_output_embeddings()(hidden_BTD.reshape(-1, hidden_BTD.shape[-1])[kept]).float()
    token_loss = F.cross_entropy(logits, ids_BT[:, 1:].reshape(-1)[kept], reduction="none")
    return (token_loss * weights_N[kept]).sum() / weights_N[kept].sum()


def _padded(length: int) -> int:
    return math.ceil(length / BUCKET) * BUCKET


def _batches(
    examples: Sequence[SupervisedExample], batch_tokens: int, shuffler: random.Random
) -> list[list[SupervisedExample]]:
    """One epoch in random order, batches of one length bucket each; incomplete batches are kept."""
    order = list(examples)
    shuffler.shuffle(order)
    buckets: dict[int, list[SupervisedExample]] = {}
    batches = []
    for example in order:
        length = _padded(len(example.token_ids))
        bucket = buckets.setdefault(length, [])
        bucket.append(example)
        if len(bucket) >= max(1, batch_tokens // length):
            batches.append(bucket)
            buckets[length] = []
    batches.extend(bucket for bucket in buckets.values() if bucket)
    shuffler.shuffle(batches)
    return batches
