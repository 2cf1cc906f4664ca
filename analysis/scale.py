"""At what scale the runs were made, in a line that stands beside every number of ours."""

from __future__ import annotations

from pathlib import PurePosixPath

from analysis.names import environment_name
from analysis.panels import flat
from analysis.runs import Experiment

PUBLISHED = "published"
OURS = "this project"
SYNTHETIC = "SYNTHETIC runs"


def describe(experiment: Experiment) -> str:
    """Policy, updates, rollouts and synthetic environments, from the runs' configuration."""
    parts = [
        f"policy {policy_name(experiment)}",
        f"{max((run.last_step for run in experiment.runs), default=0)} updates",
    ]
    groups = rollouts_per_update(experiment)
    if groups:
        parts.append(groups)
    synthetic = synthetic_environments(experiment)
    if synthetic:
        parts.append(f"synthetic tasks in {', '.join(map(environment_name, synthetic))}")
    label = f"{SYNTHETIC}, no result" if is_synthetic(experiment) else OURS
    return f"{label}, not the paper's scale: {'; '.join(parts)}"


def is_synthetic(experiment: Experiment) -> bool:
    """Whether any run was made up: its header says so."""
    return any(run.header.get("synthetic") is True for run in experiment.runs)


def policy_name(experiment: Experiment) -> str:
    """The folder name of the policy that the runs started from."""
    for run in experiment.runs:
        path = flat(run.config).get("model.path")
        if isinstance(path, str):
            return PurePosixPath(path).name
    return "not named in the configuration"


def rollouts_per_update(experiment: Experiment) -> str:
    """For example "6 to 12 prompt groups of 8 rollouts an update"; empty where the configuration does not say."""
    counts, sizes = set(), set()
    for run in experiment.runs:
        entries = flat(run.config)
        count, size = entries.get("method.candidate_groups"), entries.get("rollouts_per_group")
        if isinstance(count, int) and isinstance(size, int):
            counts.add(count)
            sizes.add(size)
    if not counts:
        return ""
    span = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"{span} prompt groups of {' or '.join(map(str, sorted(sizes)))} rollouts an update"


def synthetic_environments(experiment: Experiment) -> list[str]:
    """Environments whose tasks are generated (their setting ``source`` says so)."""
    found = set()
    for run in experiment.runs:
        for key, value in flat(run.config).items():
            parts = key.split(".")
            if parts[0] == "environments" and parts[2:] == ["settings", "source"] and value == "generated":
                found.add(parts[1])
    return sorted(found)
