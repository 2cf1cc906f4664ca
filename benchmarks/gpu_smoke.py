"""One prepared run for one GPU: does the update work there, do engine and learner agree, how fast, in how much memory.

Weights are random, in the shape of a file of configs/models (Qwen2.5-3B by default), so that nothing is downloaded. The
parts run one after the other; one that fails is recorded and the rest goes on:

- *rollout*: tokens per second of the transformers engine in bfloat16 over two turns
- *agreement*: the log-probabilities of those tokens, engine against learner (float32 weights, bfloat16 products)
- *padded*, *packed*: an update by the plain learner: tokens per second, and its peak of memory against the planner's
- *deepspeed*: the same by DeepSpeed on one device, where it is installed
- *hand-over*: seconds from the learner's weights to the engine's copy
- *vllm*: tokens per second and agreement of vLLM on the exported weights, where it is installed

Writes gpu_smoke.json and gpu_smoke.parquet into --out, or into the folder that $OUT names, after every part; exit
code 1 if a part failed. Meant for ten minutes of a GPU, on which it has not been run yet; on a CPU with --shape tiny it
takes seconds, which is its own test.

    python -m benchmarks.gpu_smoke --out results/gpu_smoke
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen2ForCausalLM

from benchmarks.packing import sequences_of
from benchmarks.random_model import END, model_config, shape_named
from benchmarks.results import Measurement, write
from rised.learner.backends import make_learner
from rised.learner.footprint import learner_parts
from rised.learner.passes import token_scorer
from rised.learner.settings import DeepSpeedLearnerSettings, LearnerSettings
from rised.learner.types import LossTerm, Need
from rised.methods.registry import build, piece_settings
from rised.models.engine import TransformersEngine
from rised.models.protocols import Generated
from rised.models.sampling import episode_uniforms
from rised.models.scoring import Layout, micro_batch_logprobs, plan_micro_batches
from rised.models.shape import ModelShape

BENCHMARK = "gpu_smoke"


class Skipped(Exception):
    """A part that this machine cannot run, and why."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done. Tokens of a prompt, of an observation, of a reply; lengths of the update's sequences."""

    episodes: int
    prompt: int
    observation: int
    reply: int
    sequences: int
    median_length: int
    longest: int
    micro_batch_tokens: int
    updates: int


SIZES = {
    "tiny": Size(4, 24, 8, 12, 12, 60, 200, 512, 2),
    "whole": Size(64, 512, 128, 128, 64, 600, 4096, 16384, 3),
}


