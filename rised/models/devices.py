"""Which device a process computes on."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch


def own_index(count: int, environment: Mapping[str, str]) -> int:
    """Number of the first of this process's GPUs among the ``count`` that it sees.

    Processes of a node that all see all of its GPUs share them out in the order of LOCAL_RANK; where each sees fewer
    than there are processes, they take turns.
    """
    rank, size = int(environment.get("LOCAL_RANK", "0")), int(environment.get("LOCAL_WORLD_SIZE", "1"))
    return rank * (count // size) if count >= size else rank % count


def own_device(environment: Mapping[str, str] = os.environ) -> torch.device:
    """This process's GPU, from then on torch's current one; the CPU where torch sees none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", own_index(torch.cuda.device_count(), environment))
    torch.cuda.set_device(device)
    return device
