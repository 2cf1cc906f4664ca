"""A small experiment whose every update changes the weights, so that it shows which of them played an episode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rised.experiment import RunConfig
from stages.evaluate import evaluate
from stages.prepare import prepare_tasks
from stages.setup import load_experiment, load_run, read_tasks, write_tasks
from stages.train import train

EXPERIMENT = """
extends: [{configs}/environments/dbbench.yaml]
experiment: lagged
environments:
  dbbench: {{train_tasks: 16, validation_tasks: 4}}
methods: [rised, orsd]
method_scale:
  candidate_groups: 4
  selected_groups: 3
  policy_loss: {{truncated_importance: 2.0}}
method_overrides:
  rised:
    teacher: {{type: all_rubrics}}   # a policy that only fails still gets hints, and with them a gradient
  orsd:
    teacher:
      writer: {{type: policy, max_new_tokens: 8, transcript_characters: 1000}}
      verifier: {{type: none}}
      choice: first
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
learner: {{learning_rate: 1.0e-2, threads: 1, gradient_share_every: 0}}
updates: 4
validation: {{every: 3}}
export_every: 2
pipeline: {{lag: 1}}
"""


@dataclass(frozen=True)
class LaggedExperiment:
    """Paths of the experiment, as jobs want them."""

    config: Path
    tasks: Path
    warm_start: Path

    def run_config(self, method: str, *overrides: str) -> RunConfig:
        return load_run(self.config, method, 0, overrides)

    def train(self, out: Path, method: str, *overrides: str) -> None:
        """Train into a folder, or go on with the run that is there."""
        train(self.run_config(method, *overrides), read_tasks(self.tasks), self.warm_start, out)


def make_experiment(folder: Path, repository: Path, policy: Path, *overrides: str) -> LaggedExperiment:
    """Write the experiment, prepare its tasks, evaluate its warm start. The current directory is the repository.

    ``overrides``: of the warm start alone.
    """
    found = LaggedExperiment(folder / "lagged.yaml", folder / "tasks.parquet", folder / "warm_start")
    found.config.write_text(EXPERIMENT.format(configs=repository / "configs", policy=policy))
    settings = load_experiment(found.config, overrides)
    write_tasks(found.tasks, prepare_tasks(settings))
    evaluate(settings, read_tasks(found.tasks), found.warm_start)
    return found
