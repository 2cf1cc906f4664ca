"""The parts of the GPU's run that generate with vLLM: through the product's own engine, servers and hand-overs.

The engine is made as `engine.type: vllm` makes it, from configs/engines. A first part starts a server with the random
weights, plays the transformers engine's episodes, each going on by itself, and compares the log-probabilities. A second
one hands over weights that were changed everywhere, plays again, and holds what is reported now against the new weights
and against the old ones: it fails unless the replies name the new version and lie far nearer to the new weights.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from benchmarks.random_model import END
from benchmarks.smoke_run import Played, Run, Skipped
from rised.config import ConfigError
from rised.config.loader import read_plain
from rised.models.engine_settings import VllmEngineSettings
from rised.models.engines import ENGINES
from rised.models.errors import ModelError
from rised.models.protocols import GenerationRequest, RequestEngine
from rised.models.randomness import reply_seed
from rised.models.vllm_engine import VllmEngine

GPU_SHARE = 0.35
"""Of the GPU's memory for the server: weights of 6 GB and the keys and values of all episodes, beside the learner."""
START_TIMEOUT_S, SECOND_START_S = 240.0, 60.0
"""Longest start of a server, and what a second one has at least: compiling takes one to two minutes, and the run ten in
all."""
CHANGE = 0.2
"""Standard deviation of what every weight is moved by, in those of the weights."""
NEARER = 3.0
"""How many times nearer to the new weights' log-probabilities than to the old ones' the replies must be."""
EAGER = "--enforce-eager"

Way = Literal["files", "nccl"]


