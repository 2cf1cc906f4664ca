"""DBBench (AgentBench): questions and changes that a policy carries out with SQL on a table.

Importing this package registers the environment; engine and parser are imported when one is made.
"""

from __future__ import annotations

from typing import Any

from rised.environments.base import Environment, EnvironmentSpec, Task, register
from rised.environments.dbbench.settings import DbbenchSettings

AGENTBENCH_MAX_TURNS = 20


def _make(settings: Any) -> Environment:
    from rised.environments.dbbench.environment import DbbenchEnvironment

    return DbbenchEnvironment(settings)


def _prepare(settings: Any, split: str, count: int, seed: int) -> list[Task]:
    from rised.environments.dbbench.tasks import prepare_tasks

    return prepare_tasks(settings, split, count, seed)


def _traits(task: Task) -> dict[str, Any]:
    tables = task.payload["table"]
    schemas = [(t["table_name"], *(column["name"] for column in t["table_info"]["columns"])) for t in tables]
    return {"questions": task.payload["description"], "schemas": schemas}


SPEC = register(
    EnvironmentSpec(
        name="dbbench",
        settings_type=DbbenchSettings,
        make=_make,
        prepare=_prepare,
        max_turns=AGENTBENCH_MAX_TURNS,
        traits=_traits,
    )
)
