"""Fixtures that every room's tests may use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder of real data files and cases that are not part of the repository; skips where it is absent."""
    candidates = [os.environ.get("RISED_SHARED"), str(REPOSITORY.parent / "shared")]
    for candidate in candidates:
        if candidate and Path(candidate).is_dir():
            return Path(candidate)
    pytest.skip("real data files not found: set RISED_SHARED to their folder")


EXPERIMENT = """
extends: [{repository}/configs/environments/dbbench.yaml]
experiment: tiny
environments:
  dbbench: {{train_tasks: 12, validation_tasks: 6}}
methods: [grpo_64, rised]
seeds: [0, 1]
method_scale: {{candidate_groups: 3, selected_groups: 2}}
block_style: compact
model: {{path: {policy}}}
rollout:
  temperature: 1.0
  max_new_tokens_per_turn: 12
  max_turns: {{dbbench: 2}}
  max_episode_tokens: 400
  environment_workers: 1
  cohort_size: 4
rollouts_per_group: 4
learner: {{learning_rate: 1.0e-3, threads: 1, gradient_share_every: 2}}
updates: 3
validation: {{every: 2}}
"""


@dataclass(frozen=True)
class TinyExperiment:
    """Paths of the experiment's file, tasks and warm-start validation."""

    folder: Path
    config: Path
    tasks: Path
    warm_start: Path


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy directory whose weights are random and whose tokenizer knows DBBench's words."""
    import torch

    from rised.environments.discovery import get
    from rised.models.nano.architecture import build_nano
    from rised.models.nano.settings import NanoShape
    from rised.models.nano.tokenizer import END, PAD, save_tokenizer, spaced_variants, train_tokenizer
    from rised.rollouts.demonstrations import play_expert

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("policy")
    spec = get("dbbench")
    settings = spec.settings_type(prompt_style="compact")
    environment = spec.make(settings)
    rollouts = [play_expert(environment, task, 0, 0.0, 8) for task in spec.prepare(settings, "train", 30, 5)]
    texts = [text for r in rollouts for turn in r.turns for text in (turn.observation, turn.action_raw)]
    tokenizer = train_tokenizer(texts, 600)
    save_tokenizer(tokenizer, folder)
    shape = NanoShape(hidden_size=32, layers=2, heads=2, feed_forward_size=64, vocabulary_size=600)
    pad, end = (int(tokenizer.convert_tokens_to_ids(token)) for token in (PAD, END))
    build_nano(shape, len(tokenizer), pad, end, spaced_variants(tokenizer), 0).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_experiment(tmp_path_factory: pytest.TempPathFactory, tiny_policy: Path, repository: Path) -> TinyExperiment:
    """The experiment with its tasks prepared and its warm start evaluated."""
    from stages.evaluate import evaluate
    from stages.prepare import prepare_tasks
    from stages.setup import load_experiment, read_tasks, write_tasks

    folder = tmp_path_factory.mktemp("tiny")
    config = folder / "tiny.yaml"
    config.write_text(EXPERIMENT.format(repository=repository, policy=tiny_policy))
    experiment = load_experiment(config)
    tasks = folder / "tasks.parquet"
    write_tasks(tasks, prepare_tasks(experiment))
    evaluate(experiment, read_tasks(tasks), folder / "warm_start")
    return TinyExperiment(folder, config, tasks, folder / "warm_start")
