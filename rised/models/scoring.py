"""Log-probabilities of stored tokens under a model: the learner's, the reference's and the teacher's pass.

Sequences stand in rows of their own, padded on the right to the longest (a causal model needs no mask then, and padding
never reaches a real token), or packed one after the other in a single row (``packing``). The output layer runs in
float32 at the policy's positions only. Nothing here knows why a token is scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rised.models.forward import hidden_states, refuse_foreign_ids
from rised.models.logprobs import LOGITS_CHUNK_TOKENS, TokenLogprobs
from rised.models.packing import recomputed_layers, segments_attention_in

LENGTH_MULTIPLE = 32
"""Lengths of rows are multiples of this: many different shapes slow CPU kernels down."""

Layout = Literal["padded", "packed"]


@dataclass(frozen=True, slots=True)
class ScoringInputs:
    """Sequences laid out for one forward pass, and which of their tokens are scored.

    ``ids_BT`` token ids; ``positions_BT`` and ``segment_lengths`` (packed only, then B = 1) positions and the tokens
    of each sequence. Scored token n is ``targets_N[n]``, predicted from place ``places_N[n]`` of row ``rows_N[n]``.
    ``counts``: scored tokens of each sequence, in order.
    """

    ids_BT: Tensor
    positions_BT: Tensor | None
    segment_lengths: tuple[int, ...] | None
    rows_N: Tensor
    places_N: Tensor
    targets_N: Tensor
    counts: tuple[int, ...]


class TokenScorer(nn.Module):
    """A policy and its output layer as one module from laid-out sequences to log-probabilities, float32 (N,).

    ``recompute``: with gradient, keep only the layers' inputs (activation checkpointing).
    """

    def __init__(
        self, model: PreTrainedModel, *, chunk_tokens: int = LOGITS_CHUNK_TOKENS, recompute: bool = False
    ) -> None:
        super().__init__()
        self.policy = model
        self.token_logprobs = TokenLogprobs(model.get_output_embeddings())
        self.chunk_tokens, self.recompute = chunk_tokens, recompute

    def forward(self, inputs: ScoringInputs, temperature: float) -> Tensor:
        """Log-probabilities of the scored tokens, sequence by sequence."""
        device = inputs.ids_BT.device
        if inputs.ids_BT.numel():
            refuse_foreign_ids(self.policy, int(inputs.ids_BT.max()))
        packed = inputs.segment_lengths is not None
        further = {"position_ids": inputs.positions_BT, "segment_lengths": inputs.segment_lengths} if packed else {}
        recompute = self.recompute and torch.is_grad_enabled()
        with (
            segments_attention_in(self.policy) if packed else nullcontext(),
            recomputed_layers(self.policy, packed) if recompute else nullcontext(),
        ):
            states_BTD = hidden_states(self.policy, input_ids=inputs.ids_BT, use_cache=False, **further)
        states_ND = states_BTD[inputs.rows_N.to(device), inputs.places_N.to(device)]
        found: Tensor = self.token_logprobs(states_ND, inputs.targets_N, temperature, self.chunk_tokens)
        return found


def plan_micro_batches(lengths: Sequence[int], micro_batch_tokens: int, layout: Layout = "padded") -> list[list[int]]:
    """Indices of sequences in groups of at most ``micro_batch_tokens`` tokens, padding included; deterministic.

    Padded: groups of similar length, longest first, ties in input order. Packed: the longest first into the first
    group that has room. A single sequence longer than the budget stands alone.
    """
    longest_first = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    if layout == "packed":
        room: list[int] = []
        for index in longest_first:
            place = next((p for p, left in enumerate(room) if left >= lengths[index]), None)
            if place is None:
                batches.append([])
                room.append(micro_batch_tokens // LENGTH_MULTIPLE * LENGTH_MULTIPLE)
                place = len(batches) - 1
            batches[place].append(index)
            room[place] -= lengths[index]
        return batches
    width = 0
    for index in longest_first:
        if not batches or width * (len(batches[-1]) + 1) > micro_batch_tokens:
            batches.append([])
            width = padded_length(lengths[index])
        batches[-1].append(index)
    return batches


def lay_out(
    ids: Sequence[Sequence[int]],
    masks: Sequence[Sequence[bool]],
    prefix_ids: Sequence[Sequence[int]] | None = None,
    layout: Layout = "padded",
    device: torch.device | str = "cpu",
) -> ScoringInputs:
    """One forward pass over all the sequences. ``masks[i][t]``: token ``ids[i][t]`` is scored; prefixes never are.

    Raises ValueError for a mask of another length than its sequence, or a scored token with nothing before it.
    """
    prefixes = prefix_ids if prefix_ids is not None else [()] * len(ids)
    counts, rows, places, targets, whole = [], [], [], [], []
    start = 0
    for row, (prefix, sequence, mask) in enumerate(zip(prefixes, ids, masks, strict=True)):
        if len(sequence) != len(mask):
            raise ValueError(f"sequence {row} has {len(sequence)} tokens and a mask of {len(mask)}")
        scored = [place for place, own in enumerate(mask) if own]
        if scored and scored[0] + len(prefix) == 0:
            raise ValueError(f"sequence {row}: its first token is the policy's and has nothing before it")
        whole.append([*prefix, *sequence])
        counts.append(len(scored))
        rows += [0 if layout == "packed" else row] * len(scored)
        places += [start + len(prefix) + place - 1 for place in scored]
        targets += [sequence[place] for place in scored]
        start += len(whole[-1]) if layout == "packed" else 0
    positions: Tensor | None = None
    segments: tuple[int, ...] | None = None
    if layout == "packed":
        segments = _segments([len(sequence) for sequence in whole])
        ids_BT = torch.zeros(1, sum(segments), dtype=torch.long)
        ids_BT[0, : sum(map(len, whole))] = torch.tensor([token for sequence in whole for token in sequence])
        positions = torch.cat([torch.arange(length) for length in segments]).unsqueeze(0).to(device)
    else:
        ids_BT = torch.zeros(len(whole), padded_length(max(map(len, whole), default=0)), dtype=torch.long)
        for row, sequence_ids in enumerate(whole):
            ids_BT[row, : len(sequence_ids)] = torch.tensor(sequence_ids)
    rows_N, places_N, targets_N = (
        torch.tensor(numbers, dtype=torch.long, device=device) for numbers in (rows, places, targets)
    )
    return ScoringInputs(ids_BT.to(device), positions, segments, rows_N, places_N, targets_N, tuple(counts))


def _segments(lengths: Sequence[int]) -> tuple[int, ...]:
    """Lengths of the packed sequences, and of what fills up the row behind them."""
    filling = padded_length(sum(lengths)) - sum(lengths)
    return tuple(length for length in (*lengths, filling) if length)


def micro_batch_logprobs(
    scorer: TokenScorer | PreTrainedModel,
    ids: Sequence[Sequence[int]],
    masks: Sequence[Sequence[bool]],
    temperature: float = 1.0,
    prefix_ids: Sequence[Sequence[int]] | None = None,
    layout: Layout = "padded",
) -> list[Tensor]:
    """Log-probabilities of the masked tokens of each sequence, in one forward pass (with gradient if enabled).

    ``masks[i][t]``: token ``ids[i][t]`` is the policy's. Entry i has one float32 value per True, in order, as in
    ``Rollout.logprobs``. ``prefix_ids[i]`` is put before the sequence (a teacher's hint) and never scored.
    """
    if temperature <= 0:
        raise ValueError(f"log-probabilities need a temperature above 0, got {temperature}")
    scorer = scorer if isinstance(scorer, TokenScorer) else TokenScorer(scorer)
    device = scorer.policy.device
    inputs = lay_out(ids, masks, prefix_ids, layout, device)
    if not sum(inputs.counts):
        return [torch.zeros(0, device=device) for _ in ids]
    return list(scorer(inputs, temperature).split(list(inputs.counts)))


def sequence_logprobs(
    model: PreTrainedModel,
    ids_list: Sequence[Sequence[int]],
    masks: Sequence[Sequence[bool]],
    temperature: float = 1.0,
    prefix_ids: Sequence[Sequence[int]] | None = None,
    micro_batch_tokens: int = 4096,
    layout: Layout = "padded",
) -> list[Tensor]:
    """:func:`micro_batch_logprobs` over any number of sequences, in input order.

    With gradients enabled every graph is kept until the caller's backward pass; a learner that must bound its memory
    calls :func:`plan_micro_batches` and :func:`micro_batch_logprobs` itself.
    """
    scorer = TokenScorer(model)
    prefixes = prefix_ids if prefix_ids is not None else [()] * len(ids_list)
    lengths = [len(prefix) + len(ids) for prefix, ids in zip(prefixes, ids_list, strict=True)]
    results: list[Tensor | None] = [None] * len(ids_list)
    for batch in plan_micro_batches(lengths, micro_batch_tokens, layout):
        scored = micro_batch_logprobs(
            scorer,
            [ids_list[i] for i in batch],
            [masks[i] for i in batch],
            temperature,
            [prefixes[i] for i in batch],
            layout,
        )
        for index, logprobs in zip(batch, scored, strict=True):
            results[index] = logprobs
    return [logprobs for logprobs in results if logprobs is not None]


def padded_length(length: int) -> int:
    """The length that a row of so many tokens has."""
    return -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
