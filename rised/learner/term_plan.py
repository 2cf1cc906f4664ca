"""Which tokens of which sequences each term of an update is made of, with which weights, and their streams.

The same for plain torch and DeepSpeed, packed and padded passes. Nothing here runs a model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rised.learner.ranks import LearnerRanks
from rised.learner.reductions import Totals, token_weights
from rised.learner.types import LossTerm, Need, TokenStreams, TrainingSequence

NONFINITE_WARNING = 1000
"""A term warns where more than one in this many of its tokens has a log-probability that is not finite."""


@dataclass(slots=True)
class Plan:
    """Which sequences pass through the actor, and with which token weights; indices count the batch's sequences."""

    trained: list[int]
    applies: dict[str, list[bool]]
    """term -> whether it applies to each sequence."""
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    """term -> weight of a token of each sequence, coefficient included, shape (B,); 0 where the term does not apply."""
    usable: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    """Term and sequence -> mask of its policy tokens, where a log-probability that the term needs is not finite."""
    nonfinite: dict[str, int] = field(default_factory=dict)
    """term -> policy tokens that it leaves out for that, on all ranks."""
    tokens: dict[str, int] = field(default_factory=dict)
    """term -> policy tokens that it is made of, on all ranks."""
    reference: dict[int, Tensor] = field(default_factory=dict)
    teacher: dict[int, Tensor] = field(default_factory=dict)


def make_plan(sequences: Sequence[TrainingSequence], terms: Sequence[LossTerm]) -> Plan:
    """Where each term applies, and the sequences to which one gives a gradient; the weights come later."""
    signal = [any(t.moves(s) for t in terms if not t.only_with_signal) for s in sequences]
    applies = {}
    moved = [False] * len(sequences)
    for term in terms:
        applies[term.name] = [
            term.applies_to(s) and (has_signal or not term.only_with_signal)
            for s, has_signal in zip(sequences, signal, strict=True)
        ]
        moved = [m or (a and term.moves(s)) for m, a, s in zip(moved, applies[term.name], sequences, strict=True)]
    return Plan([b for b, m in enumerate(moved) if m], applies)


def weigh(
    sequences: Sequence[TrainingSequence],
    terms: Sequence[LossTerm],
    plan: Plan,
    mine: Sequence[int],
    ranks: LearnerRanks,
) -> None:
    """Put the token weights into the plan. All ranks call it, each with the sequences that it scored (``mine``).

    A token for which a log-probability that the term needs is not finite is none of the term's: it has no loss there
    and counts in no denominator. If that leaves no token at all, no sequence is trained on.
    """
    trained = set(plan.trained)
    own = [b for b in range(len(sequences)) if b in set(mine) or b not in trained]
    for term in terms:
        for b in (b for b in own if plan.applies[term.name][b]):
            mask = term.usable_tokens(sequences[b], *_scored(term, b, plan))
            if not mask.all():
                plan.usable[term.name, b] = mask
    found = ranks.gather({place: int((~mask).sum()) for place, mask in plan.usable.items()})
    dropped = {place: count for part in found for place, count in part.items()}
    for term in terms:
        counts = [
            s.policy_token_count - dropped.get((term.name, b), 0) if plan.applies[term.name][b] else 0
            for b, s in enumerate(sequences)
        ]
        plan.weights[term.name] = term.coefficient * token_weights(
            term.reduction, counts, Totals.of(counts), term.reduction_size
        )
        plan.tokens[term.name] = sum(counts)
        plan.nonfinite[term.name] = sum(count for (name, _), count in dropped.items() if name == term.name)
    if not any(plan.tokens.values()):
        plan.trained = []


def warn_of_nonfinite(plan: Plan, update: int) -> None:
    """Print one line for each term that leaves out more than one token in ``NONFINITE_WARNING``."""
    for name, lost in plan.nonfinite.items():
        whole = lost + plan.tokens[name]
        if lost * NONFINITE_WARNING > whole:
            print(
                f"warning: update {update}: {lost:,} of {whole:,} tokens have a log-probability that is not finite and "
                f"are left out of the loss {name!r}. Look at the engine that sampled them, its precision and the "
                "temperature; the rollouts keep the values as they came",
                file=sys.stderr,
                flush=True,
            )


def term_losses(
    sequences: Sequence[TrainingSequence],
    batch: Sequence[int],
    current: dict[int, Tensor],
    terms: Sequence[LossTerm],
    plan: Plan,
) -> Iterator[tuple[LossTerm, Tensor, TokenStreams]]:
    """Each term that applies to a sequence of the micro-batch, its loss there, and the streams it is made of."""
    for term in terms:
        members = [b for b in batch if plan.weights[term.name][b] > 0]
        if members:
            streams = _streams(term, sequences, members, current, plan)
            parts = [torch.full_like(current[b], float(plan.weights[term.name][b])) for b in members]
            weights = _usable(term, members, parts, plan)
            yield term, (weights * term.token_loss(streams)).sum(), streams


def as_tensor(values: np.ndarray, like: Tensor) -> Tensor:
    """float32 on the device of ``like``."""
    return torch.as_tensor(np.array(values), dtype=torch.float32, device=like.device)


def _scored(term: LossTerm, b: int, plan: Plan) -> list[np.ndarray]:
    """What the passes without gradient gave for the tokens of a sequence, as far as the term needs it."""
    passes = ((Need.TEACHER, plan.teacher), (Need.REFERENCE, plan.reference))
    return [values[b].cpu().numpy() for need, values in passes if need in term.needs and b in values]


def _usable(term: LossTerm, members: Sequence[int], values: Sequence[Tensor], plan: Plan) -> Tensor:
    """The values of the members' usable tokens, one sequence after the other.

    They are chosen before the loss is computed: the gradient of 0 · inf is NaN.
    """
    masks = [plan.usable.get((term.name, b)) for b in members]
    return torch.cat(
        [v if m is None else v[torch.as_tensor(m, device=v.device)] for m, v in zip(masks, values, strict=True)]
    )


def _streams(
    term: LossTerm,
    sequences: Sequence[TrainingSequence],
    members: Sequence[int],
    current: dict[int, Tensor],
    plan: Plan,
) -> TokenStreams:
    """The streams of one micro-batch that a term asks for, policy tokens of ``members`` one after the other."""
    like = current[members[0]]

    def stream(values: Sequence[Tensor]) -> Tensor:
        return _usable(term, members, values, plan)

    advantages = [sequences[b].advantages for b in members]
    return TokenStreams(
        current=stream([current[b] for b in members]),
        sampled=stream([as_tensor(sequences[b].sampled_logprobs, like) for b in members]),
        teacher=stream([plan.teacher[b] for b in members]) if Need.TEACHER in term.needs else None,
        reference=stream([plan.reference[b] for b in members]) if Need.REFERENCE in term.needs else None,
        advantage=stream([as_tensor(a, like) for a in advantages if a is not None])
        if Need.ADVANTAGE in term.needs
        else None,
        gap=stream([_gap(current[b], plan.teacher.get(b)) for b in members])
        if Need.TEACHER_GAP in term.needs
        else None,
    )


def _gap(current: Tensor, teacher: Tensor | None) -> Tensor:
    """T − S of one sequence; one optimiser step a batch makes S that of the weights before it."""
    return torch.full_like(current.detach(), float("nan")) if teacher is None else teacher - current.detach()
