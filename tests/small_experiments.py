"""Experiments small enough to train in a second: one whose policy only fails, and one that learns all the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rised.experiment import RunConfig

TINY = """
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
LEARNING = """
extends: [tiny.yaml]
experiment: learning
method_overrides:
  rised:
    teacher: {type: all_rubrics}   # a policy that only fails still gets hints, and with them a gradient
learner: {learning_rate: 1.0e-2}
"""


@dataclass(frozen=True)
class SmallExperiment:
    """Paths of the experiment's file, tasks and warm-start validation, as jobs want them."""

    folder: Path
    config: Path
    tasks: Path
    warm_start: Path

    def run_config(self, method: str, *overrides: str) -> RunConfig:
        from stages.setup import load_run

        return load_run(self.config, method, 0, overrides)

    def train(self, out: Path, method: str, *overrides: str) -> None:
        """Train into a folder, or go on with the run that is there."""
        from stages.setup import read_tasks
        from stages.train import train

        train(self.run_config(method, *overrides), read_tasks(self.tasks), self.warm_start, out)


def make_experiment(
    folder: Path, repository: Path, policy: Path, name: str, text: str = "", *overrides: str
) -> SmallExperiment:
    """Write the experiments into ``folder``, and prepare and evaluate the one that ``name`` says.

    ``text``: of an experiment of that name, over one of the two here. ``overrides``: of its preparation and evaluation
    alone. The current directory is the repository.
    """
    from stages.evaluate import evaluate
    from stages.prepare import prepare_tasks
    from stages.setup import load_experiment, read_tasks, write_tasks

    texts = {"tiny": TINY.format(repository=repository, policy=policy), "learning": LEARNING}
    for stem, content in (texts | ({name: text} if text else {})).items():
        (folder / f"{stem}.yaml").write_text(content)
    found = SmallExperiment(folder, folder / f"{name}.yaml", folder / "tasks.parquet", folder / "warm_start")
    settings = load_experiment(found.config, overrides)
    write_tasks(found.tasks, prepare_tasks(settings))
    evaluate(settings, read_tasks(found.tasks), found.warm_start)
    return found


def assert_every_update_changed_the_weights(run: Path, policy: Path) -> None:
    """Each step's gradient is not 0, and the last export differs from ``policy`` in every tensor."""
    import torch
    from safetensors.torch import load_file

    from rised.records.shards import RunReader

    reader = RunReader(run)
    gradients = {row["step"]: row["value"] for row in reader.metrics().to_pylist() if row["name"] == "gradient_norm"}
    assert gradients.keys() == set(reader.steps()) - {0} and all(gradients.values()), gradients
    exported = load_file(run / "checkpoints" / f"step-{max(gradients):06d}" / "model.safetensors")
    before = load_file(policy / "model.safetensors")
    assert before and all(not torch.equal(exported[name], tensor) for name, tensor in before.items())
