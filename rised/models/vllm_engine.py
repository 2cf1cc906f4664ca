"""Generation by vLLM servers of this process: requests are dealt out to them, weights handed over, dead ones replaced.

All that concerns the servers happens in one thread with an event loop; the methods here are called from any other.
Each server is tended by a task of its own: started, watched, started again with the current weights.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from transformers import PreTrainedModel

from rised.models.engine_settings import VllmEngineSettings
from rised.models.errors import ModelError
from rised.models.handover import FileHandover, Handover, WeightFolder, faults_of
from rised.models.protocols import Answer, GenerationRequest
from rised.models.vllm_devices import server_devices
from rised.models.vllm_replica import WHERE, VllmReplica, command
from rised.models.vllm_wire import ReplicaFault, ReplicaPaused

TICK_S = 0.1
_DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class VllmEngine:
    """Generates with vLLM; token ids in, token ids out. A context manager: its servers live inside the block.

    The servers start in the background; requests wait for them. ``model`` gives configuration and first weights, which
    are those after ``weight_version`` updates.
    """

    copies_weights = True

    def __init__(
        self,
        settings: VllmEngineSettings,
        model: PreTrainedModel,
        end_token_id: int,
        dtype: torch.dtype,
        weight_version: int = 0,
    ) -> None:
        self.settings, self.end_token_id = settings, end_token_id
        longest = int(getattr(model.config, "max_position_embeddings", 1 << 30))
        self.max_positions = settings.max_model_len or longest
        self.concurrency = settings.concurrency
        self.tokens_fed = 0
        """Positions computed so far, those found in a prefix cache left out."""
        self.tokens_generated = 0
        self.weight_version = weight_version
        self._vocabulary_size = int(model.config.vocab_size)
        self._first, self._dtype = model, dtype
        self._loop: asyncio.AbstractEventLoop | None = None
        command(settings, Path("weights"), Path("socket"), "", self.max_positions)  # refuses unknown placeholders

    def __enter__(self) -> VllmEngine:
        """ModelError if this process has too few GPUs for its servers, or the weights cannot be written."""
        slices = server_devices(self.settings, os.environ)
        parent = self.settings.weights_folder
        if parent is not None:
            Path(parent).mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="rised-policy-", dir=parent))
        self._sockets = Path(tempfile.mkdtemp(prefix="rised-", dir="/tmp"))  # a socket's path has at most 107 bytes
        try:
            self._handover: Handover = self._make_handover()
            self._weights = self._handover.prepare(self._first, self.weight_version)
        except BaseException:
            self._remove_folders()
            raise
        self._replicas = [
            VllmReplica(number, self.settings, devices, self._folder, self._sockets)
            for number, devices in enumerate(slices)
        ]
        self._homes: dict[str, VllmReplica] = {}
        self._failure: ModelError | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        self._run(self._open()).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        self._run(self._close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None
        self._handover.close()
        self._remove_folders()

    @property
    def server_pids(self) -> list[int | None]:
        """Process ids of the servers; None for one that is not running."""
        return [replica.pid for replica in self._replicas]

    @property
    def restarts(self) -> int:
        """How often a server was started again."""
        return sum(replica.restarts for replica in self._replicas)

    def submit(self, request: GenerationRequest) -> Future[Answer]:
        """Ask for one reply. The future raises ModelError; cancelling it ends the server's work on the request.

        ValueError for ids that the model does not know (one of them would end the server), or too many of them.
        """
        ids, limit = request.token_ids, request.max_new_tokens
        if limit < 1 or not ids or min(ids) < 0 or max(ids) >= self._vocabulary_size:
            raise ValueError(f"a request needs ids from 0 to {self._vocabulary_size - 1} and at least one new token")
        if not self.settings.draws_at(request.temperature):
            raise ValueError(f"vLLM does not draw at temperature {request.temperature:g}")
        if len(ids) + limit > self.max_positions:
            raise ValueError(f"{len(ids)} tokens and {limit} new ones exceed the {self.max_positions} of the server")
        return self._run(self._answer(request))

    def load_weights(self, source: PreTrainedModel, weight_version: int | None = None) -> None:
        """Play with the weights of ``source`` from now on, those after ``weight_version`` updates.

        Waits for replies in flight, which are of the old weights; later requests wait for the new ones. ModelError if
        no server takes them.
        """
        if weight_version is None:
            raise ValueError("vLLM's servers are told which version of the weights they serve")
        weights = self._handover.prepare(source, weight_version)
        self._run(self._update(weights, weight_version)).result()

    # -- requests

    async def _answer(self, request: GenerationRequest) -> Answer:
        fault: ReplicaFault | None = None
        attempts = 0
        while attempts < self.settings.request_attempts:
            replica = await self._home(request.affinity)
            changes = replica.changes
            try:
                answer, fed = await replica.generate(request, self.end_token_id)
            except ReplicaFault as error:
                if isinstance(error, ReplicaPaused) and replica.changes > changes:
                    continue  # its weights began to change on the request's way: nothing is wrong with it
                fault, attempts = error, attempts + 1
                self._suspect(replica)
                continue
            self.tokens_fed += fed + len(answer.reply.token_ids) - 1
            self.tokens_generated += len(answer.reply.token_ids)
            return answer
        raise ModelError(
            f"vLLM gave no usable reply at {self.settings.request_attempts} attempts ({WHERE}.request_attempts), at "
            f"last {fault}; its log ends:\n{replica.tail()}"
        )

    async def _home(self, affinity: str) -> VllmReplica:
        """Where requests of this name go: for good to the server that had least to do when the first one came."""
        while True:
            if self._failure is not None:
                raise self._failure
            home = self._homes.get(affinity)
            if home is not None and home.healthy:
                return home
            ready = [replica for replica in self._replicas if replica.healthy]
            if ready:
                home = min(ready, key=lambda replica: (replica.running, replica.number))
                if affinity:
                    self._homes[affinity] = home
                return home
            await self._changed.wait()

    def _suspect(self, replica: VllmReplica) -> None:
        """Ask it nothing until its tender has looked at it."""
        replica.healthy = False
        self._look[replica.number].set()

    # -- weights

    async def _update(self, weights: Path, version: int) -> None:
        async with self._updating:
            self._weights, self.weight_version = weights, version
            self._homes.clear()  # what they were sticky for, the cached prefixes, goes
            await self._give([replica for replica in self._replicas if replica.ready])
            if self._failure is not None:
                raise self._failure

    async def _give(self, replicas: list[VllmReplica]) -> None:
        """Bring servers to the current weights and open them for requests; suspect those that fail."""
        version = self.weight_version
        for replica in replicas:
            replica.changing, replica.healthy, replica.changes = True, False, replica.changes + 1
        try:
            faults = await _each(replicas, VllmReplica.pause)
            well = [replica for replica in replicas if replica not in faults]
            faults |= await self._handover.send(well, self._weights) if well else {}
            well = [replica for replica in well if replica not in faults]
            faults |= await _each(well, lambda replica: replica.resume(version))
        finally:
            for replica in replicas:
                replica.changing = False
        for replica in replicas:
            replica.fault = str(faults[replica]) if replica in faults else None
            replica.healthy = replica not in faults
            if replica in faults:
                self._suspect(replica)
        self._notify()

    # -- servers

    async def _open(self) -> None:
        self._updating = asyncio.Lock()
        self._changed = asyncio.Event()
        self._look = [asyncio.Event() for _ in self._replicas]
        self._tenders = [asyncio.create_task(self._tend(replica)) for replica in self._replicas]

    async def _close(self) -> None:
        for task in self._tenders:
            task.cancel()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for replica in self._replicas:
            replica.ask_to_end()
        for replica in self._replicas:
            await replica.close()
            replica.end(self.settings.stop_grace_s)

    async def _tend(self, replica: VllmReplica) -> None:
        """Start the server and watch it; start it again when it fails, until it failed too often."""
        try:
            while True:
                why = await self._serve(replica)
                replica.ready = replica.healthy = False
                replica.ask_to_end()
                await asyncio.to_thread(replica.end, self.settings.stop_grace_s)
                await replica.close()  # after the server's end, which is what its requests shall hear of
                if replica.restarts >= self.settings.max_restarts or not replica.was_ready:
                    raise ModelError(f"vLLM server {replica.number} {why}; its log ends:\n{replica.tail()}")
                replica.restarts += 1
        except ModelError as error:
            self._out(replica, error)
        except Exception as error:  # whatever it was, nobody shall wait for this server any more
            self._failure = ModelError(f"vLLM server {replica.number} could not be tended: {error!r}")
            self._notify()

    async def _serve(self, replica: VllmReplica) -> str:
        """One life of a server; returns what ended it."""
        settings, look = self.settings, self._look[replica.number]
        replica.start(self._handover.boot, _DTYPE_NAMES[self._dtype], self.max_positions)
        while not await replica.check():
            if replica.dead():
                return "ended before it was ready"
            if replica.too_late():
                return f"was not ready after {settings.start_timeout_s:g} s ({WHERE}.start_timeout_s)"
            await asyncio.sleep(TICK_S)
        replica.was_ready = True
        await self._admit(replica)
        failed = 0
        while failed < settings.unhealthy_checks:
            at_ease = replica.healthy or replica.changing
            await self._rest(replica, settings.health_every_s if at_ease else TICK_S)
            look.clear()
            if replica.dead():
                return "died"
            if replica.fault is not None:
                return f"failed at a weight update ({replica.fault})"
            well = await replica.check()
            failed = 0 if well else failed + 1
            if well and not replica.healthy and not replica.changing and replica.loaded == self._weights:
                replica.healthy = True
                self._notify()
        return f"failed {failed} health checks"

    async def _admit(self, replica: VllmReplica) -> None:
        """Open a server that has started: with the current weights, or after the next update."""
        async with self._updating:
            replica.ready = True
            replica.fault = None
            if replica.loaded == self._weights:
                faults = await _each([replica], lambda one: one.resume(self.weight_version))
                replica.fault = str(faults[replica]) if faults else None
                replica.healthy = not faults
                self._notify()
            elif self._handover.catches_up:
                await self._give([replica])
            elif not any(other.healthy for other in self._replicas):
                raise ModelError(
                    f"the last vLLM server was lost, and {WHERE}.handover {self.settings.handover!r} gives weights at "
                    "updates only: start the run again, it goes on from its last committed step"
                )

    async def _rest(self, replica: VllmReplica, seconds: float) -> None:
        """Sleep, but wake when somebody suspects the server or its process ends."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not replica.dead():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look[replica.number].wait(), min(TICK_S, seconds))
                return

    def _out(self, replica: VllmReplica, error: ModelError) -> None:
        """A server stays out. When it never was ready, or is the last one, requests end with the reason."""
        replica.out = True
        if not replica.was_ready or all(other.out for other in self._replicas):
            self._failure = error
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # -- odds and ends

    def _make_handover(self) -> Handover:
        folder = WeightFolder(self._folder, self._dtype)
        if self.settings.handover == "nccl":
            from rised.models.nccl_handover import NcclHandover

            return NcclHandover(folder, self.settings)
        return FileHandover(folder)

    def _remove_folders(self) -> None:
        for folder in (self._folder, self._sockets):
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        if self._loop is None:
            work.close()
            raise RuntimeError("the engine's servers live inside its `with` block")
        return asyncio.run_coroutine_threadsafe(work, self._loop)


async def _each(replicas: list[VllmReplica], act: Any) -> dict[VllmReplica, ReplicaFault]:
    """Do a thing on all servers at once; what went wrong, by server."""
    found = await asyncio.gather(*(act(replica) for replica in replicas), return_exceptions=True)
    return faults_of(replicas, found)
