"""Holds the hand-over by NCCL against the vLLM of this interpreter: names, routes, what is announced and what is sent.

    PYTHONPATH=. .venv-vllm/bin/python tests/models/nccl_contract.py

The servers are vLLM's own router before an engine that notes what it is told, since a real one needs GPUs.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
import threading
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from transformers import Qwen2Config, Qwen2ForCausalLM
from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer import nccl_engine as library
from vllm.entrypoints.rl.online.api_router import router

from rised.config import ConfigError
from rised.models.engine_settings import VllmEngineSettings
from rised.models.handover import WeightFolder
from rised.models.nccl_handover import NcclHandover, ServerGroup, weight_source

WHERE = {"master_address": "127.0.0.1", "master_port": 1, "world_size": 5}


class Engine:
    """What the routes ask; ``broken``: it fails to receive weights."""

    def __init__(self, broken: bool) -> None:
        self.broken, self.calls = broken, []  # type: ignore[var-annotated]

    async def init_weight_transfer_engine(self, request: Any) -> None:
        info = library.NCCLWeightTransferInitInfo(**request.init_info)
        self.calls.append(("init", info.rank_offset, info.world_size, info.packed))

    async def shutdown_weight_transfer_engine(self) -> None:
        self.calls.append(("leave",))

    async def start_weight_update(self) -> None:
        self.calls.append(("start",))

    async def update_weights(self, request: Any) -> None:
        if self.broken:
            raise RuntimeError("no weights today")
        info = library.NCCLWeightTransferUpdateInfo(**request.update_info)
        self.calls.append(("update", tuple(info.names), tuple(info.dtype_names)))

    async def finish_weight_update(self, weight_version: str | None) -> None:
        self.calls.append(("finish", weight_version))


def serve(socket: Path, engine: Engine) -> None:
    app = FastAPI()
    app.include_router(router)
    app.state.engine_client = engine
    server = uvicorn.Server(uvicorn.Config(app, uds=str(socket), log_level="critical"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)


def the_names_are_there() -> None:
    assert {*WHERE, "rank"} <= {field.name for field in fields(library.NCCLTrainerInitInfo)}
    assert library.NCCLTrainerInitInfo(**WHERE, rank=0).is_sender
    trainer = library.NCCLTrainerWeightTransferEngine
    assert list(inspect.signature(trainer.trainer_init).parameters) == ["init_info", "client", "source"]
    assert callable(trainer.send_weights) and callable(trainer.shutdown)
    asked = {name for name in dir(HTTPVLLMWeightSyncClient) if name.endswith(("_weight_update", "_weights"))}
    assert asked <= set(dir(ServerGroup)) and "update_weights" in asked


def what_is_sent_is_what_is_announced() -> None:
    """vLLM's own check of a source: names, types and shapes in one order; a tied output layer is among them."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 40}
    config = Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    model = Qwen2ForCausalLM(config)
    source = weight_source(library, lambda: model, torch.bfloat16, torch.device("cpu"))
    meta = source.metadata() if callable(source.metadata) else source.metadata
    sent = dict(library.NCCLTrainerWeightTransferEngine._checked_iter(source, meta))
    assert list(sent) == list(model.state_dict()) and "lm_head.weight" in sent
    for name, tensor in model.state_dict().items():
        assert sent[name].dtype == torch.bfloat16 and torch.equal(sent[name], tensor.bfloat16())


def every_server_is_asked_by_vllms_routes() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        engines = [Engine(broken=False), Engine(broken=False)]
        sockets = [Path(folder) / str(number) for number in range(2)]
        for socket, engine in zip(sockets, engines, strict=True):
            serve(socket, engine)
        servers = ServerGroup(sockets, ranks_each=2, timeout_s=30)
        servers.leave()
        info = library.NCCLWeightTransferInitInfo(**WHERE, rank_offset=1, packed=True)
        servers.init_weight_transfer_engine({key: value for key, value in asdict(info).items() if value is not None})
        servers.start_weight_update()
        servers.update_weights({"names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]]})
        servers.finish_weight_update()
        for place, engine in enumerate(engines):
            first = ("init", 1 + 2 * place, 5, True)
            assert engine.calls == [
                ("leave",), first, ("start",), ("update", ("a",), ("bfloat16",)), ("finish", None)
            ], engine.calls  # fmt: skip

        aborted: list[bool] = []
        servers.abort = lambda: aborted.append(True)
        engines[1].broken = True
        try:
            servers.update_weights({"names": [], "dtype_names": [], "shapes": []})
        except RuntimeError as error:
            assert "/update_weights answered 500" in str(error), error
        else:
            raise AssertionError("a server's failure went unnoticed")
        assert aborted == [True]
        servers.close()


def a_transfer_that_never_ends_is_given_up_and_one_without_gpus_refused() -> None:
    class Group:
        gone = False

        def shutdown(self) -> None:
            self.gone = True

    class Stuck(NcclHandover):
        def __init__(self) -> None:
            self._settings = VllmEngineSettings(type="vllm", update_timeout_s=0.3)
            self._trainer, self._servers, self._members = Group(), None, ()

        def _send(self, replicas: Any) -> None:
            time.sleep(600)

    stuck = Stuck()
    group: Any = stuck._trainer
    replica: Any = "server"
    faults = asyncio.run(stuck.send([replica], Path("weights")))
    assert "not done after 0.3 s" in str(faults[replica]) and group.gone
    if not torch.cuda.is_available():
        try:
            NcclHandover(WeightFolder(Path("weights"), torch.float32), stuck._settings)
        except ConfigError as error:
            assert "sees no GPU" in str(error)
        else:
            raise AssertionError("a transfer between GPUs was begun without any")


if __name__ == "__main__":
    a_transfer_that_never_ends_is_given_up_and_one_without_gpus_refused()
    the_names_are_there()
    what_is_sent_is_what_is_announced()
    every_server_is_asked_by_vllms_routes()
    print("held")