@dataclass
class Smoke:
    """The run: its model, and what was found so far."""

    shape: ModelShape
    size: Size
    out: Path
    device: torch.device
    rows: list[Measurement] = field(default_factory=list)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    episodes: list[tuple[list[int], list[bool], list[float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        with self.device:
            self.model: PreTrainedModel = Qwen2ForCausalLM(model_config(self.shape)).eval()
        self.engine: TransformersEngine | None = None

    def found(self, case: str, arm: str, unit: str, value: float, **further: Any) -> None:
        """Keep a measurement."""
        self.rows.append(Measurement(BENCHMARK, case, arm, 0, unit, value, **further))

    def part(self, name: str, run: Callable[[], dict[str, Any]]) -> None:
        """Run a part, whatever comes of it, and write down all that is known."""
        started = time.perf_counter()
        try:
            self.parts[name] = {"status": "ok", **run()}
        except Skipped as reason:
            self.parts[name] = {"status": "skipped", "reason": str(reason)}
        except Exception as error:  # the other parts are worth having
            self.parts[name] = {"status": "failed", "reason": repr(error), "traceback": traceback.format_exc()}
        self.parts[name]["seconds"] = round(time.perf_counter() - started, 2)
        shown = {key: value for key, value in self.parts[name].items() if key != "traceback"}
        print(f"{name}: {shown}", flush=True)
        self.save()
        self.clean()

    def save(self) -> None:
        """Both files."""
        self.out.mkdir(parents=True, exist_ok=True)
        document: dict[str, Any] = {
            "machine": machine(self.device),
            "shape": self.shape.model_dump(),
            "parts": self.parts,
        }
        document["parameters"] = self.shape.parameters
        (self.out / f"{BENCHMARK}.json").write_text(json.dumps(document, indent=1))
        if self.rows:
            write(self.rows, self.out)

    def clean(self) -> None:
        """Give back what the part held."""
        self.model.zero_grad(set_to_none=True)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def wait(self) -> None:
        """Until the device has done what it was asked."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    # -- the parts

    def rollout(self) -> dict[str, Any]:
        """Two turns of a batch, in bfloat16."""
        self.engine = TransformersEngine(self.model, END, torch.bfloat16, prefill_tokens=16384)
        self._play(self.size.reply // 4)  # warms up
        self.wait()
        started, before = time.perf_counter(), self.engine.tokens_generated
        self.episodes = self._play(self.size.reply)
        self.wait()
        seconds, tokens = time.perf_counter() - started, self.engine.tokens_generated - before
        self.found(
            "rollout", "transformers engine", "tokens/s (wall)", tokens / seconds, seconds=seconds, tokens=tokens
        )
        return {"generated_tokens_s": tokens / seconds, "episodes": self.size.episodes}

    def _play(self, reply: int) -> list[tuple[list[int], list[bool], list[float]]]:
        assert self.engine is not None
        size, rng = self.size, np.random.default_rng(0)
        session = self.engine.session(size.episodes)
        uniforms = [episode_uniforms(row, 2 * reply) for row in range(size.episodes)]
        found: list[tuple[list[int], list[bool], list[float]]] = [([], [], []) for _ in range(size.episodes)]
        rows = list(range(size.episodes))
        pending: list[list[int]] = [[] for _ in rows]
        for turn, length in enumerate((size.prompt, size.observation)):
            asked = [[*pending[row], *rng.integers(2, self.shape.vocabulary_size, length).tolist()] for row in rows]
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
        return self._compare("transformers engine", self.episodes)

    def _compare(self, arm: str, episodes: Sequence[tuple[list[int], list[bool], list[float]]]) -> dict[str, Any]:
        if not episodes:
            raise Skipped("there is no rollout to compare")
        settings = self._settings("padded")
        scorer = token_scorer(self.model, settings)
        differences: list[np.ndarray] = []
        for batch in plan_micro_batches([len(e[0]) for e in episodes], settings.micro_batch_tokens):
            chosen = [episodes[index] for index in batch]
            with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
                scored = micro_batch_logprobs(scorer, [e[0] for e in chosen], [e[1] for e in chosen])
            for values, (_, _, sampled) in zip(scored, chosen, strict=True):
                differences.append(np.abs(values.float().cpu().numpy() - np.asarray(sampled)))
        every = np.concatenate(differences)
        mean, largest = float(every.mean()), float(every.max())
        self.found("agreement", arm, "nats, mean difference", mean, tokens=len(every))
        self.found("agreement", arm, "nats, largest difference", largest, tokens=len(every))
        if not np.isfinite(every).all():
            raise RuntimeError("log-probabilities are not finite")
        return {"mean_difference_nats": mean, "largest_difference_nats": largest, "tokens": len(every)}

    def _settings(self, layout: Layout, kind: type[LearnerSettings] = LearnerSettings, **further: Any) -> Any:
        return kind(
            layout=layout,
            autocast="bfloat16",
            activation_checkpointing=True,
            micro_batch_tokens=self.size.micro_batch_tokens,
            gradient_share_every=0,
            **further,
        )

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
            return self.update(
                "deepspeed, packed", self._settings("packed", DeepSpeedLearnerSettings, type="deepspeed")
            )
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

    def vllm(self) -> dict[str, Any]:
        """The exported weights under vLLM: the same prompts, one turn."""
        if find_spec("vllm") is None:
            raise Skipped("vLLM is not installed")
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        from vllm import LLM, SamplingParams

        self.engine = None
        self.clean()
        size, rng = self.size, np.random.default_rng(0)
        prompts = [rng.integers(2, self.shape.vocabulary_size, size.prompt).tolist() for _ in range(size.episodes)]
        further = {"gpu_memory_utilization": 0.35} if self.device.type == "cuda" else {}
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            self.model.save_pretrained(folder)
            engine = LLM(
                model=folder,
                skip_tokenizer_init=True,
                dtype="bfloat16",
                enforce_eager=True,
                max_model_len=size.prompt + size.reply + 8,
                max_num_seqs=size.episodes,
                **further,
            )
            start_s = time.perf_counter() - started
            sampling = SamplingParams(
                temperature=1.0, max_tokens=size.reply, ignore_eos=True, logprobs=1, detokenize=False, seed=0
            )
            asked: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
            engine.generate(asked[:1], sampling, use_tqdm=False)
            started = time.perf_counter()
            answers = engine.generate(asked, sampling, use_tqdm=False)
            seconds = time.perf_counter() - started
        episodes = []
        for prompt, answer in zip(prompts, answers, strict=True):
            reply = answer.outputs[0]
            ids = list(reply.token_ids)
            logprobs = [entry[token].logprob for entry, token in zip(reply.logprobs, ids, strict=True)]
            episodes.append(([*prompt, *ids], [False] * len(prompt) + [True] * len(ids), logprobs))
        tokens = sum(len(e[2]) for e in episodes)
        self.found("rollout", "vLLM", "tokens/s (wall)", tokens / seconds, seconds=seconds, tokens=tokens)
        return {"generated_tokens_s": tokens / seconds, "start_s": start_s, **self._compare("vLLM", episodes)}


def machine(device: torch.device) -> dict[str, Any]:
    """What it ran on."""
    packages = [name for name in ("torch", "transformers", "deepspeed", "vllm") if find_spec(name) is not None]
    versions = {}
    for name in packages:
        try:
            versions[name] = version(name)
        except ModuleNotFoundError:
            versions[name] = "unknown"
    found: dict[str, Any] = {"device": device.type, "python": platform.python_version(), "versions": versions}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"gpu": properties.name, "memory_gb": properties.total_memory / 1e9}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen25_3b", help="`tiny`, or a file of configs/models that has a shape")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="folder to write (default: $OUT)")
    args = parser.parse_args(arguments)
    if args.out is None:
        parser.error("give --out, or set the variable OUT to the folder to write")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and args.shape != "tiny":
        parser.error("torch sees no GPU here; on a CPU give --shape tiny")
    smoke = Smoke(shape_named(args.shape), SIZES["tiny" if args.shape == "tiny" else "whole"], Path(args.out), device)
    smoke.part("rollout", smoke.rollout)
    smoke.part("agreement", smoke.agreement)
    smoke.part("hand-over", smoke.hand_over)
    for layout in ("padded", "packed"):
        smoke.part(layout, lambda layout=layout: smoke.update(layout, smoke._settings(layout)))  # type: ignore[misc]
    smoke.part("vllm", smoke.vllm)
    smoke.part("deepspeed", smoke.deepspeed)  # last: it takes the model over
    failed = [name for name, found in smoke.parts.items() if found["status"] == "failed"]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; see {smoke.out / BENCHMARK}.json")


if __name__ == "__main__":
    main()
