"""Forward passes over stored sequences: the learner's precision and the teacher's prefix around ``models.scoring``.

Results come in the order of the sequences, one float32 tensor each, shape (n policy tokens,).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rised.learner.errors import LearnerError
from rised.learner.settings import LearnerSettings
from rised.methods.streams import TrainingSequence
from rised.models.scoring import micro_batch_logprobs, plan_micro_batches


def scored(
    model: PreTrainedModel,
    sequences: Sequence[TrainingSequence],
    settings: LearnerSettings,
    temperature: float,
    *,
    with_prefix: bool = False,
) -> list[Tensor]:
    """Log-probabilities in one forward pass over all the sequences, with gradient if enabled.

    ``with_prefix``: every sequence is preceded by its teacher prefix; the stored token ids stay as they are.
    """
    with torch.autocast(model.device.type, torch.bfloat16, enabled=settings.autocast == "bfloat16"):
        return micro_batch_logprobs(
            model,
            [sequence.token_ids for sequence in sequences],
            [sequence.policy_mask for sequence in sequences],
            temperature,
            prefix_ids=[_prefix(sequence) for sequence in sequences] if with_prefix else None,
        )


def scored_without_gradient(
    model: PreTrainedModel,
    sequences: Sequence[TrainingSequence],
    settings: LearnerSettings,
    temperature: float,
    *,
    with_prefix: bool = False,
) -> list[Tensor]:
    """As :func:`scored`, in micro-batches, without gradient."""
    lengths = [len(s.token_ids) + (len(_prefix(s)) if with_prefix else 0) for s in sequences]
    results: list[Tensor | None] = [None] * len(sequences)
    with torch.no_grad():
        for batch in plan_micro_batches(lengths, settings.micro_batch_tokens):
            values = scored(model, [sequences[b] for b in batch], settings, temperature, with_prefix=with_prefix)
            for b, value in zip(batch, values, strict=True):
                results[b] = value
    return [value for value in results if value is not None]


def _prefix(sequence: TrainingSequence) -> tuple[int, ...]:
    if sequence.teacher_prefix_ids is None:
        raise LearnerError(f"rollout {sequence.rollout_id} has no teacher prefix, but was given to the teacher pass")
    return sequence.teacher_prefix_ids
