"""AppWorld (arXiv 2407.18901): everyday tasks on simulated apps, carried out by writing Python code.

The engine runs in an interpreter of its own (``make appworld``) and its data are the user's download. Importing this
package starts and looks for neither.
"""

from __future__ import annotations

from typing import Any

from rised.environments.appworld.settings import AppworldSettings
from rised.environments.base import Environment, EnvironmentSpec, Task, register

BASELINE_MAX_TURNS = 50
"""The step budget of the benchmark's baseline agent; the engine itself allows 1,000."""


def _make(settings: Any) -> Environment:
    from rised.environments.appworld.environment import AppworldEnvironment

    return AppworldEnvironment(settings)


def _prepare(settings: Any, split: str, count: int, seed: int) -> list[Task]:
    from rised.environments.appworld.tasks import prepare_tasks

    return prepare_tasks(settings, split, count, seed)


SPEC = register(
    EnvironmentSpec(
        name="appworld", settings_type=AppworldSettings, make=_make, prepare=_prepare, max_turns=BASELINE_MAX_TURNS
    )
)
