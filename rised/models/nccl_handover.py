"""New weights from GPU to GPU, by vLLM's weight-transfer interface with NCCL.

NOT RUN ON A GPU: written against the interface of vLLM 0.32 (`vllm.distributed.weight_transfer`), whose names a test
checks; no transfer was made. Needs vLLM in the interpreter that trains, and a GPU beside those of the servers, since
NCCL takes no two ranks on one. A server that starts again gets weights at the next update only: what it missed is gone.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import PreTrainedModel

from rised.config import ConfigError
from rised.models.engine_settings import VllmEngineSettings
from rised.models.handover import WeightFolder
from rised.models.vllm_replica import VllmReplica
from rised.models.vllm_wire import ReplicaFault


class NcclHandover:
    """From the first update on; the servers start from a directory, as otherwise."""

    catches_up = False

    def __init__(self, folder: WeightFolder, settings: VllmEngineSettings) -> None:
        try:
            from vllm.distributed.weight_transfer import nccl_engine
        except ImportError as error:
            raise ConfigError(
                f"engine.handover is nccl, which needs vLLM in the interpreter that trains ({error}); install "
                "'rised[cluster]' there, or set engine.handover: files"
            ) from error
        self._library = nccl_engine
        self._folder, self._settings = folder, settings
        self._model: PreTrainedModel | None = None
        self._trainer: Any = None
        self._members: tuple[int | None, ...] = ()

    def prepare(self, model: PreTrainedModel, version: int) -> Path:
        self._model = model
        if not self._folder.versions():
            self.boot = self._folder.write(model, version)
            return self.boot
        return self._folder.root / f"from-memory-{time.monotonic_ns()}"

    async def send(self, replicas: Sequence[VllmReplica], weights: Path) -> dict[VllmReplica, ReplicaFault]:
        """A broadcast has no single failed member: if one fails, all are started again."""
        try:
            await asyncio.to_thread(self._send, replicas)
        except (httpx.HTTPError, RuntimeError, ValueError) as error:
            self.close()
            return dict.fromkeys(replicas, ReplicaFault(f"the transfer by NCCL failed: {error}"))
        for replica in replicas:
            replica.loaded = weights
        return {}

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.shutdown()
        self._trainer, self._members = None, ()

    def _send(self, replicas: Sequence[VllmReplica]) -> None:
        members = tuple(replica.pid for replica in replicas)
        if members != self._members:
            self.close()
            self._join(replicas)
            self._members = members
        self._trainer.send_weights()

    def _join(self, replicas: Sequence[VllmReplica]) -> None:
        """One NCCL group of this process (rank 0) and every worker of every server."""
        library, size = self._library, self._settings.tensor_parallel
        assert self._model is not None
        self._trainer = library.NCCLTrainerWeightTransferEngine.trainer_init(
            library.NCCLTrainerInitInfo(
                master_address="127.0.0.1",
                master_port=_free_port(),
                world_size=1 + size * len(replicas),
                rank=0,
            ),
            client=_Servers(replicas, size, self._settings.update_timeout_s),
            source=_StateDict(lambda: self._model, library.ParamMeta),
        )


class _Servers:
    """All servers as the one that vLLM's trainer talks to; each gets ranks of its own."""

    def __init__(self, replicas: Sequence[VllmReplica], ranks_each: int, timeout_s: float) -> None:
        self._ranks_each = ranks_each
        self._clients = [
            httpx.Client(
                transport=httpx.HTTPTransport(uds=str(replica.socket)), base_url="http://replica", timeout=timeout_s
            )
            for replica in replicas
        ]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        first = int(init_info["rank_offset"])
        self._post(
            "/init_weight_transfer_engine",
            [
                {"init_info": init_info | {"rank_offset": first + place * self._ranks_each}}
                for place in range(len(self._clients))
            ],
        )

    def start_weight_update(self) -> None:
        self._post("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._post("/update_weights", [{"update_info": update_info}] * len(self._clients))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """The version is named when the caches are reset, as after every other way."""
        self._post("/finish_weight_update")

    def _post(self, path: str, bodies: Sequence[dict[str, Any]] | None = None) -> None:
        bodies = bodies or [{}] * len(self._clients)
        with ThreadPoolExecutor(len(self._clients)) as threads:
            for answer in threads.map(lambda client, body: client.post(path, json=body), self._clients, bodies):
                answer.raise_for_status()


class _StateDict:
    """Every tensor of the policy, a tied output layer included, which servers keep apart."""

    def __init__(self, model: Callable[[], PreTrainedModel | None], meta: Any) -> None:
        self._of, self._meta = model, meta

    def metadata(self) -> list[Any]:
        return [self._meta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors().items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors().items():
            yield name, tensor.detach().to("cuda")

    def _tensors(self) -> dict[str, torch.Tensor]:
        model = self._of()
        assert model is not None
        return dict(model.state_dict())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
