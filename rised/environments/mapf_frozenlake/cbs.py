"""Conflict-Based Search (Sharon et al. 2015): paths of all agents with the least sum of costs.

An agent's cost is the time step at which it arrives at its goal for good; where it waits before counts, resting there
afterwards does not. *Optimal* means the least sum of these costs over all agents, the objective of the original
algorithm. [ours: the source does not say which objective its optimal rate has]

The work is bounded by a number of expanded nodes, not by a clock, so that a panel of tasks does not depend on the
machine that prepares it. A search that comes to its limit says so; it never calls an instance unsolvable for that.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rised.environments.mapf_frozenlake.grid import Cell, Cells, Grid, Instance, first_conflict
from rised.environments.mapf_frozenlake.space_time import Constraint, Traffic, padded, shortest_path

DEFAULT_NODE_LIMIT = 500
FEASIBILITY_AFTER = 64
"""Nodes after which it is asked whether any plan exists: without one the search itself would never end."""
MAX_JOINT_STATES = 60_000
"""Placements of all agents up to which that question is answered."""


class Outcome(StrEnum):
    """How a search ended."""

    OPTIMAL = "optimal"
    """A plan was found and none costs less."""
    UNSOLVABLE = "unsolvable"
    """There is no plan; with a ``cost_limit``, none of at most that cost."""
    LIMIT = "limit"
    """The limit of expanded nodes was reached: nothing is known."""


@dataclass(frozen=True, slots=True)
class Solution:
    """``paths``: cells of each agent from time 0 to the last arrival, all of one length; empty unless optimal."""

    outcome: Outcome
    paths: tuple[Cells, ...]
    cost: int
    expanded: int

    @property
    def makespan(self) -> int:
        """Time steps until the last agent has arrived."""
        return len(self.paths[0]) - 1 if self.paths else 0


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of the constraint tree: one constraint more than its parent, and the path that it changed."""

    parent: _Node | None
    agent: int
    constraint: Constraint | None
    paths: tuple[Cells, ...]

    def constraints(self, agent: int) -> set[Constraint]:
        found, node = set(), self
        while node.parent is not None:
            if node.agent == agent and node.constraint is not None:
                found.add(node.constraint)
            node = node.parent
        return found


def solve(
    instance: Instance, node_limit: int = DEFAULT_NODE_LIMIT, waits: bool = True, cost_limit: int | None = None
) -> Solution:
    """The cheapest plan. ``waits`` False: no agent may stand still before it has arrived for good.

    ``cost_limit``: plans that cost more are not looked for; with it the search always ends by itself. Equal input gives
    equal output.
    """
    grid, goals = instance.grid, instance.goals
    distances = [grid.distances(goal) for goal in goals]
    budget = math.inf if cost_limit is None else cost_limit

    def path(agent: int, constraints: set[Constraint], others: Sequence[Cells]) -> Cells | None:
        start, goal = instance.starts[agent], goals[agent]
        return shortest_path(grid, start, goal, distances[agent], constraints, Traffic(others), waits)

    first: list[Cells] = []
    for agent in range(len(goals)):
        found = path(agent, set(), first)
        if found is None:
            return Solution(Outcome.UNSOLVABLE, (), 0, 0)
        first.append(found)
    tree: list[tuple[int, int, int, _Node]] = []
    born = expanded = 0

    def add(node: _Node) -> None:
        nonlocal born
        cost = sum(len(steps) - 1 for steps in node.paths)
        if cost <= budget:
            heapq.heappush(tree, (cost, conflict_count(node.paths), born, node))
            born += 1

    add(_Node(None, 0, None, tuple(first)))
    while tree:
        cost, conflicts, _, node = heapq.heappop(tree)
        if conflicts == 0:
            return Solution(Outcome.OPTIMAL, padded(node.paths), cost, expanded)
        if expanded == node_limit:
            return Solution(Outcome.LIMIT, (), 0, expanded)
        if expanded == FEASIBILITY_AFTER and cost_limit is None and waits and feasible(instance) is False:
            return Solution(Outcome.UNSOLVABLE, (), 0, expanded)
        expanded += 1
        for agent, constraint in _split(node.paths):
            others = [*node.paths[:agent], *node.paths[agent + 1 :]]
            found = path(agent, node.constraints(agent) | {constraint}, others)
            if found is not None:
                add(_Node(node, agent, constraint, (*node.paths[:agent], found, *node.paths[agent + 1 :])))
    return Solution(Outcome.UNSOLVABLE, (), 0, expanded)


def _steps(paths: Sequence[Cells]) -> Iterator[tuple[int, Cells, Cells]]:
    """(time of arrival, cells before, cells after) of each joint move."""
    cells = list(zip(*padded(paths), strict=True))
    yield from ((time + 1, before, after) for time, (before, after) in enumerate(zip(cells, cells[1:], strict=False)))


def conflict_count(paths: Sequence[Cells]) -> int:
    """Pairs of agents that conflict, counted once for each time step."""
    count = 0
    for _, before, after in _steps(paths):
        for one in range(len(after)):
            for other in range(one):
                meet = after[one] == after[other]
                count += meet or (after[one] == before[other] and after[other] == before[one])
    return count


def _split(paths: Sequence[Cells]) -> Iterator[tuple[int, Constraint]]:
    """The earliest conflict as one constraint for each of its two agents."""
    for time, before, after in _steps(paths):
        pair = first_conflict(before, after)
        if pair:
            for agent in pair:
                entered_from = None if after[pair[0]] == after[pair[1]] else before[agent]
                yield agent, Constraint(time, after[agent], entered_from)
            return


def feasible(instance: Instance) -> bool | None:
    """Whether any plan exists, by breadth-first search over the agents' placements; None where there are too many."""
    grid, count = instance.grid, len(instance.goals)
    if math.perm(len(grid.free), count) > MAX_JOINT_STATES:
        return None
    seen, frontier = {instance.starts}, [instance.starts]
    while frontier:
        if instance.goals in seen:
            return True
        found = []
        for cells in frontier:
            for after in _joint_moves(grid, cells):
                if after not in seen:
                    seen.add(after)
                    found.append(after)
        frontier = found
    return instance.goals in seen


def _joint_moves(grid: Grid, cells: Cells) -> Iterator[Cells]:
    """Every placement that one joint move without breach leads to; agents are placed one after the other."""
    chosen: list[Cells] = [()]
    for agent, cell in enumerate(cells):
        options: tuple[Cell, ...] = (cell, *grid.neighbours[cell])
        chosen = [
            (*ends, end)
            for ends in chosen
            for end in options
            if end not in ends and not (end in cells[:agent] and ends[cells.index(end)] == cell)
        ]
    yield from chosen