class VllmParts:
    """A server, what it plays, and one way of new weights to it. ``python``: the interpreter that has vLLM, or None."""

    def __init__(self, run: Run, python: str | None, way: Way) -> None:
        self._run, self._python, self._way = run, python, way
        self._stack = ExitStack()
        self._engine: VllmEngine | None = None
        self.name = "vllm" if way == "files" else f"vllm {way}"
        self._arm = "vLLM" if way == "files" else f"vLLM, {way}"

    def __call__(self) -> None:
        """Both parts."""
        self._run.part(self.name, self.play)
        self._run.part(f"{self.name} hand-over", self.hand_over)

    def play(self) -> dict[str, Any]:
        """Start the server, play the episodes, compare."""
        self._refuse_what_cannot_run()
        settings = self._settings()
        try:
            found = dict(ENGINES["vllm"].packages(settings))
            opened, remark, start_s = self._start(settings)
        except ConfigError as error:
            raise Skipped(str(error)) from None
        self._engine = opened
        fed = opened.tokens_fed
        started = time.perf_counter()
        episodes, versions = self._play(opened)
        seconds, tokens = time.perf_counter() - started, sum(len(e[2]) for e in episodes)
        self._run.found("rollout", self._arm, "tokens/s (wall)", tokens / seconds, seconds=seconds, tokens=tokens)
        self._run.found("start", self._arm, "s (wall)", start_s, seconds=start_s)
        return {
            "server": found,
            "start_s": start_s,
            "remark": remark,
            "generated_tokens_s": tokens / seconds,
            "positions_computed": opened.tokens_fed - fed,
            "weight_versions": sorted(versions),
            **self._run.compare(self._arm, episodes),
        }

    def hand_over(self) -> dict[str, Any]:
        """Change every weight, hand them over, play again; the server goes afterwards."""
        run, engine = self._run, self._engine
        with self._stack:
            if engine is None:
                raise Skipped("no server plays")
            amount = CHANGE * float(run.model.config.initializer_range)
            arm = f"{self._arm}, after the hand-over"
            shift(run.model, amount)
            try:
                run.wait()
                started = time.perf_counter()
                engine.load_weights(run.model, 1)
                seconds = time.perf_counter() - started
                run.found("hand-over", f"to vLLM, {self._way}", "s (wall)", seconds, seconds=seconds)
                episodes, versions = self._play(engine)
                new = run.compare(arm, episodes)
            finally:
                shift(run.model, -amount)
            old = run.compare(f"{arm}, against the old weights", episodes)
        apart, distance = new["mean_difference_nats"], old["mean_difference_nats"]
        if versions != {1}:
            raise RuntimeError(f"after the hand-over of version 1 the replies name {sorted(map(str, versions))}")
        if not apart * NEARER < distance:
            raise RuntimeError(
                f"the replies are {apart:.3g} nats from the new weights and {distance:.3g} from the old ones"
            )
        return {
            "hand_over_s": seconds,
            "weight_versions": sorted(versions),
            "mean_difference_nats": apart,
            "largest_difference_nats": new["largest_difference_nats"],
            "mean_difference_to_old_weights_nats": distance,
            "tokens": new["tokens"],
        }

    # -- the engine

    def _refuse_what_cannot_run(self) -> None:
        if self._way == "nccl":
            gpus = torch.cuda.device_count()
            if gpus < 2:
                raise Skipped(f"NCCL takes no two ranks on one GPU: it needs two, and torch sees {gpus}")

    def _settings(self) -> VllmEngineSettings:
        """Those of configs/engines, with room for the episodes and a share of the memory beside the learner."""
        on_gpu = self._run.device.type == "cuda"
        document: Any = read_plain(Path("configs/engines") / ("vllm.yaml" if on_gpu else "vllm_cpu.yaml"))
        given: dict[str, Any] = document["engine"]
        arguments = ["--gpu-memory-utilization", str(GPU_SHARE)] if on_gpu else given["arguments"]
        return VllmEngineSettings(
            **given
            | {
                "python": self._python,
                "arguments": arguments,
                "max_model_len": self._run.size.episode,
                "handover": self._way,
                "max_restarts": 0,  # one that dies once has no second start's minutes
                "start_timeout_s": START_TIMEOUT_S if on_gpu else 900.0,
                "logs_folder": str(self._run.out),
            }
        )

    def _start(self, settings: VllmEngineSettings) -> tuple[VllmEngine, str, float]:
        """The engine once its server has answered, a remark, and the seconds of that start.

        A server that does not come up is tried once more without compilation, which needs a compiler on the machine, in
        what the first one left of its time.
        """
        remark, began = "", time.perf_counter()
        while True:
            started = time.perf_counter()
            engine = ENGINES["vllm"].make(settings, self._run.model, END, torch.bfloat16, 0)
            try:
                opened: VllmEngine = self._stack.enter_context(engine)
                opened.submit(GenerationRequest([2, 3], 2, seed=0)).result()
                return opened, remark, time.perf_counter() - started
            except ModelError as error:
                self._stack.close()
                if EAGER in settings.arguments:
                    raise
                remark = f"did not start compiled: {str(error).splitlines()[0]}"
                print(f"{self.name}: {remark}", flush=True)
                left = max(SECOND_START_S, settings.start_timeout_s - (time.perf_counter() - began))
                settings = settings.model_copy(
                    update={"arguments": [*settings.arguments, EAGER], "start_timeout_s": left}
                )

    # -- episodes

    def _play(self, engine: RequestEngine) -> tuple[list[Played], set[int | None]]:
        """Two turns of every episode, and the versions of the weights that the replies name."""
        prompts, observations = self._run.texts()

        async def episode(row: int) -> tuple[Played, list[int | None]]:
            ids, mask, logprobs, versions = [], [], [], []  # type: ignore[var-annotated]
            for turn, told in enumerate((prompts[row], observations[row])):
                ids += told
                mask += [False] * len(told)
                request = GenerationRequest(
                    tuple(ids), self._run.size.reply, seed=reply_seed(row, turn), affinity=f"episode-{row}"
                )
                reply = (await asyncio.wrap_future(engine.submit(request))).reply
                ids += reply.token_ids
                mask += [True] * len(reply.token_ids)
                logprobs += reply.logprobs
                versions.append(reply.weight_version)
                if turn == 0 and not reply.ended:
                    ids.append(END)
                    mask.append(False)
            return (ids, mask, logprobs), versions

        async def everyone() -> list[tuple[Played, list[int | None]]]:
            return await asyncio.gather(*(episode(row) for row in range(self._run.size.episodes)))

        played = asyncio.run(everyone())
        return [episode for episode, _ in played], {number for _, versions in played for number in versions}


@torch.no_grad()
def shift(model: PreTrainedModel, amount: float) -> None:
    """Move every weight by ``amount`` times noise, which is the same at every call."""
    generator = torch.Generator(model.device).manual_seed(1)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, device=parameter.device, dtype=parameter.dtype)
        parameter.add_(noise, alpha=amount)
