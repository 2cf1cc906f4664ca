"""Forward passes over stored sequences: the learner's precision and the teacher's prefix around ``models.scoring``.

Results come in the order of the sequences, one float32 tensor each, shape (n policy tokens,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rised.learner.errors import LearnerError
from rised.learner.settings import LearnerSettings
from rised.methods.streams import TrainingSequence
from rised.models.scoring import ScoringInputs, TokenScorer, lay_out, plan_micro_batches

Scorer = Callable[[ScoringInputs, float], Tensor]
"""Laid-out sequences and a temperature to log-probabilities (N,): a TokenScorer, or an engine around one."""


def token_scorer(model: PreTrainedModel, settings: LearnerSettings) -> TokenScorer:
    """The model as the settings want it scored."""
    return TokenScorer(model, chunk_tokens=settings.logits_chunk_tokens, recompute=settings.activation_checkpointing)


def scored(
    scorer: Scorer,
    sequences: Sequence[TrainingSequence],
    settings: LearnerSettings,
    temperature: float,
    device: torch.device,
    *,
    with_prefix: bool = False,
) -> list[Tensor]:
    """Log-probabilities in one forward pass over all the sequences, with gradient if enabled.

    ``with_prefix``: every sequence is preceded by its teacher prefix; the stored token ids stay as they are.
    """
    inputs = lay_out(
        [sequence.token_ids for sequence in sequences],
        [sequence.policy_mask for sequence in sequences],
        [_prefix(sequence) for sequence in sequences] if with_prefix else None,
        settings.layout,
        device,
    )
    with torch.autocast(device.type, torch.bfloat16, enabled=settings.autocast == "bfloat16"):
        return list(scorer(inputs, temperature).split(list(inputs.counts)))


def scored_without_gradient(
    scorer: Scorer,
    sequences: Sequence[TrainingSequence],
    settings: LearnerSettings,
    temperature: float,
    device: torch.device,
    *,
    with_prefix: bool = False,
    rounds: Callable[[int], int] = int,
) -> list[Tensor]:
    """As :func:`scored`, in micro-batches, without gradient.

    ``rounds``: number of this rank's passes -> number that all ranks make; the difference is passes over nothing.
    """
    lengths = [len(s.token_ids) + (len(_prefix(s)) if with_prefix else 0) for s in sequences]
    results: list[Tensor | None] = [None] * len(sequences)
    batches = plan_micro_batches(lengths, settings.micro_batch_tokens, settings.layout)
    idle = rounds(len(batches)) - len(batches)
    with torch.no_grad():
        for batch in batches:
            values = scored(
                scorer, [sequences[b] for b in batch], settings, temperature, device, with_prefix=with_prefix
            )
            for b, value in zip(batch, values, strict=True):
                results[b] = value
        for _ in range(idle):
            scored(scorer, [NOTHING], settings, temperature, device)
    return [value for value in results if value is not None]


def _prefix(sequence: TrainingSequence) -> tuple[int, ...]:
    if sequence.teacher_prefix_ids is None:
        raise LearnerError(f"rollout {sequence.rollout_id} has no teacher prefix, but was given to the teacher pass")
    return sequence.teacher_prefix_ids


NOTHING = TrainingSequence("", "", "", (0, 0), (False, True), np.zeros(1), None, None)
"""A sequence for a rank without work in a pass that all ranks have to make; its weight is 0."""
