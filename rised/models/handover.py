"""How new weights reach the servers that play with them.

Between :meth:`Handover.send`'s begin and its end the servers stand still: no reply mixes two versions. A server that is
started later begins with the latest directory and is brought up to date before it is asked.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from rised.models.checkpoints import save_checkpoint
from rised.models.errors import ModelError
from rised.models.vllm_replica import VllmReplica
from rised.models.vllm_wire import ReplicaFault

KEPT = 2
"""The current version, and the one before it, which a server may still be reading."""


class WeightFolder:
    """Versions of the weights as directories, each visible only once it is whole."""

    def __init__(self, root: Path, dtype: torch.dtype) -> None:
        self.root, self.dtype = root, dtype
        self._written = 0

    def write(self, model: PreTrainedModel, version: int) -> Path:
        """Write the model's weights and remove what is older than the version before. ModelError if that fails.

        A version that is written again (a run that goes on from an earlier step) gets a directory of its own.
        """
        name = f"{self._written:06d}-version-{version:06d}"
        aside, final = self.root / f".{name}", self.root / name
        try:
            save_checkpoint(aside, model.config, model.state_dict(), self.dtype)
            os.rename(aside, final)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise ModelError(
                f"the weights could not be handed over: {final} could not be written ({error}); make room, or set "
                "engine.weights_folder"
            ) from error
        self._written += 1
        for old in self.versions()[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def versions(self) -> list[Path]:
        """The whole ones, oldest first."""
        return sorted(path for path in self.root.glob("[0-9]*-version-*") if path.is_dir())


class Handover(Protocol):
    """A way from the learner's weights to the servers."""

    catches_up: bool
    """Whether a server that missed an update can be given the current weights between two updates."""
    boot: Path
    """The directory from which a server is started."""

    def prepare(self, model: PreTrainedModel, version: int) -> Path:
        """All that can be done while the servers play; returns what stands for these weights from now on."""
        ...

    async def send(self, replicas: Sequence[VllmReplica], weights: Path) -> dict[VllmReplica, ReplicaFault]:
        """Give paused servers the prepared weights; what went wrong, by server."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class FileHandover:
    """Through a directory that every server reads."""

    catches_up = True

    def __init__(self, folder: WeightFolder) -> None:
        self._folder = folder

    def prepare(self, model: PreTrainedModel, version: int) -> Path:
        self.boot = self._folder.write(model, version)
        return self.boot

    async def send(self, replicas: Sequence[VllmReplica], weights: Path) -> dict[VllmReplica, ReplicaFault]:
        found = await asyncio.gather(*(replica.reload(weights) for replica in replicas), return_exceptions=True)
        return faults_of(replicas, found)

    def close(self) -> None:
        pass


def faults_of(
    replicas: Sequence[VllmReplica], found: Sequence[BaseException | None]
) -> dict[VllmReplica, ReplicaFault]:
    """Which servers failed; raises whatever is no fault of a server."""
    faults = {}
    for replica, error in zip(replicas, found, strict=True):
        if isinstance(error, ReplicaFault):
            faults[replica] = error
        elif error is not None:
            raise error
    return faults
