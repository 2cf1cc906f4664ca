"""From per-token losses to one number, as a weight for each token.

Every reduction of METHODS §2 is a weighted sum whose weights follow from token counts alone. Computed once for the
whole batch (over all ranks), they make the loss independent of how it is cut into micro-batches and ranks: a mean of
means never arises, and neither does 0/0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rised.learner.errors import LearnerError
from rised.methods.streams import Reduction


@dataclass(frozen=True, slots=True)
class Totals:
    """Tokens, and sequences with at least one token, of one term over the batch. Ranks add theirs up."""

    tokens: int
    sequences: int

    @classmethod
    def of(cls, token_counts_B: Sequence[int]) -> Totals:
        """Totals of one rank's sequences; a sequence without tokens counts nowhere."""
        return cls(sum(token_counts_B), sum(count > 0 for count in token_counts_B))

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.tokens + other.tokens, self.sequences + other.sequences)


def token_weights(
    reduction: Reduction, token_counts_B: Sequence[int], totals: Totals, constant_length: int | None = None
) -> np.ndarray:
    """The weight of each token of sequence b, float64 of shape (B,): loss = Σ_b weight_b · Σ_t loss_bt.

    ``totals`` are those of all ranks. Sequences without tokens get 0. Raises LearnerError if the reduction
    ``constant_length`` comes without a length.
    """
    counts_B = np.asarray(token_counts_B, dtype=np.float64)
    if totals.sequences == 0:
        return np.zeros(len(counts_B))
    if reduction is Reduction.TOKEN_MEAN:
        weights_B = np.full(len(counts_B), 1.0 / totals.tokens)
    elif reduction is Reduction.SEQUENCE_MEAN_TOKEN_MEAN:
        weights_B = 1.0 / (np.maximum(counts_B, 1.0) * totals.sequences)
    elif reduction is Reduction.SEQUENCE_MEAN_TOKEN_SUM:
        weights_B = np.full(len(counts_B), 1.0 / totals.sequences)
    else:
        if not constant_length:
            raise LearnerError("the reduction constant_length needs a constant_length >= 1 (in tokens)")
        weights_B = np.full(len(counts_B), 1.0 / (constant_length * totals.sequences))
    return np.where(counts_B > 0, weights_B, 0.0)
