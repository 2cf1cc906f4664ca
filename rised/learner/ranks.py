"""The learner's processes: which micro-batches are whose, and the sums over all of them.

Every rank holds all weights and the whole optimiser, sees the whole batch and takes its part of the micro-batches; the
sum of the gradients makes all take the same step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor

Part = TypeVar("Part")

BUCKET_NUMBERS = 16_000_000
"""Numbers of one reduction: large enough for bandwidth, small enough beside the gradients themselves."""


@dataclass(frozen=True, slots=True)
class LearnerRanks:
    """One of ``count`` learner processes. ``group``: theirs among the job's processes; None for one alone."""

    index: int = 0
    count: int = 1
    group: Any = None

    def mine(self, parts: Sequence[Part], sizes: Sequence[int]) -> list[Part]:
        """This rank's share of ``parts``: the largest first to whoever has least, so that sums of sizes are even.

        Every part goes to exactly one rank, and the parts of a rank keep their order.
        """
        loads = [0] * self.count
        owners = [0] * len(parts)
        for place in sorted(range(len(parts)), key=lambda place: (-sizes[place], place)):
            owners[place] = loads.index(min(loads))
            loads[owners[place]] += sizes[place]
        return [part for part, owner in zip(parts, owners, strict=True) if owner == self.index]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks, equal to the last bit on all of them."""
        if self.count == 1:
            return
        bucket: list[Tensor] = []
        for place, tensor in enumerate(tensors):
            bucket.append(tensor)
            if place == len(tensors) - 1 or sum(t.numel() for t in bucket) >= BUCKET_NUMBERS:
                flat = torch.cat([t.reshape(-1) for t in bucket])
                distributed.all_reduce(flat, group=self.group)
                for target, found in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
                    target.copy_(found.view_as(target))
                bucket = []

    def gather(self, value: Part) -> list[Part]:
        """Every rank's value, in rank order."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, value, group=self.group)
        return found


ALONE = LearnerRanks()


def process_backend() -> str:
    """The process group's backend: gloo for what lies in host memory, NCCL beside it where there are GPUs."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
