"""New weights from GPU to GPU, by vLLM's weight-transfer interface with NCCL.

NOT RUN ON A GPU: written against the interface of vLLM 0.32 and 0.33 (`vllm.distributed.weight_transfer`). A test holds
the names, the routes and what is announced against what is sent; no transfer was made. Needs vLLM in the interpreter
that trains, and a GPU beside those of the servers, since NCCL takes no two ranks on one. A server that starts again
gets weights at the next update only: what it missed is gone.

A broadcast knows no failed member: the others wait in it for good. So each is made in a thread that may be left behind,
and ends when it fails anywhere or takes too long, by the abort of its communicator.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import PreTrainedModel

from rised.config import ConfigError
from rised.models.devices import own_device
from rised.models.engine_settings import VllmEngineSettings
from rised.models.handover import WeightFolder
from rised.models.vllm_replica import VllmReplica
from rised.models.vllm_wire import ReplicaFault, error_text


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
        if not torch.cuda.is_available():
            raise ConfigError("engine.handover is nccl, but torch sees no GPU here: set engine.handover: files")
        self._library = nccl_engine
        self._folder, self._settings = folder, settings
        self._model: PreTrainedModel | None = None
        self._trainer: Any = None
        self._servers: ServerGroup | None = None
        self._members: tuple[int | None, ...] = ()

    def prepare(self, model: PreTrainedModel, version: int) -> Path:
        self._model = model
        if not self._folder.versions():
            self.boot = self._folder.write(model, version)
            return self.boot
        return self._folder.root / f"from-memory-{time.monotonic_ns()}"

    async def send(self, replicas: Sequence[VllmReplica], weights: Path) -> dict[VllmReplica, ReplicaFault]:
        """A broadcast has no single failed member: if one fails, all are started again."""
        timeout_s = self._settings.update_timeout_s
        try:
            await asyncio.wait_for(asyncio.wrap_future(_in_thread(lambda: self._send(replicas))), timeout_s)
        except (httpx.HTTPError, RuntimeError, ValueError, OSError) as error:  # a TimeoutError is an OSError
            await asyncio.to_thread(self.close)
            why = str(error) or f"not done after {timeout_s:g} s (engine.update_timeout_s)"
            return dict.fromkeys(replicas, ReplicaFault(f"the transfer by NCCL failed: {why}"))
        for replica in replicas:
            replica.loaded = weights
        return {}

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.shutdown()
        if self._servers is not None:
            self._servers.close()
        self._trainer, self._servers, self._members = None, None, ()

    def _send(self, replicas: Sequence[VllmReplica]) -> None:
        device = own_device()  # a thread begins with the first GPU
        torch.cuda.synchronize(device)  # the weights are read on other streams than they were written on
        members = tuple(replica.pid for replica in replicas)
        if members != self._members:
            self.close()
            self._join(replicas, device)
            self._members = members
        self._trainer.send_weights()

    def _join(self, replicas: Sequence[VllmReplica], device: torch.device) -> None:
        """One NCCL group of this process (rank 0) and every worker of every server."""
        library, size = self._library, self._settings.tensor_parallel
        assert self._model is not None
        self._servers = servers = ServerGroup(
            [replica.socket for replica in replicas], size, self._settings.update_timeout_s
        )
        servers.leave()
        trainer = library.NCCLTrainerWeightTransferEngine.trainer_init(
            library.NCCLTrainerInitInfo(
                master_address="127.0.0.1",
                master_port=_free_port(),
                world_size=1 + size * len(replicas),
                rank=0,
            ),
            client=servers,
            source=weight_source(library, lambda: self._model, self._folder.dtype, device),
        )
        self._trainer, servers.abort = trainer, trainer.shutdown
        if trainer.model_update_group.disabled:  # it would send nothing, without a word
            raise RuntimeError("NCCL's library is not found by the interpreter that trains")


class ServerGroup:
    """All servers as the one that vLLM's trainer talks to; each gets ranks of its own.

    ``abort`` is called when one of them fails while weights are sent, which the others and this process wait for.
    """

    def __init__(self, sockets: Sequence[Path], ranks_each: int, timeout_s: float) -> None:
        self._ranks_each = ranks_each
        self.abort: Callable[[], None] = lambda: None
        self._clients = [
            httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://replica", timeout=timeout_s)
            for path in sockets
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
        try:
            self._post("/update_weights", [{"update_info": update_info}] * len(self._clients))
        except (httpx.HTTPError, RuntimeError):
            self.abort()
            raise

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """The version is named when the caches are reset, as after every other way."""
        self._post("/finish_weight_update")

    def leave(self) -> None:
        """Let the servers give back the communicator of an earlier group, if they have one."""
        self._post("/shutdown_weight_transfer_engine")

    def close(self) -> None:
        """Close the connections; what still waits at one of them fails."""
        for client in self._clients:
            client.close()

    def _post(self, path: str, bodies: Sequence[dict[str, Any]] | None = None) -> None:
        """Ask all of them at once; raises what the first one that fails says, without waiting for the others."""
        asked = [
            _in_thread(lambda client=client, body=body: _ask(client, path, body))  # type: ignore[misc]
            for client, body in zip(self._clients, bodies or [{}] * len(self._clients), strict=True)
        ]
        for future in wait(asked, return_when=FIRST_EXCEPTION).done:
            future.result()


def _ask(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = client.post(path, json=body)
    if answer.status_code != 200:
        with suppress(ValueError):
            raise RuntimeError(f"{path} answered {answer.status_code}: {error_text(answer.json())}")
        raise RuntimeError(f"{path} answered {answer.status_code}")


def weight_source(
    library: Any, model: Callable[[], PreTrainedModel | None], dtype: torch.dtype, device: torch.device
) -> Any:
    """The policy's tensors as vLLM's trainer asks for them, in the servers' ``dtype`` and on ``device``.

    A tied output layer is sent, too: servers may keep it apart.
    """
    weights = _Weights(library.ParamMeta, model, dtype, device)
    return weights if hasattr(library.WeightSource, "iter_full") else _WeightsUntil032(weights)


class _Weights:
    """What vLLM 0.33 asks for: metadata as an attribute, and whole tensors in its order."""

    def __init__(
        self, meta: Any, model: Callable[[], PreTrainedModel | None], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._meta, self._model, self._dtype, self._device = meta, model, dtype, device

    @property
    def metadata(self) -> list[Any]:
        return [self._meta(name, self._sent(tensor), tuple(tensor.shape)) for name, tensor in self._tensors().items()]

    def implements_iter_full(self) -> bool:
        return True

    def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors().items():
            yield name, tensor.detach().to(self._device, self._sent(tensor))

    def _sent(self, tensor: torch.Tensor) -> torch.dtype:
        return self._dtype if tensor.is_floating_point() else tensor.dtype

    def _tensors(self) -> dict[str, torch.Tensor]:
        model = self._model()
        assert model is not None
        return dict(model.state_dict())


class _WeightsUntil032:
    """The same for vLLM 0.32, which calls the metadata and iterates."""

    def __init__(self, weights: _Weights) -> None:
        self._weights = weights

    def metadata(self) -> list[Any]:
        return self._weights.metadata

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._weights.iter_full()


def _in_thread(work: Callable[[], None]) -> Future[None]:
    """Do it in a thread that is left behind where it never ends."""
    outcome: Future[None] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=run, name="nccl", daemon=True).start()
    return outcome


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
