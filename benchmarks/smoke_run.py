"""A run of parts on one device, and what each of them found: kept after every part, whatever becomes of the others.

Here are the run's size, its random model, the texts of its episodes and the comparison of log-probabilities, which
several parts need. The parts themselves are in ``gpu_smoke`` and ``gpu_smoke_vllm``.
"""

from __future__ import annotations

import gc
import json
import platform
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

from benchmarks.random_model import model_config
from benchmarks.results import Measurement, write
from rised.learner.passes import token_scorer
from rised.learner.settings import LearnerSettings
from rised.models.scoring import Layout, micro_batch_logprobs, plan_micro_batches
from rised.models.shape import ModelShape

BENCHMARK = "gpu_smoke"

Played = tuple[list[int], list[bool], list[float]]
"""An episode: its ids, which of them were sampled, and the log-probabilities of those."""


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

    @property
    def episode(self) -> int:
        """Tokens of an episode of two turns, with an end token behind each reply."""
        return self.prompt + self.observation + 2 * (self.reply + 1)


SIZES = {
    "tiny": Size(4, 24, 8, 12, 12, 60, 200, 512, 2),
    "whole": Size(64, 512, 128, 128, 64, 600, 4096, 16384, 3),
}


@dataclass
class Run:
    """The run: its model, and what was found so far. ``remarks`` say what was chosen for this machine."""

    shape: ModelShape
    size: Size
    out: Path
    device: torch.device
    remarks: list[str] = field(default_factory=list)
    rows: list[Measurement] = field(default_factory=list)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        with self.device:
            self.model: PreTrainedModel = Qwen2ForCausalLM(model_config(self.shape)).eval()

    def found(self, case: str, arm: str, unit: str, value: float, **further: Any) -> None:
        """Keep a measurement."""
        self.rows.append(Measurement(BENCHMARK, case, arm, 0, unit, value, **further))

    def part(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        """Run a part, whatever comes of it, and write down all that is known."""
        started = time.perf_counter()
        try:
            self.parts[name] = {"status": "ok", **work()}
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
            "parameters": self.shape.parameters,
            "remarks": self.remarks,
            "parts": self.parts,
        }
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

    def texts(self) -> list[list[list[int]]]:
        """Of each of the two turns, what each episode is told: prompts, then observations. The same at every call."""
        rng = np.random.default_rng(0)
        return [
            [rng.integers(2, self.shape.vocabulary_size, length).tolist() for _ in range(self.size.episodes)]
            for length in (self.size.prompt, self.size.observation)
        ]

    def compare(self, arm: str, episodes: Sequence[Played]) -> dict[str, Any]:
        """The learner's log-probabilities of sampled tokens beside those that the sampler reported."""
        if not episodes:
            raise Skipped("there is no rollout to compare")
        settings = self.settings("padded")
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

    def settings(self, layout: Layout, kind: type[LearnerSettings] = LearnerSettings, **further: Any) -> Any:
        """Of a learner: bfloat16 products, layers computed twice."""
        return learner_settings(self.size, layout, kind, **further)


def learner_settings(size: Size, layout: Layout, kind: type[LearnerSettings] = LearnerSettings, **further: Any) -> Any:
    """Settings of the run's learners."""
    return kind(
        layout=layout,
        autocast="bfloat16",
        activation_checkpointing=True,
        micro_batch_tokens=size.micro_batch_tokens,
        gradient_share_every=0,
        **further,
    )


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
        found["gpus"] = torch.cuda.device_count()
    return found
