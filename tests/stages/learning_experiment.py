"""Small experiments whose every update changes the weights, so that it shows which of them played an episode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from rised.experiment import RunConfig
from rised.records.shards import RunReader
from stages.evaluate import evaluate
from stages.prepare import prepare_tasks
from stages.setup import load_experiment, load_run, read_tasks, write_tasks
from stages.train import train

LEARNING = """
extends: [{tiny}]
experiment: learning
method_overrides:
  rised:
    teacher: {{type: all_rubrics}}   # a policy that only fails still gets hints, and with them a gradient
learner: {{learning_rate: 1.0e-2, threads: 1}}
"""
LAGGED = """
extends: [learning.yaml]
experiment: lagged
environments:
  dbbench: {train_tasks: 16, validation_tasks: 4}
methods: [rised, orsd]
method_scale:
  candidate_groups: 4
  selected_groups: 3
  policy_loss: {truncated_importance: 2.0}
method_overrides:
  orsd:
    teacher:
      writer: {type: policy, max_new_tokens: 8, transcript_characters: 1000}
      verifier: {type: none}
      choice: first
learner: {gradient_share_every: 0}
updates: 4
validation: {every: 3}
export_every: 2
pipeline: {lag: 1}
"""


@dataclass(frozen=True)
class LearningExperiment:
    """Paths of the experiment, as jobs want them."""

    config: Path
    tasks: Path
    warm_start: Path

    def run_config(self, method: str, *overrides: str) -> RunConfig:
        return load_run(self.config, method, 0, overrides)

    def train(self, out: Path, method: str, *overrides: str) -> None:
        """Train into a folder, or go on with the run that is there."""
        train(self.run_config(method, *overrides), read_tasks(self.tasks), self.warm_start, out)


def make_experiment(folder: Path, tiny: Path, lagged: bool = False) -> LearningExperiment:
    """Write the experiment over the tiny one, prepare its tasks, evaluate its warm start.

    The current directory is the repository.
    """
    (folder / "learning.yaml").write_text(LEARNING.format(tiny=tiny))
    (folder / "lagged.yaml").write_text(LAGGED)
    config = folder / ("lagged.yaml" if lagged else "learning.yaml")
    found = LearningExperiment(config, folder / "tasks.parquet", folder / "warm_start")
    settings = load_experiment(found.config)
    write_tasks(found.tasks, prepare_tasks(settings))
    evaluate(settings, read_tasks(found.tasks), found.warm_start)
    return found


def assert_every_update_changed_the_weights(run: Path, policy: Path) -> None:
    """Each step's gradient is not 0, and the last export differs from ``policy`` in every tensor."""
    rows = RunReader(run).metrics().to_pylist()
    gradients = {row["step"]: row["value"] for row in rows if row["name"] == "gradient_norm"}
    steps = RunReader(run).steps()
    assert gradients.keys() == {step for step in steps if step > 0} and all(gradients.values()), gradients
    exported = load_file(run / "checkpoints" / f"step-{max(steps):06d}" / "model.safetensors")
    before = load_file(policy / "model.safetensors")
    assert before and all(not torch.equal(exported[name], tensor) for name, tensor in before.items())
