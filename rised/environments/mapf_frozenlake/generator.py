"""Draw instances, solve them, and pick those that a panel asks for. The model never writes instances [published].

A panel's tasks are shared out over the sizes by their data ratios, over the numbers of agents evenly, and over *wait*
instances and others by the wait ratio. A wait instance is one that has no optimal plan without a wait: in every plan of
least cost some agent stands still before it has arrived for good. That is decided by a second search that may not wait.
[ours: the source has wait subsets without their definition]
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rised.environments.base import EnvironmentFault, Task
from rised.environments.mapf_frozenlake.cbs import Outcome, Solution, solve
from rised.environments.mapf_frozenlake.grid import Cells, Grid, Instance, letters_of
from rised.environments.mapf_frozenlake.settings import MapfFrozenLakeSettings, MapKnobs, hole_count

NAME = "mapf_frozenlake"
VALIDATION_BYTES = 64
"""Instances whose content hash begins with a byte below this belong to validation, a quarter of all."""
DRAWS_PER_TASK = 2_000
SPLITS = ("train", "validation")


@dataclass(frozen=True, slots=True)
class SolvedInstance:
    """An instance with its optimal plan and whether every optimal plan waits."""

    instance: Instance
    solution: Solution
    wait: bool


def prepare(settings: MapfFrozenLakeSettings, split: str, count: int, seed: int) -> list[Task]:
    """``count`` different tasks, by size, then by number of agents, wait instances last.

    The content hash decides the split. EnvironmentFault names the size and the knob when there are not enough.
    """
    if split not in SPLITS:
        raise EnvironmentFault(f"MAPF-FrozenLake has no split {split!r}; use {' or '.join(SPLITS)}")
    training = split == "train"
    maps = settings.train_maps if training else settings.validation_maps
    agents = settings.train_agents if training else settings.validation_agents
    sizes = sorted((size for size, knobs in maps.items() if knobs.data), key=int)
    tasks: list[Task] = []
    for place, (size, share) in enumerate(zip(sizes, shares([maps[s].data for s in sizes], count), strict=True)):
        turned = [agents[(place + i) % len(agents)] for i in range(len(agents))]
        numbers = shares([1.0] * len(turned), share)
        waits = shares(numbers, round(maps[size].wait * share))
        for agent_count, number, wait in sorted(zip(turned, numbers, waits, strict=True)):
            draws = Draws(settings, split, int(size), maps[size], agent_count, seed)
            for chosen in draws.pick(number - wait, wait):
                tasks.append(_task(chosen, split, len(tasks), seed))
    return tasks


def shares(weights: Sequence[float], total: int) -> list[int]:
    """``total`` split by weight, remainders to the largest fractions, the first of equal ones; all 0 for no weight."""
    whole = sum(weights)
    if whole <= 0:
        return [0] * len(weights)
    exact = [total * weight / whole for weight in weights]
    counts = [int(value) for value in exact]
    by_rest = sorted(range(len(weights)), key=lambda i: (counts[i] - exact[i], i))
    for index in by_rest[: total - sum(counts)]:
        counts[index] += 1
    return counts


class Draws:
    """An endless seeded sequence of solved instances of one size and number of agents that belong to one split."""

    def __init__(
        self, settings: MapfFrozenLakeSettings, split: str, size: int, knobs: MapKnobs, agents: int, seed: int
    ) -> None:
        self._settings, self._split, self._size, self._agents = settings, split, size, agents
        self._holes = hole_count(size, knobs)
        self._rng = random.Random(f"{NAME}/{seed}/{size}/{self._holes}/{agents}")
        self._seen: set[str] = set()

    def pick(self, plain: int, wait: int) -> list[SolvedInstance]:
        """The first ``plain`` instances that need no wait and the first ``wait`` that do, in this order."""
        found: dict[bool, list[SolvedInstance]] = {False: [], True: []}
        wanted = {False: plain, True: wait}
        for _ in range(DRAWS_PER_TASK * (plain + wait)):
            if all(len(found[kind]) == wanted[kind] for kind in wanted):
                break
            drawn = self._draw()
            if drawn is not None and len(found[drawn.wait]) < wanted[drawn.wait]:
                found[drawn.wait].append(drawn)
        for kind, name in ((False, "no wait is needed"), (True, "a wait is needed")):
            if len(found[kind]) < wanted[kind]:
                raise EnvironmentFault(
                    f"MAPF-FrozenLake: {DRAWS_PER_TASK * (plain + wait)} draws of {self._size}x{self._size} maps with "
                    f"{self._holes} holes and {self._agents} agents gave {len(found[kind])} of {wanted[kind]} in which "
                    f"{name}; change {self._split}_maps.{self._size} (wait, holes, data) or ask for fewer tasks"
                )
        return [*found[False], *found[True]]

    def _draw(self) -> SolvedInstance | None:
        """The next draw; None if it is of the other split, known already, trivial, unsolvable, too long or too hard."""
        instance = self._instance()
        if any(start == goal for start, goal in zip(instance.starts, instance.goals, strict=True)):
            return None
        digest = instance.content_hash
        if (int(digest[:2], 16) < VALIDATION_BYTES) != (self._split == "validation") or digest in self._seen:
            return None
        self._seen.add(digest)
        solution = solve(instance, self._settings.node_limit)
        if solution.outcome is not Outcome.OPTIMAL or solution.makespan > self._settings.max_steps:
            return None
        wait = needs_wait(instance, solution, self._settings.node_limit)
        return None if wait is None else SolvedInstance(instance, solution, wait)

    def _instance(self) -> Instance:
        cells, rng = range(self._size**2), self._rng
        grid = Grid(self._size, frozenset(rng.sample(cells, self._holes)))
        starts, goals = (tuple(rng.sample(grid.free, self._agents)) for _ in range(2))
        return Instance(grid, starts, goals)


def needs_wait(instance: Instance, solution: Solution, node_limit: int) -> bool | None:
    """Whether every optimal plan has a wait before an arrival; None if the search that tells comes to its limit."""
    if not any(waits_before_arrival(path) for path in solution.paths):
        return False
    alone = sum(instance.grid.distances(g)[s] for s, g in zip(instance.starts, instance.goals, strict=True))
    if (solution.cost - alone) % 2:
        return True  # a path without waits has the parity of the shortest one: the map is a chessboard
    without = solve(instance, node_limit, waits=False, cost_limit=solution.cost)
    return None if without.outcome is Outcome.LIMIT else without.outcome is Outcome.UNSOLVABLE


def waits_before_arrival(path: Cells) -> int:
    """Time steps in which an agent stands still before it has arrived for good."""
    arrival = next((time + 1 for time in reversed(range(len(path))) if path[time] != path[-1]), 0)
    return sum(path[time] == path[time + 1] for time in range(arrival))


def _task(chosen: SolvedInstance, split: str, index: int, seed: int) -> Task:
    digest = chosen.instance.content_hash
    payload = {
        **instance_payload(chosen.instance),
        "wait": chosen.wait,
        "optimal_cost": chosen.solution.cost,
        "plan": letters_of(chosen.instance.grid, chosen.solution.paths),
    }
    return Task(NAME, split, f"{NAME}-{split}-{index:05d}-{digest[:8]}", seed, payload, digest)


def instance_payload(instance: Instance) -> dict[str, Any]:
    """The instance as JSON: rows of the map, starts and goals as [row, column] from the top left, counted from 0."""

    def places(cells: Cells) -> list[list[int]]:
        return [list(divmod(cell, instance.grid.size)) for cell in cells]

    return {"map": instance.grid.rows(), "starts": places(instance.starts), "goals": places(instance.goals)}


def read_instance(payload: dict[str, Any]) -> Instance:
    """What :func:`instance_payload` wrote. KeyError or ValueError if it is none."""
    grid = Grid.of_rows(payload["map"])

    def cells(places: Sequence[Sequence[int]]) -> Iterator[int]:
        for row, column in places:
            cell = row * grid.size + column
            if not (0 <= row < grid.size and 0 <= column < grid.size) or cell in grid.holes:
                raise ValueError(f"[{row}, {column}] is no cell of ice")
            yield cell

    starts, goals = tuple(cells(payload["starts"])), tuple(cells(payload["goals"]))
    if not starts or len(starts) != len(goals) or len(set(starts)) < len(starts) or len(set(goals)) < len(goals):
        raise ValueError("starts and goals must be distinct, one of each for every agent")
    return Instance(grid, starts, goals)
