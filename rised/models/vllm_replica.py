"""One vLLM server of this process: its command, its socket, and what it is asked.

A server listens at a Unix socket in a folder that only its owner may enter: its development routes, by which weights
are changed, are open to nobody else on the host, and no port can be taken by another.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from rised.models.engine_settings import VllmEngineSettings
from rised.models.errors import ModelError
from rised.models.protocols import Answer, GenerationRequest
from rised.models.server_process import ServerProcess, fill_in
from rised.models.vllm_wire import GENERATE, ReplicaFault, ReplicaPaused, error_text, read_answer, request_body

WHERE = "engine"
FIXED = (
    *("--served-model-name", "policy", "--tokens-only", "--generation-config", "vllm"),
    *("--logprobs-mode", "processed_logprobs", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
    "--disable-uvicorn-access-log",
)
"""Ids in and out without a tokenizer; no sampling defaults of the model's; log-probabilities of what was drawn from."""
ON_CPU = ("--no-enable-chunked-prefill",)
"""A seeded request whose prompt is computed in parts ends vLLM 0.32 there: it rewinds generators, a CPU's cannot be.
Without parts a batch has room for the longest prompt."""
VARIABLES = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""The routes of weight updates; nothing is looked up or reported elsewhere."""
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
"""This process's place in its own job, which is not the server's."""
_RESETS, _RESET_WAIT_S = 20, 0.05


class VllmReplica(ServerProcess):
    """A place for one server. ``loaded``: the directory of the weights that it serves."""

    def __init__(
        self, number: int, settings: VllmEngineSettings, devices: Sequence[str], folder: Path, sockets: Path
    ) -> None:
        """``sockets`` takes its socket, ``folder`` its log if the settings name no place; both go with this process."""
        log = Path(settings.logs_folder or folder) / f"vllm-{os.getpid()}-{number}.log"
        super().__init__(number, settings, devices, log, (folder, sockets), shielded=True)
        self.server, self.socket = settings, sockets / f"{number}.sock"
        self.loaded: Path | None = None
        self.running = 0
        """Requests that it is answering."""
        self.ready = self.was_ready = self.out = False
        """Whether it has started; whether it ever did; whether it failed for good. ``healthy``: takes requests."""
        self.fault: str | None = None
        """Why it could not be given the current weights."""
        self.changing = False
        """Whether weights are being given to it; it is asked nothing meanwhile."""
        self.changes = 0
        """How often that began."""
        self._client: httpx.AsyncClient | None = None

    @property
    def client(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
            transport = httpx.AsyncHTTPTransport(uds=str(self.socket), limits=limits)
            self._client = httpx.AsyncClient(transport=transport, base_url="http://replica", trust_env=False)
        return self._client

    def start(self, weights: Path, dtype: str, max_model_len: int) -> None:
        """Start the server with ``weights``. ModelError if there is no such program."""
        self.socket.unlink(missing_ok=True)
        self.loaded = weights
        words = command(self.server, weights, self.socket, dtype, max_model_len)
        try:
            self.launch(words, VARIABLES, without=FOREIGN)
        except OSError as error:
            raise ModelError(f"{WHERE}.command: {words[0]!r} cannot be started: {error.strerror}") from error

    async def check(self) -> bool:
        """Ask the health route."""
        try:
            answer = await self.client.get("/health", timeout=self.server.health_timeout_s)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200

    async def generate(self, request: GenerationRequest, end_token_id: int) -> tuple[Answer, int]:
        """The answer and the positions computed for its prompt. ReplicaFault, or ModelError for a refused request."""
        self.running += 1
        try:
            found = await self._post(GENERATE, self.server.request_timeout_s, json=request_body(request, end_token_id))
        finally:
            self.running -= 1
        return read_answer(found, request, end_token_id)

    # -- weights

    async def pause(self) -> None:
        """Let the replies in flight come to their ends; later requests wait for :meth:`resume`."""
        await self._post("/pause", self.server.update_timeout_s, params={"mode": "wait"})

    async def reload(self, weights: Path) -> None:
        """Read the weights in ``weights``, in place."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(weights)}}
        await self._post("/collective_rpc", self.server.update_timeout_s, json=body)
        self.loaded = weights

    async def resume(self, version: int) -> None:
        """Forget what the cache holds of other weights, take the new version's number, and go on."""
        for _ in range(_RESETS):
            found = await self._post("/reset_prefix_cache", self.server.update_timeout_s)
            if found.get("success"):
                break
            await asyncio.sleep(_RESET_WAIT_S)
        else:
            raise ReplicaFault("its prefix cache is still held by requests")
        await self._post("/update_weight_version", self.server.update_timeout_s, json={"new_version": str(version)})
        served = (await self._get("/weight_info")).get("weight_version")
        if served != str(version):
            raise ReplicaFault(f"it serves version {served!r} of the weights instead of {version}")
        await self._post("/resume", self.server.update_timeout_s)

    async def close(self) -> None:
        """Close the connections; a server that is started again gets new ones."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    # -- asking

    async def _get(self, path: str) -> Any:
        return await self._ask("GET", path, self.server.health_timeout_s)

    async def _post(self, path: str, timeout_s: float, **content: Any) -> Any:
        return await self._ask("POST", path, timeout_s, **content)

    async def _ask(self, method: str, path: str, timeout_s: float, **content: Any) -> Any:
        try:
            answer = await self.client.request(method, path, timeout=timeout_s, **content)
            body = answer.json() if answer.content else {}
        except httpx.TimeoutException:
            raise ReplicaFault(f"no answer of {path} within {timeout_s:g} s") from None
        except (httpx.HTTPError, ValueError) as error:
            raise ReplicaFault(f"{path}: {type(error).__name__} {error}") from None
        if 400 <= answer.status_code < 500:
            raise ModelError(f"the vLLM server refused {path} ({answer.status_code}): {error_text(body)}")
        if answer.status_code != 200:
            kind = ReplicaPaused if answer.status_code == 503 else ReplicaFault
            raise kind(f"{path} answered {answer.status_code}: {error_text(body)}")
        return body


def command(settings: VllmEngineSettings, weights: Path, socket: Path, dtype: str, max_model_len: int) -> list[str]:
    """The server's command with its placeholders filled. ModelError names one that is not known."""
    values = {
        "python": settings.python or sys.executable,
        "weights": weights,
        "socket": socket,
        "dtype": dtype,
        "max_model_len": max_model_len,
        "tensor_parallel": settings.tensor_parallel,
    }
    transfer = ["--weight-transfer-config", '{"backend": "nccl"}'] if settings.handover == "nccl" else []
    words = fill_in((*settings.command, *settings.arguments), values, WHERE)
    return [*words, *FIXED, *(() if settings.use_gpus else ON_CPU), *transfer]
