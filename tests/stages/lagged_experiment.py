"""A small experiment with a lag whose every update changes the weights, so that it shows which played an episode."""

from __future__ import annotations

from pathlib import Path

import small_experiments
from small_experiments import SmallExperiment

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


def make_experiment(folder: Path, repository: Path, policy: Path, *overrides: str) -> SmallExperiment:
    """As :func:`small_experiments.make_experiment`."""
    return small_experiments.make_experiment(folder, repository, policy, "lagged", LAGGED, *overrides)
