"""Settings of MAPF-FrozenLake: the generator's knobs for each size of map, who plays, how replies are given and scored.

Only declarations live here; nothing of the solver is imported.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from rised.config.settings import Settings, strict

SIZES = tuple(range(3, 11))
"""Sizes of maps [published]."""
MAX_AGENTS = 10


class MapKnobs(Settings):
    """What the generator makes of the maps of one size [published knobs, values ours]."""

    data: float = strict(1.0, ge=0, description="data ratio: weight of this size in the panel, relative to the others")
    holes: float = strict(0.2, ge=0, le=0.6, description="hole ratio: share of the cells that are holes")
    wait: float = strict(0.25, ge=0, le=1, description="wait ratio: share of instances whose every optimal plan waits")


def _all_sizes() -> dict[str, MapKnobs]:
    return {str(size): MapKnobs() for size in SIZES}


class MapfFrozenLakeSettings(Settings):
    """MAPF-FrozenLake. Sizes, knobs and numbers of agents are published; prompts, replies and reward are ours."""

    prompt_style: Literal["compact", "full"] = strict(
        "compact", description="full: rules in words, replies of named moves; compact: few words, bare letters [ours]"
    )
    source: Literal["generated"] = strict("generated", description="where tasks come from: the generator alone")
    play: Literal["plan", "turns"] = strict(
        "turns",
        description="plan: the first reply is the whole plan; turns: a reply moves the agents on by one or several "
        "steps and then sees where they are [ours]",
    )
    train_agents: tuple[int, ...] = strict(
        (2,), min_length=1, description="numbers of agents of training tasks, in equal shares [published: 2]"
    )
    validation_agents: tuple[int, ...] = strict(
        (3, 4, 5), min_length=1, description="the same of validation tasks [published: 3, 4, 5]"
    )
    train_maps: dict[str, MapKnobs] = strict(
        _all_sizes(), description="size of map (3 to 10) to its knobs, for the training panel"
    )
    validation_maps: dict[str, MapKnobs] = strict(
        _all_sizes(),
        description="the same for the validation panel; knobs of its own keep evaluation fixed while training changes",
    )
    suboptimal_reward: float = strict(
        0.5, ge=0, le=1, description="reward of a valid plan that costs more than the optimum; the optimum has 1 [ours]"
    )
    max_steps: int = strict(64, ge=1, description="joint moves of an episode; no task's optimal plan is longer [ours]")
    unreadable_replies: int = strict(
        3, ge=1, description="so many unreadable replies end an episode as parse error (play: turns) [ours]"
    )
    max_turns: int = strict(20, ge=1, description="replies in which the expert must be done [ours]")
    node_limit: int = strict(
        500, ge=1, description="nodes that Conflict-Based Search may expand; harder instances are left out [ours]"
    )

    @model_validator(mode="after")
    def _maps_have_room(self) -> Self:
        for field, counts, maps in (
            ("train", self.train_agents, self.train_maps),
            ("validation", self.validation_agents, self.validation_maps),
        ):
            if min(counts) < 1 or max(counts) > MAX_AGENTS or len(set(counts)) < len(counts):
                raise ValueError(f"{field}_agents: different numbers from 1 to {MAX_AGENTS} are expected, not {counts}")
            unknown = sorted(set(maps) - {str(size) for size in SIZES})
            if unknown:
                raise ValueError(f"{field}_maps: sizes are {SIZES[0]} to {SIZES[-1]}, not {', '.join(unknown)}")
            if not any(knobs.data for knobs in maps.values()):
                raise ValueError(f"{field}_maps: every data ratio is 0; give at least one size a weight")
            for size, knobs in maps.items():
                free = int(size) ** 2 - hole_count(int(size), knobs)
                if knobs.data and free <= max(counts):
                    raise ValueError(
                        f"{field}_maps.{size}: {free} cells without a hole leave {max(counts)} agents no room to move; "
                        f"lower its holes, set its data to 0, or lower {field}_agents"
                    )
        return self


def hole_count(size: int, knobs: MapKnobs) -> int:
    """Holes of each map of a size."""
    return round(knobs.holes * size**2)
