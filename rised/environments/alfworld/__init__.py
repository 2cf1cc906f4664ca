"""ALFWorld: household tasks in text, on the real TextWorld engine. Importing this package loads no engine."""

from __future__ import annotations

from typing import Any

from rised.environments.alfworld.settings import AlfworldSettings
from rised.environments.base import Environment, EnvironmentSpec, Task, register

MAX_TURNS = 20
"""AgentBench's limit."""


def make(settings: AlfworldSettings) -> Environment:
    """An environment object of this process."""
    from rised.environments.alfworld.environment import Alfworld

    return Alfworld(settings)


def prepare(settings: AlfworldSettings, split: str, count: int, seed: int) -> list[Task]:
    """See :func:`rised.environments.alfworld.games.prepare`."""
    from rised.environments.alfworld import games

    return games.prepare(settings, split, count, seed)


def _traits(task: Task) -> dict[str, Any]:
    from rised.environments.alfworld import games

    return {"goals": games.goal_text(task), "errands in the same scene": games.errand(task.payload)}


SPEC = register(EnvironmentSpec("alfworld", AlfworldSettings, make, prepare, MAX_TURNS, traits=_traits))

__all__ = ["SPEC", "AlfworldSettings", "make", "prepare"]
