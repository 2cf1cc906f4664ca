"""Space-time A*: the shortest path of one agent under constraints, and how other agents' paths break its ties."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rised.environments.mapf_frozenlake.grid import Cell, Cells, Grid


class Constraint(NamedTuple):
    """An agent may not be on ``cell`` at ``time``, or with ``entered_from`` may not come there from that cell."""

    time: int
    cell: Cell
    entered_from: Cell | None = None


class Traffic:
    """Where other agents go. It decides between equally short paths only."""

    def __init__(self, paths: Sequence[Cells]) -> None:
        self._moves = list(zip(*padded(paths), strict=True)) if paths else []

    def conflicts(self, before: Cell, after: Cell, time: int) -> int:
        """How many of the paths a move that arrives at ``time`` conflicts with."""
        if not self._moves:
            return 0
        if time >= len(self._moves):
            return after in self._moves[-1]
        count = 0
        for here, there in zip(self._moves[time - 1], self._moves[time], strict=True):
            count += there == after or (there == before and here == after)
        return count


def padded(paths: Sequence[Cells]) -> tuple[Cells, ...]:
    """The paths made equally long by resting on the last cell."""
    longest = max(map(len, paths))
    return tuple(path + path[-1:] * (longest - len(path)) for path in paths)


def shortest_path(
    grid: Grid,
    start: Cell,
    goal: Cell,
    distances: Mapping[Cell, int],
    constraints: set[Constraint],
    traffic: Traffic,
    waits: bool = True,
) -> Cells | None:
    """Cells from ``start`` at time 0 to the final arrival at ``goal``; None if the constraints leave no path.

    ``distances``: of :meth:`Grid.distances` for the goal, the heuristic. The final arrival comes after the last
    constraint on the goal. ``waits`` False: every step before it leads to another cell.
    """
    if start not in distances:
        return None
    last = max((constraint.time for constraint in constraints), default=0)
    barred = [c.time for c in constraints if c.cell == goal and c.entered_from is None]
    earliest = 1 + max(barred, default=-1)
    horizon = last + len(grid.free)
    # f, conflicts so far, minus the time: of equal f the deeper first, since only its heuristic is still to be trusted
    queue: list[tuple[int, int, int, Cell]] = [(distances[start], 0, 0, start)]
    came: dict[tuple[Cell, int], tuple[int, Cell]] = {(start, 0): (0, start)}
    closed: set[tuple[Cell, int]] = set()
    while queue:
        _, conflicts, minus_time, cell = heapq.heappop(queue)
        time = -minus_time
        if (cell, time) in closed:
            continue
        closed.add((cell, time))
        if cell == goal and time >= earliest:
            return _trace(came, cell, time)
        if time == horizon:
            continue
        for end in (*grid.neighbours[cell], cell) if waits else grid.neighbours[cell]:
            state = (end, time + 1)
            if state in closed or _forbidden(constraints, time + 1, cell, end):
                continue
            met = conflicts + traffic.conflicts(cell, end, time + 1)
            if state not in came or met < came[state][0]:
                came[state] = (met, cell)
                heapq.heappush(queue, (time + 1 + distances[end], met, -(time + 1), end))
    return None


def _forbidden(constraints: set[Constraint], time: int, before: Cell, after: Cell) -> bool:
    return (time, after, None) in constraints or (time, after, before) in constraints


def _trace(came: Mapping[tuple[Cell, int], tuple[int, Cell]], cell: Cell, time: int) -> Cells:
    cells = [cell]
    while time:
        cell = came[cell, time][1]
        time -= 1
        cells.append(cell)
    return tuple(reversed(cells))
