"""Shared by the selectors: seeded tie-breaks, round robin over environments, and the records of the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rised.methods.base import PromptGroup
from rised.methods.errors import MethodError
from rised.records.types import Selection

SCORE_DECIMALS = 12
"""Scores equal to this many decimals are ties: 1 success of 8 and 7 of 8 have one variance, but not in the last bit."""


def tie_break(group_count: int, step: int, seed: int) -> np.ndarray:
    """A rank for each group, shape (C,), a permutation that depends on (seed, step) only; lower wins a tie."""
    return np.random.default_rng([seed, step]).permutation(group_count)


def best(candidates: Sequence[int], scores: Sequence[float], ranks: np.ndarray) -> int:
    """The candidate with the highest score; among ties the one of the lowest rank."""
    return min(
        zip(candidates, scores, strict=True), key=lambda pair: (-round(pair[1], SCORE_DECIMALS), ranks[pair[0]])
    )[0]


def require(groups: Sequence[PromptGroup], count: int) -> None:
    """Refuse to select more groups than there are, or groups whose ids clash."""
    if not 0 <= count <= len(groups):
        raise MethodError(f"cannot select {count} of {len(groups)} candidate groups: roll out at least {count}")
    if len({group.group_id for group in groups}) < len(groups):
        raise MethodError("two candidate groups have the same group_id: ids must be unique within a step")


def round_robin(
    groups: Sequence[PromptGroup],
    count: int,
    step: int,
    choose: Callable[[list[int], list[int]], int],
    tiers: Sequence[Sequence[int]] | None = None,
) -> list[int]:
    """Indices of ``count`` groups, chosen one at a time, the environments taking turns.

    Environments are ordered by name and the first turn moves on by one each step, so that each environment gets
    count // E turns and the remainder rotates. An environment with nothing left passes its turn on, which keeps the
    count exact. ``choose(candidates, selected)`` picks from the environment's unselected candidates. ``tiers``: lists
    of group indices; a later list is touched only when all before it are used up.
    """
    environments = sorted({group.environment for group in groups})
    selected: list[int] = []
    turn = step
    for tier in tiers if tiers is not None else [range(len(groups))]:
        left = {e: [i for i in tier if groups[i].environment == e] for e in environments}
        while len(selected) < count and any(left.values()):
            environment = environments[turn % len(environments)]
            turn += 1
            if left[environment]:
                chosen = choose(list(left[environment]), list(selected))
                left[environment].remove(chosen)
                selected.append(chosen)
    return selected


def records(
    groups: Sequence[PromptGroup],
    order: Sequence[int],
    step: int,
    *,
    score: Sequence[float | None] | None = None,
    similarity: Sequence[float | None] | None = None,
    redundancy: Sequence[float | None] | None = None,
) -> list[Selection]:
    """The selection records of all candidates; ``order`` lists the selected indices in the order of choice."""
    position = {index: place for place, index in enumerate(order)}
    return [
        Selection(
            step=step,
            group_id=group.group_id,
            environment=group.environment,
            selected=index in position,
            order=position.get(index),
            similarity=None if similarity is None else similarity[index],
            redundancy=None if redundancy is None else redundancy[index],
            score=None if score is None else score[index],
        )
        for index, group in enumerate(groups)
    ]
