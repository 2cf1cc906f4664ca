"""MAPF-FrozenLake (arXiv 2606.17682): several agents cross a frozen lake without falling into holes or colliding.

Published are the maps, the generator's knobs, that instances and optimal answers come from Conflict-Based Search, the
measures, and the numbers of agents; there is no code. Prompts, form of replies, reward and the definition of a wait
instance are [ours]. Importing this package registers the environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rised.environments.base import Environment, EnvironmentSpec, Task, register
from rised.environments.mapf_frozenlake.settings import MapfFrozenLakeSettings

MAX_TURNS = 20
"""No limit is published [ours]."""


def _make(settings: Any) -> Environment:
    from rised.environments.mapf_frozenlake.environment import MapfFrozenLakeEnvironment

    return MapfFrozenLakeEnvironment(settings)


def _prepare(settings: Any, split: str, count: int, seed: int) -> list[Task]:
    from rised.environments.mapf_frozenlake.generator import prepare

    return prepare(settings, split, count, seed)


def _measures(infos: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
    from rised.environments.mapf_frozenlake.measures import measures

    return measures(infos)


SPEC = register(
    EnvironmentSpec(
        name="mapf_frozenlake",
        settings_type=MapfFrozenLakeSettings,
        make=_make,
        prepare=_prepare,
        max_turns=MAX_TURNS,
        measures=_measures,
    )
)
