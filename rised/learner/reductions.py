"""From per-token losses to one number, as a weight for each token.

Every reduction of METHODS §2 is a weighted sum whose weights follow from token counts alone. Computed once for the
whole batch (over all ranks), they make the loss independent of how passes are cut and of the ranks: a mean of means
arises only where the reduction is one, over parts that the settings fix, and 0/0 never.
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
    reduction: Reduction, token_counts_B: Sequence[int], totals: Totals, size: int | None = None
) -> np.ndarray:
    """The weight of each token of sequence b, float64 of shape (B,): loss = Σ_b weight_b · Σ_t loss_bt.

    ``totals`` are those of all ranks. Sequences without tokens get 0 and count nowhere. ``size``: the length of
    ``constant_length`` in tokens, or the sequences in a part of ``micro_batch_token_mean``, which goes by the order of
    the sequences and therefore takes the whole batch. Raises LearnerError if such a reduction comes without its size.
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
    elif reduction is Reduction.CONSTANT_LENGTH:
        if not size:
            raise LearnerError("the reduction constant_length needs a constant_length >= 1 (in tokens)")
        weights_B = np.full(len(counts_B), 1.0 / (size * totals.sequences))
    else:
        weights_B = _weights_by_parts(counts_B, totals, size)
    return np.where(counts_B > 0, weights_B, 0.0)


def _weights_by_parts(counts_B: np.ndarray, totals: Totals, size: int | None) -> np.ndarray:
    """1 / (parts · tokens of the sequence's part), parts of ``size`` sequences that have tokens."""
    if not size:
        raise LearnerError("the reduction micro_batch_token_mean needs micro_batch_sequences >= 1")
    present = np.flatnonzero(counts_B > 0)
    if len(present) != totals.sequences:
        raise LearnerError(
            f"the reduction micro_batch_token_mean was given {len(present)} of the batch's {totals.sequences} "
            "sequences: its parts go by the order of all of them"
        )
    parts = [present[start : start + size] for start in range(0, len(present), size)]
    weights_B = np.zeros(len(counts_B))
    for part in parts:
        weights_B[part] = 1.0 / (len(parts) * counts_B[part].sum())
    return weights_B
