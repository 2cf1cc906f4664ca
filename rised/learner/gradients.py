"""Gradients that no update follows: one loss term's, over chosen weights, and what makes two of them comparable.

The gradient signal of the correlation experiments compares environments by the mean policy gradient of one whole
transformer layer, or of all layers through a random projection. Here are the gradient, the choice of weights, the
projection and the cosine; whose rollouts they are taken of is the gradient stage's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rised.learner.errors import LearnerError
from rised.learner.passes import scored, token_scorer
from rised.learner.reductions import Totals, token_weights
from rised.learner.settings import LearnerSettings
from rised.learner.types import LossTerm, Need, TokenStreams, TrainingSequence
from rised.models.scoring import plan_micro_batches

BLOCK = 1 << 20
"""Components of a gradient that are projected at a time; bounds the memory for their buckets and signs."""

WeightGradients = Mapping[str, Tensor]
"""Parameter name -> float32 gradient of the parameter's shape."""


def layer_parameters(model: PreTrainedModel, layers: Sequence[int] | None = None) -> dict[str, Tensor]:
    """The weights of whole transformer layers by name (None: of all layers), without embeddings, last norm and head.

    Raises LearnerError for a layer that the model does not have, or a model whose layers are not found.
    """
    stack = getattr(model.base_model, "layers", None)
    if not isinstance(stack, torch.nn.ModuleList):
        raise LearnerError(
            f"{type(model).__name__} keeps its transformer layers elsewhere than in base_model.layers: "
            "the gradient signal needs them"
        )
    chosen = range(len(stack)) if layers is None else layers
    unknown = [layer for layer in chosen if not 0 <= layer < len(stack)]
    if unknown:
        raise LearnerError(f"gradient.layer is {unknown[0]}: the policy has layers 0 to {len(stack) - 1}")
    return {
        f"layers.{layer}.{name}": parameter for layer in chosen for name, parameter in stack[layer].named_parameters()
    }


def layer_count(model: PreTrainedModel) -> int:
    """Transformer layers of the model."""
    return 1 + max(int(name.split(".")[1]) for name in layer_parameters(model))


def term_gradient(
    model: PreTrainedModel,
    sequences: Sequence[TrainingSequence],
    term: LossTerm,
    parameters: Mapping[str, Tensor],
    settings: LearnerSettings,
    *,
    temperature: float,
) -> dict[str, Tensor]:
    """Gradient of a policy-gradient term at the model's weights, normalised over ``sequences`` as an update would.

    Zero where no sequence carries one. The model and its ``.grad`` fields are left as they are. Raises LearnerError for
    a term that needs a teacher or a reference.
    """
    if term.needs - {Need.ADVANTAGE}:
        raise LearnerError(f"the gradient of term {term.name!r} needs {', '.join(sorted(term.needs))}")
    usable = [term.usable_tokens(sequence) for sequence in sequences]
    counts = [int(u.sum()) if term.applies_to(s) else 0 for s, u in zip(sequences, usable, strict=True)]
    weights_B = token_weights(term.reduction, counts, Totals.of(counts), term.reduction_size)
    moved = [b for b, sequence in enumerate(sequences) if term.moves(sequence)]
    total = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    cut = plan_micro_batches([len(sequences[b].token_ids) for b in moved], settings.micro_batch_tokens, settings.layout)
    scorer = token_scorer(model, settings)
    for batch in cut:
        members = [moved[i] for i in batch]
        current = scored(scorer, [sequences[b] for b in members], settings, temperature, model.device)
        current = [
            values[torch.as_tensor(usable[b], device=values.device)] for b, values in zip(members, current, strict=True)
        ]
        streams = TokenStreams(
            current=torch.cat(current),
            sampled=_stack([sequences[b].sampled_logprobs[usable[b]] for b in members], current[0]),
            advantage=_stack([_advantages(sequences[b])[usable[b]] for b in members], current[0]),
        )
        weights_N = torch.cat(
            [torch.full_like(values, float(weights_B[b])) for b, values in zip(members, current, strict=True)]
        )
        loss = term.coefficient * (weights_N * term.token_loss(streams)).sum()
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                total[name] += gradient
    return total


def _advantages(sequence: TrainingSequence) -> np.ndarray:
    if sequence.advantages is None:
        raise LearnerError(f"rollout {sequence.rollout_id} has no advantages, but was given a policy gradient")
    return sequence.advantages


def _stack(values: Sequence[np.ndarray], like: Tensor) -> Tensor:
    return torch.as_tensor(np.concatenate(values), dtype=torch.float32, device=like.device)


def flat(gradient: WeightGradients) -> np.ndarray:
    """The gradient as one float64 vector, weights in their order."""
    parts = [tensor.detach().cpu().double().flatten().numpy() for tensor in gradient.values()]
    return np.concatenate(parts) if parts else np.zeros(0)


def count_sketch(gradient: WeightGradients, dimension: int, seed: int) -> np.ndarray:
    """A random projection of the whole gradient to ``dimension`` components, float64, shape (D,) [ours].

    Every component of the gradient is added, with a random sign, to one random component of the result (a count
    sketch, or feature hashing: Charikar et al. 2002, Weinberger et al. 2009, arXiv 0902.2206). As with a dense
    Gaussian projection inner products are kept in expectation, with a standard deviation of about
    ‖a‖·‖b‖·sqrt((1 + cos²)/D); but no matrix is ever made, and the cost is one pass over the gradient. Signs and
    places come from a Philox stream per weight, keyed by ``seed`` and the weight's name: they depend on neither the
    order of the weights nor the device.
    """
    if dimension < 1:
        raise LearnerError(f"a projection to {dimension} dimensions holds nothing: give at least 1")
    sketch_D = np.zeros(dimension)
    for name, tensor in gradient.items():
        values_P = tensor.detach().float().cpu().flatten().numpy()
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        stream = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
        for start in range(0, values_P.size, BLOCK):
            block_N = values_P[start : start + BLOCK].astype(np.float64)
            raw_N = stream.random_raw(block_N.size)
            signed_N = np.where(raw_N & np.uint64(1), -block_N, block_N)
            places_N = ((raw_N >> np.uint64(1)) % np.uint64(dimension)).astype(np.int64)
            sketch_D += np.bincount(places_N, weights=signed_N, minlength=dimension)
    return sketch_D


def cosine(first_P: np.ndarray, second_P: np.ndarray) -> float | None:
    """Cosine of two gradients; None where one of them is zero: it then has no direction."""
    norms = float(np.linalg.norm(first_P) * np.linalg.norm(second_P))
    return float(np.clip(np.dot(first_P, second_P) / norms, -1.0, 1.0)) if norms > 0.0 else None
