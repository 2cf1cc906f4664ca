"""What a method hands to the learner: sequences of stored tokens, and the terms of the loss.

The learner sees nothing else of a method. Notation of all losses, per policy token: ``current`` S = log-probability
under the policy being trained (with gradient), ``sampled`` O = under the policy that sampled the token, ``teacher`` T
and ``reference`` R (both without gradient), ``advantage`` A. All log-probabilities are natural, at the sampling
temperature. Tensors hold policy tokens only, one after the other (shape N): prompts, observations and padding never
enter, so no term needs a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from rised.methods.errors import MethodError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSequence:
    """One rollout as the learner trains on it.

    ``token_ids`` and ``policy_mask`` have length T, ``sampled_logprobs`` and ``advantages`` one entry for each of the n
    True values of the mask, in order. ``advantages`` None: no policy-gradient token at all. ``teacher_prefix_ids``
    None: no distillation token at all; otherwise the teacher scores ``teacher_prefix_ids + token_ids``. A sampled
    log-probability that is not finite, as engines may give, keeps its token out of the terms that read it.
    """

    group_id: str
    rollout_id: str
    environment: str
    token_ids: tuple[int, ...]
    policy_mask: tuple[bool, ...]
    sampled_logprobs: np.ndarray
    advantages: np.ndarray | None
    teacher_prefix_ids: tuple[int, ...] | None

    def __post_init__(self) -> None:
        count = sum(self.policy_mask)
        if len(self.policy_mask) != len(self.token_ids):
            raise MethodError(
                f"rollout {self.rollout_id}: policy_mask has {len(self.policy_mask)} entries, "
                f"token_ids {len(self.token_ids)}"
            )
        if self.policy_mask and self.policy_mask[0]:
            raise MethodError(f"rollout {self.rollout_id}: the first token cannot be the policy's, nothing predicts it")
        for name in ("sampled_logprobs", "advantages"):
            values = getattr(self, name)
            if values is not None and values.shape != (count,):
                raise MethodError(
                    f"rollout {self.rollout_id}: {name} has shape {values.shape}, the mask marks {count} policy tokens"
                )
        if self.advantages is not None and not np.isfinite(self.advantages).all():
            raise MethodError(f"rollout {self.rollout_id}: advantages holds NaN or inf; such a rollout is not valid")

    @property
    def policy_token_count(self) -> int:
        """n, the number of tokens that the policy sampled."""
        return len(self.sampled_logprobs)


@dataclass(frozen=True, slots=True)
class TokenStreams:
    """Per-token values of some policy tokens, each of shape (N,). A stream that the term does not need is None.

    ``gap``: T − S without gradient, both by the weights before the step; NaN for tokens without a teacher.
    """

    current: Tensor
    sampled: Tensor
    teacher: Tensor | None = None
    reference: Tensor | None = None
    advantage: Tensor | None = None
    gap: Tensor | None = None


class Need(StrEnum):
    """What a loss term needs beyond ``current`` and ``sampled``. It decides which sequences the term applies to."""

    ADVANTAGE = "advantage"
    """Sequences with advantages; one whose advantages are all 0 counts in the denominator and gives no gradient."""
    TEACHER = "teacher"
    """Sequences with a teacher prefix; costs one pass without gradient over them."""
    TEACHER_GAP = "teacher_gap"
    """No sequence less: those with a teacher prefix get ``gap``, at the cost of that pass; the others hold NaN."""
    REFERENCE = "reference"
    """Every sequence; costs one pass of the reference model."""


class Reduction(StrEnum):
    """How per-token losses become one number. Sequences without tokens count nowhere. (METHODS §2)"""

    TOKEN_MEAN = "token_mean"
    """Sum over tokens / number of tokens."""
    SEQUENCE_MEAN_TOKEN_MEAN = "sequence_mean_token_mean"
    """Mean over sequences of each one's token mean (original GRPO)."""
    SEQUENCE_MEAN_TOKEN_SUM = "sequence_mean_token_sum"
    """Mean over sequences of each one's token sum."""
    CONSTANT_LENGTH = "constant_length"
    """Sum over tokens / (constant length · number of sequences) (Dr.GRPO)."""
    MICRO_BATCH_TOKEN_MEAN = "micro_batch_token_mean"
    """Mean over parts of so many sequences, in the batch's order, of each part's token mean (ORSD, C.1)."""


TokenLoss = Callable[[TokenStreams], "Tensor"]
"""Streams of shape (N,) to losses of shape (N,), to be minimised."""

Diagnostics = Callable[[TokenStreams], "dict[str, Tensor]"]
"""Streams to named values of some of the tokens, shape (<= N,), whose means are logged; never part of the loss."""


def no_diagnostics(streams: TokenStreams) -> dict[str, Tensor]:
    """Nothing to log beside the loss."""
    return {}


@dataclass(frozen=True, slots=True)
class LossTerm:
    """One term: ``coefficient`` · reduction of ``token_loss`` over the tokens of the sequences it applies to.

    ``constant_length`` is the L of that reduction, ``micro_batch_sequences`` the sequences in a part of that one. Each
    diagnostic is logged as its mean over the tokens that it is given for.
    ``only_with_signal``: apply the term only to sequences to which another term gives a gradient. ``uses_sampled``:
    whether the loss reads O.
    """

    name: str
    coefficient: float
    token_loss: TokenLoss
    needs: frozenset[Need]
    reduction: Reduction = Reduction.TOKEN_MEAN
    constant_length: int | None = None
    only_with_signal: bool = False
    diagnostics: Diagnostics = no_diagnostics
    micro_batch_sequences: int | None = None
    uses_sampled: bool = True

    @property
    def reduction_size(self) -> int | None:
        """The number that the reduction needs, if it needs one."""
        by_sequences = self.reduction is Reduction.MICRO_BATCH_TOKEN_MEAN
        return self.micro_batch_sequences if by_sequences else self.constant_length

    def applies_to(self, sequence: TrainingSequence) -> bool:
        """Whether the sequence's tokens are tokens of this term."""
        if sequence.policy_token_count == 0:
            return False
        if Need.ADVANTAGE in self.needs and sequence.advantages is None:
            return False
        return not (Need.TEACHER in self.needs and sequence.teacher_prefix_ids is None)

    def usable_tokens(self, sequence: TrainingSequence, *scored: np.ndarray) -> np.ndarray:
        """Mask (n,) of the policy tokens for which O, where the loss reads it, and all of ``scored`` are finite."""
        usable = np.isfinite(sequence.sampled_logprobs) | (not self.uses_sampled)
        for values in scored:
            usable &= np.isfinite(values)
        return usable

    def moves(self, sequence: TrainingSequence) -> bool:
        """Whether the term can give the sequence a gradient: it applies, and not only with advantages of 0.

        A teacher's gap is not known before its pass and counts as one that differs from 0.
        """
        if not self.applies_to(sequence) or self.coefficient == 0.0:
            return False
        if Need.TEACHER_GAP in self.needs and sequence.teacher_prefix_ids is not None:
            return True
        return Need.ADVANTAGE not in self.needs or bool(np.any(sequence.advantages != 0.0))
