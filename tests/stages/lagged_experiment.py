"""A small experiment with a lag whose every update changes the weights, so that it shows which played an episode."""

from __future__ import annotations

from pathlib import Path

import small_experiments
from small_experiments import SmallExperiment

from rised.records import faults
from rised.records.digest import reproducible_digest
from rised.records.shards import RunReader

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


def undisturbed_run(experiment: SmallExperiment, repository: Path, folder: Path, *overrides: str) -> list[str]:
    """Train ``folder/run`` in a process of its own; the names of all places that it offers to die at."""
    import pytest
    from test_resume import in_child

    def run() -> None:
        faults.arm(list_to=str(folder / "points"))
        experiment.train(folder / "run", "rised", *overrides)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        assert in_child(run) == 0
    return (folder / "points").read_text().splitlines()


def metric(run: Path, name: str) -> dict[int, float | None]:
    """step -> the metric's value."""
    return {row["step"]: row["value"] for row in RunReader(run).metrics().to_pylist() if row["name"] == name}


def assert_same_parts(run: Path, other: Path, *parts: str) -> None:
    """All files below ``parts`` of ``other`` are in ``run``, byte for byte."""
    found, expected = reproducible_digest(run), reproducible_digest(other)
    for part in parts:
        names = {name for name in expected if name.startswith(part)}
        assert names and {name: found.get(name) for name in names} == {name: expected[name] for name in names}, part
