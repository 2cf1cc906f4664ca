"""A small experiment of two environments that trains on one of them: what the correlation experiments are made of."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage_commands import SingleSource

from stages.evaluate import evaluate
from stages.prepare import prepare_tasks
from stages.setup import load_experiment, load_run, read_tasks, write_tasks
from stages.train import train

EXPERIMENT = """
extends: [{configs}/environments/alfworld.yaml, {configs}/environments/dbbench.yaml]
experiment: single_source
environments:
  alfworld: {{train_tasks: 8, validation_tasks: 4}}
  dbbench: {{train_tasks: 8, validation_tasks: 4}}
training_environments: [dbbench]
methods: [grpo_64]
method_scale: {{candidate_groups: 2, selected_groups: 2}}
block_style: compact
model: {{path: {policy}}}
rollout:
  temperature: 1.0
  max_new_tokens_per_turn: {{alfworld: 16, dbbench: 44}}
  max_turns: {{alfworld: 6, dbbench: 4}}
  max_episode_tokens: 400
  environment_workers: 1
rollouts_per_group: 4
learner: {{learning_rate: 1.0e-3, threads: 1, gradient_share_every: 0}}
updates: 3
validation: {{every: 1, rollouts_per_task: 2, tags: true}}
export_every: 2
gradient: {{tasks: 3, projection: 64}}
"""


@pytest.fixture(scope="session")
def single_source(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> SingleSource:
    """The experiment, its run finished: trained on dbbench, validated on alfworld and dbbench at every update."""
    folder = tmp_path_factory.mktemp("single_source")
    config = folder / "single_source.yaml"
    config.write_text(EXPERIMENT.format(configs=repository / "configs", policy=repository / "data" / "nano_policy"))
    run = folder / "runs" / "grpo_64" / "seed-0"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        experiment = load_experiment(config)
        tasks = folder / "tasks.parquet"
        write_tasks(tasks, prepare_tasks(experiment))
        evaluate(experiment, read_tasks(tasks), folder / "warm_start")
        train(load_run(config, "grpo_64", 0), read_tasks(tasks), folder / "warm_start", run)
    return SingleSource(config, tasks, folder / "warm_start", run)
