"""The protocol behind which every environment stands, and the registry that names them.

An environment knows its rules, its observations and its own prompt; it knows nothing of models, tokens or rubrics.
Everything random in an episode follows from the task and the seed given to ``reset``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


class EnvironmentFault(RuntimeError):
    """The environment itself failed (bad data, dead engine). Never raised for a bad action of the policy."""


@dataclass(frozen=True, slots=True)
class Task:
    """One row of tasks.parquet. ``payload`` is all that the environment needs to build the episode."""

    environment: str
    split: str
    task_id: str
    seed: int
    payload: dict[str, Any]
    content_hash: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one action did.

    ``action_mapped`` is what was really executed (equal to the normalised raw action, or the nearest admissible
    one), ``action_valid`` whether the environment accepted it. ``reward`` and ``success`` are set when ``done``.
    ``stop`` names the environment's reason when ``done`` ("environment_done", "repeated_output", "invalid_format").
    ``info`` is the environment's own log of the step, JSON-serialisable, read by rubric detectors.
    """

    observation: str
    done: bool
    action_mapped: str
    action_valid: bool
    reward: float | None = None
    success: bool | None = None
    stop: str | None = None
    info: dict[str, Any] = field(default_factory=dict)


class Environment(Protocol):
    """One episode at a time; ``reset`` may be called again and again on the same object."""

    def system_prompt(self) -> str:
        """The instructions of the configured prompt style (derived from the action grammar)."""
        ...

    def reset(self, task: Task, seed: int) -> str:
        """Start ``task`` and return the first observation, which contains the task statement."""
        ...

    def step(self, action: str) -> StepResult:
        """Execute one reply of the policy."""
        ...

    def expert(self, seed: int, noise: float) -> Iterator[str]:
        """Actions that solve the current episode, lazily, reading the live state.

        ``noise`` in [0, 1] is the chance of a wasteful or wrong action that the rest then recovers from;
        with noise 0 the replay ends with reward 1.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class Resting(Protocol):
    """An environment that holds something costly for a running episode may have this method too."""

    def rest(self) -> None:
        """The episode was given back, at its end or before it; the next call is ``reset`` or ``close``."""
        ...


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What the registry holds of an environment.

    ``settings_type``: pydantic model of the environment's own settings. ``make(settings)`` builds an
    :class:`Environment`. ``prepare(settings, split, count, seed)`` returns the split's tasks (generated, or
    loaded from the user's files). ``max_turns``: the benchmark's own limit. ``measures(infos)``: for a benchmark that
    measures more than success, name -> value of one episode from the logs of its turns; the metrics hold the mean of
    each over the episodes that have it. ``traits(task)``: what another task may have in common with this one without
    being the same, name in the plural -> value; how much of it panels share is printed. ``restore(settings)``: where
    ``prepare`` leaves files beside the tasks, writes those again that are missing or damaged.
    """

    name: str
    settings_type: type
    make: Callable[[Any], Environment]
    prepare: Callable[[Any, str, int, int], list[Task]]
    max_turns: int
    measures: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, float]] | None = None
    restore: Callable[[Any], object] | None = None
    traits: Callable[[Task], Mapping[str, Any]] | None = None

    def overlap(self, tasks: Sequence[Task], others: Sequence[Task]) -> dict[str, int]:
        """How many of ``tasks`` have content ("tasks") or a trait in common with one of ``others``; name -> count."""

        def traits(task: Task) -> dict[str, str]:
            found = self.traits(task) if self.traits is not None else {}
            return {"tasks": task.content_hash} | {name: repr(value) for name, value in found.items()}

        known = {trait for other in others for trait in traits(other).items()}
        shared = [[name for name, value in traits(task).items() if (name, value) in known] for task in tasks]
        names = dict.fromkeys(name for task in tasks for name in traits(task))
        return {name: sum(name in found for found in shared) for name in names}


ENVIRONMENTS: dict[str, EnvironmentSpec] = {}


def register(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Add an environment; a second one of the same name is a programming error."""
    if spec.name in ENVIRONMENTS:
        raise ValueError(f"environment {spec.name!r} is registered twice")
    ENVIRONMENTS[spec.name] = spec
    return spec
