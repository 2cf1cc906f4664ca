"""Log-probabilities of stored tokens under a model: the learner's, the reference's and the teacher's pass.

Sequences are grouped by length and padded on the right, so a causal model needs no mask and padding never reaches a
real token. The output head runs in float32 at the policy's positions only. Nothing here knows why a token is scored.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from rised.models.forward import hidden_states, logits_float32

LENGTH_MULTIPLE = 32
"""Padded lengths are multiples of this: many different shapes slow CPU kernels down."""
LOGITS_AT_ONCE = 8192


def plan_micro_batches(lengths: Sequence[int], micro_batch_tokens: int) -> list[list[int]]:
    """Indices of sequences grouped by similar length, each group at most ``micro_batch_tokens`` padded tokens.

    A single sequence longer than that stands alone. Longest first, ties in input order: deterministic.
    """
    batches: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not batches or width * (len(batches[-1]) + 1) > micro_batch_tokens:
            batches.append([])
            width = _padded(lengths[index])
        batches[-1].append(index)
    return batches


def micro_batch_logprobs(
    model: PreTrainedModel,
    ids: Sequence[Sequence[int]],
    masks: Sequence[Sequence[bool]],
    temperature: float = 1.0,
    prefix_ids: Sequence[Sequence[int]] | None = None,
) -> list[torch.Tensor]:
    """Log-probabilities of the masked tokens of each sequence, in one forward pass (with gradient if enabled).

    ``masks[i][t]``: token ``ids[i][t]`` is the policy's. Entry i has one float32 value per True, in order, as in
    ``Rollout.logprobs``. ``prefix_ids[i]`` is put before the sequence (a teacher's hint) and never scored.
    """
    if temperature <= 0:
        raise ValueError(f"log-probabilities need a temperature above 0, got {temperature}")
    prefixes = prefix_ids if prefix_ids is not None else [()] * len(ids)
    counts = []
    rows, places, targets = [], [], []
    whole = []
    for row, (prefix, sequence, mask) in enumerate(zip(prefixes, ids, masks, strict=True)):
        if len(sequence) != len(mask):
            raise ValueError(f"sequence {row} has {len(sequence)} tokens and a mask of {len(mask)}")
        scored = [place for place, own in enumerate(mask) if own]
        if scored and scored[0] + len(prefix) == 0:
            raise ValueError(f"sequence {row}: its first token is the policy's and has nothing before it")
        whole.append([*prefix, *sequence])
        counts.append(len(scored))
        rows += [row] * len(scored)
        places += [len(prefix) + place - 1 for place in scored]
        targets += [sequence[place] for place in scored]
    if not targets:
        return [torch.zeros(0, device=model.device) for _ in ids]
    width = _padded(max(map(len, whole)))
    ids_BT = torch.zeros(len(whole), width, dtype=torch.long)
    for row, sequence_ids in enumerate(whole):
        ids_BT[row, : len(sequence_ids)] = torch.tensor(sequence_ids)
    states_BTD = hidden_states(model, input_ids=ids_BT.to(model.device), use_cache=False)
    states_ND = states_BTD[torch.tensor(rows, device=model.device), torch.tensor(places, device=model.device)]
    head = model.get_output_embeddings()
    targets_N = torch.tensor(targets, device=model.device)
    logprobs_N = torch.cat(
        [
            _token_logprobs(logits_float32(head, states) / temperature, wanted)
            for states, wanted in zip(states_ND.split(LOGITS_AT_ONCE), targets_N.split(LOGITS_AT_ONCE), strict=True)
        ]
    )
    return list(logprobs_N.split(counts))


def sequence_logprobs(
    model: PreTrainedModel,
    ids_list: Sequence[Sequence[int]],
    masks: Sequence[Sequence[bool]],
    temperature: float = 1.0,
    prefix_ids: Sequence[Sequence[int]] | None = None,
    micro_batch_tokens: int = 4096,
) -> list[torch.Tensor]:
    """:func:`micro_batch_logprobs` over any number of sequences, in input order.

    With gradients enabled every graph is kept until the caller's backward pass; a learner that must bound its memory
    calls :func:`plan_micro_batches` and :func:`micro_batch_logprobs` itself.
    """
    prefixes = prefix_ids if prefix_ids is not None else [()] * len(ids_list)
    lengths = [len(prefix) + len(ids) for prefix, ids in zip(prefixes, ids_list, strict=True)]
    results: list[torch.Tensor | None] = [None] * len(ids_list)
    for batch in plan_micro_batches(lengths, micro_batch_tokens):
        scored = micro_batch_logprobs(
            model,
            [ids_list[i] for i in batch],
            [masks[i] for i in batch],
            temperature,
            [prefixes[i] for i in batch],
        )
        for index, logprobs in zip(batch, scored, strict=True):
            results[index] = logprobs
    return [logprobs for logprobs in results if logprobs is not None]


def _token_logprobs(logits_NV: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
    chosen = logits_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1)
    return chosen - logits_NV.logsumexp(dim=-1)


def _padded(length: int) -> int:
    return -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
