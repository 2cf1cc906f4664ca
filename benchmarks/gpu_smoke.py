"""One prepared run for one GPU: does the update work there, do engine and learner agree, how fast, in how much memory.

Weights are random, in the shape of a file of configs/models (Qwen2.5-3B by default), so that nothing is downloaded. The
parts run one after the other; one that fails is recorded and the rest goes on:

- *rollout*: tokens per second of the transformers engine in bfloat16 over two turns
- *agreement*: the log-probabilities of those tokens, engine against learner (float32 weights, bfloat16 products)
- *hand-over*: seconds from the learner's weights to the engine's copy
- *padded*, *packed*: an update by the plain learner: tokens per second, and its peak of memory against the planner's
- *vllm*, *vllm hand-over*: the same episodes by a vLLM server of the product's engine, agreement, and changed weights
  handed over through a directory; *vllm nccl* the same from GPU to GPU, where there are two
- *deepspeed*: the update by DeepSpeed on one device, where it is installed

A device whose memory does not hold the whole model's update gets as many of its layers as it holds, which the file
says. Writes gpu_smoke.json and gpu_smoke.parquet, and the servers' logs, into --out, or into the folder that $OUT
names, after every part; exit code 1 if a part failed. Meant for ten minutes of a GPU, on which it has not been run
yet; on a CPU with --shape tiny it takes seconds (with vLLM minutes), which is its own test.

    python -m benchmarks.gpu_smoke --out results/gpu_smoke
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_smoke_vllm import VllmParts
from benchmarks.packing import sequences_of
from benchmarks.random_model import END, shape_named
from benchmarks.smoke_run import BENCHMARK, SIZES, Played, Run, Size, Skipped, learner_settings
from rised.learner.backends import make_learner
from rised.learner.footprint import learner_parts
from rised.learner.settings import DeepSpeedLearnerSettings, LearnerSettings
from rised.learner.types import LossTerm, Need
from rised.methods.registry import build, piece_settings
from rised.models.engine import TransformersEngine
from rised.models.protocols import Generated
from rised.models.randomness import episode_uniforms
from rised.models.shape import ModelShape

RESERVE = 0.1
"""Share of the device's memory that is left free: CUDA's own, and what fragments."""
STEP_COPIES = 6
"""Copies of the weights in float32 at DeepSpeed's step, the worst of all: weights, masters, two moments, gradients in
parts, and the same in one piece (or AdamW's square roots)."""


class Smoke(Run):
    """The parts with transformers and the learners."""

    engine: TransformersEngine | None = None
    episodes: Sequence[Played] = ()

    def rollout(self) -> dict[str, Any]:
        """Two turns of a batch, in bfloat16."""
        self.engine = TransformersEngine(self.model, END, torch.bfloat16, prefill_tokens=16384)
        self._play(self.engine, self.size.reply // 4)  # warms up
        self.wait()
        started, before = time.perf_counter(), self.engine.tokens_generated
        self.episodes = self._play(self.engine, self.size.reply)
        self.wait()
        seconds, tokens = time.perf_counter() - started, self.engine.tokens_generated - before
        self.found(
            "rollout", "transformers engine", "tokens/s (wall)", tokens / seconds, seconds=seconds, tokens=tokens
        )
        return {"generated_tokens_s": tokens / seconds, "episodes": self.size.episodes}

    def _play(self, engine: TransformersEngine, reply: int) -> list[Played]:
        rows = range(self.size.episodes)
        session = engine.session(len(rows))
        uniforms = [episode_uniforms(row, 2 * reply) for row in rows]
        found: list[Played] = [([], [], []) for _ in rows]
        pending: list[list[int]] = [[] for _ in rows]
        for turn, told in enumerate(self.texts()):
            asked = [[*pending[row], *told[row]] for row in rows]
            draws = [uniforms[row][turn * reply :] for row in rows]
            replies: list[Generated] = session.generate(rows, asked, [reply] * len(rows), draws)
            for row, given, answer in zip(rows, asked, replies, strict=True):
                ids, mask, logprobs = found[row]
                ids += [*given, *answer.token_ids]
                mask += [False] * len(given) + [True] * len(answer.token_ids)
                logprobs += answer.logprobs
                pending[row] = [] if answer.ended else [END]
        return found

    def agreement(self) -> dict[str, Any]:
        """The learner's log-probabilities of the rollouts' tokens."""
        return self.compare("transformers engine", self.episodes)

    def update(self, name: str, settings: LearnerSettings) -> dict[str, Any]:
        """Some updates; the first one warms up."""
        self.engine = None if self.device.type == "cuda" else self.engine
        rng = np.random.default_rng(1)
        drawn = np.exp(rng.normal(np.log(self.size.median_length), 0.7, self.size.sequences))
        lengths = np.clip(drawn, 16, self.size.longest).astype(int).tolist()
        policy = build("policy_loss", piece_settings("policy_loss", {"type": "clipped_surrogate"}), vocabulary=None)
        term = LossTerm("rl", 1.0, policy.token_loss, frozenset({Need.ADVANTAGE}))
        sequences = sequences_of(lengths, self.shape.vocabulary_size)
        self.clean()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        learner = make_learner(self.model, None, settings, temperature=1.0)
        learner.update(sequences, [term])
        self.wait()
        started = time.perf_counter()
        for _ in range(self.size.updates):
            report = learner.update(sequences, [term])
            if not all(m.value is None or np.isfinite(m.value) for m in report.metrics):
                raise RuntimeError("a measure of the update is not finite")
        self.wait()
        seconds = (time.perf_counter() - started) / self.size.updates
        tokens = sum(lengths)
        self.found("update", name, "tokens/s (wall)", tokens / seconds, seconds=seconds, tokens=tokens)
        planned = sum(
            part.bytes
            for part in learner_parts(self.shape, settings, 1, settings.micro_batch_tokens, with_reference=False)
        )
        self.found("memory", f"{name}, planned", "GB", planned / 1e9)
        found = {"tokens_s": tokens / seconds, "update_s": seconds, "tokens": tokens, "planned_gb": planned / 1e9}
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated()
            self.found("memory", name, "GB", peak / 1e9)
            return found | {"peak_gb": peak / 1e9, "peak_over_planned": peak / planned}
        return found | {"peak_gb": "not measured on a CPU"}

    def deepspeed(self) -> dict[str, Any]:
        """ZeRO 2 on one device: nothing to shard, but the whole path."""
        if find_spec("deepspeed") is None:
            raise Skipped("DeepSpeed is not installed")
        from torch import distributed

        try:
            return self.update("deepspeed, packed", self.settings("packed", DeepSpeedLearnerSettings, type="deepspeed"))
        finally:
            if distributed.is_initialized():
                distributed.destroy_process_group()

    def hand_over(self) -> dict[str, Any]:
        """From the learner's float32 weights to the engine's bfloat16 copy."""
        engine = self.engine or TransformersEngine(self.model, END, torch.bfloat16)
        times = []
        for _ in range(3):
            self.wait()
            started = time.perf_counter()
            engine.load_weights(self.model)
            self.wait()
            times.append(time.perf_counter() - started)
        self.found("hand-over", "to the engine's copy", "s (wall)", min(times), seconds=min(times))
        return {"seconds_best_of_three": min(times)}


def needed_bytes(shape: ModelShape, size: Size) -> int:
    """Most memory of the updates: of their passes as the planner counts them, and of DeepSpeed's step."""
    kinds = (
        learner_settings(size, "padded"),
        learner_settings(size, "packed", DeepSpeedLearnerSettings, type="deepspeed"),
    )
    parts = [learner_parts(shape, kind, 1, size.micro_batch_tokens, with_reference=False) for kind in kinds]
    step = 4 * STEP_COPIES * shape.parameters
    return max(step, *(sum(part.bytes for part in found) for found in parts))


def fitted(shape: ModelShape, size: Size, memory: float) -> tuple[ModelShape, list[str]]:
    """The shape with as many of its layers as ``memory`` bytes hold, and what there is to say about it.

    ValueError if not even one layer fits.
    """
    for layers in range(shape.layers, 0, -1):
        chosen = shape.model_copy(update={"layers": layers})
        if needed_bytes(chosen, size) <= (1 - RESERVE) * memory:
            remark = f"{layers} of the model's {shape.layers} layers: {memory / 1e9:.0f} GB are free"
            return chosen, [] if layers == shape.layers else [remark]
    raise ValueError(f"{memory / 1e9:.1f} GB are free: that is too little for one layer of this shape")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen25_3b", help="`tiny`, or a file of configs/models that has a shape")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="folder to write (default: $OUT)")
    parser.add_argument(
        "--vllm-python",
        default=os.environ.get("VLLM_PYTHON"),
        help="interpreter that has vLLM, as engine.python (default: $VLLM_PYTHON, or this one)",
    )
    args = parser.parse_args(arguments)
    if args.out is None:
        parser.error("give --out, or set the variable OUT to the folder to write")
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cpu" and args.shape != "tiny":
        parser.error("torch sees no GPU here; on a CPU give --shape tiny")
    shape, size = shape_named(args.shape), SIZES["tiny" if args.shape == "tiny" else "whole"]
    remarks: list[str] = []
    if device.type == "cuda":
        shape, remarks = fitted(shape, size, torch.cuda.mem_get_info(device)[0])
    for remark in remarks:
        print(remark, flush=True)
    smoke = Smoke(shape, size, Path(args.out), device, remarks)
    smoke.part("rollout", smoke.rollout)
    smoke.part("agreement", smoke.agreement)
    smoke.part("hand-over", smoke.hand_over)
    for layout in ("padded", "packed"):
        smoke.part(layout, lambda layout=layout: smoke.update(layout, smoke.settings(layout)))  # type: ignore[misc]
    smoke.engine = None
    VllmParts(smoke, args.vllm_python, "files")()
    VllmParts(smoke, args.vllm_python, "nccl")()
    smoke.part("deepspeed", smoke.deepspeed)  # last: it takes the model over
    failed = [name for name, found in smoke.parts.items() if found["status"] == "failed"]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; see {smoke.out / BENCHMARK}.json")


if __name__ == "__main__":
    main()
