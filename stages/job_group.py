"""The group of all processes of a job: objects and tensors from the first one to the others, and back.

Torch's default group is the learners' alone, since DeepSpeed works on that and on nothing else. This one stands beside
it, with gloo for what lies in host memory and NCCL for what lies on GPUs.
"""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor

Value = TypeVar("Value")


class JobGroup:
    """``store``: where the processes meet; the group lives as long as it. Every call is made by all of them alike."""

    def __init__(self, store: distributed.Store, rank: int, size: int, timeout: datetime.timedelta) -> None:
        self.rank, self.size = rank, size
        prefix = distributed.PrefixStore("job", store)
        self._host: Any = distributed.ProcessGroupGloo(prefix, rank, size, timeout)
        self._devices: Any = None
        if torch.cuda.is_available():
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = timeout
            on_gpus = distributed.PrefixStore("job-gpu", store)
            self._devices = distributed.ProcessGroupNCCL(on_gpus, rank, size, options)

    def share(self, value: Value | None) -> Value:
        """The first process's value, on every process."""
        sent = _packed(value) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([sent.numel()])
        self._broadcast(self._host, length)
        if self.rank:
            sent = torch.empty(int(length), dtype=torch.uint8)
        self._broadcast(self._host, sent)
        found: Value = _unpacked(sent)
        return found

    def gather(self, value: Value) -> list[Value]:
        """Every process's value in rank order on the first one; on the others only their own."""
        mine = _packed(value)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._host.allgather([lengths], [torch.tensor([mine.numel()])]).wait()
        if self.rank:
            self._host.send([mine], 0, self.rank).wait()
            return [value]
        found = [value]
        for rank, length in enumerate(lengths[1:], 1):
            theirs = torch.empty(int(length), dtype=torch.uint8)
            self._host.recv([theirs], rank, rank).wait()
            found.append(_unpacked(theirs))
        return found

    def share_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors of every process by the first one's, wherever they lie.

        They travel between GPUs where all processes have one, which has not been run on a GPU.
        """
        for tensor in tensors:
            if self._devices is None:
                self._broadcast(self._host, tensor)
                continue
            staged = tensor if tensor.is_cuda else tensor.cuda()
            self._broadcast(self._devices, staged)
            if staged is not tensor:
                tensor.copy_(staged)

    def _broadcast(self, group: Any, tensor: Tensor) -> None:
        options = distributed.BroadcastOptions()
        options.rootRank = 0
        group.broadcast([tensor], options).wait()


def _packed(value: object) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value, pickle.HIGHEST_PROTOCOL)), dtype=torch.uint8)


def _unpacked(sent: Tensor) -> Any:
    return pickle.loads(sent.numpy().tobytes())  # of a process of this very job
