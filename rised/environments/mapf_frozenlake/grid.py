"""Square maps with holes, the moves on them, and what one joint move of all agents does.

A cell is a number, row * size + column, counted from the top left; positions and moves of several agents are tuples in
the agents' order. The rules are those of multi-agent path finding (Stern et al. 2019): all agents move at once, two of
them may neither meet on a cell nor exchange their cells; following, and rotating in a ring, is allowed.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

Cell = int
Cells = tuple[Cell, ...]

MOVES: dict[str, tuple[int, int]] = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1), "w": (0, 0)}
"""Letter -> (rows, columns) by which it moves; ``w`` waits."""
WAIT = "w"


class Breach(StrEnum):
    """What is wrong with a joint move. The order is that of precedence [ours]."""

    ILLEGAL_MOVE = "illegal_move"
    """An agent leaves the map."""
    HOLE = "hole"
    """An agent enters a hole."""
    CONFLICT = "conflict"
    """Two agents meet on a cell, or exchange their cells."""


@dataclass(frozen=True)
class Grid:
    """A map of ``size`` x ``size`` cells, those of ``holes`` deadly."""

    size: int
    holes: frozenset[Cell]

    @cached_property
    def free(self) -> Cells:
        """The cells without a hole, ascending."""
        return tuple(cell for cell in range(self.size**2) if cell not in self.holes)

    @cached_property
    def neighbours(self) -> tuple[Cells, ...]:
        """For each cell the free cells one move away, in the order of :data:`MOVES`, the cell itself not among them."""
        found = []
        for cell in range(self.size**2):
            ends = (self.target(cell, letter) for letter in MOVES if letter != WAIT)
            found.append(tuple(end for end in ends if end is not None and end not in self.holes))
        return tuple(found)

    def target(self, cell: Cell, letter: str) -> Cell | None:
        """Where a move leads, a hole included; None outside of the map."""
        down, right = MOVES[letter]
        row, column = cell // self.size + down, cell % self.size + right
        return row * self.size + column if 0 <= row < self.size and 0 <= column < self.size else None

    def distances(self, goal: Cell) -> dict[Cell, int]:
        """Moves from each cell that reaches ``goal`` past the holes, other agents aside."""
        found, queue = {goal: 0}, deque([goal])
        while queue:
            cell = queue.popleft()
            for end in self.neighbours[cell]:
                if end not in found:
                    found[end] = found[cell] + 1
                    queue.append(end)
        return found

    def rows(self) -> list[str]:
        """The map as text, one row a string: ``.`` ice, ``H`` hole."""
        marks = ["H" if cell in self.holes else "." for cell in range(self.size**2)]
        return ["".join(marks[row * self.size : (row + 1) * self.size]) for row in range(self.size)]

    @classmethod
    def of_rows(cls, rows: Sequence[str]) -> Grid:
        """The map that :meth:`rows` wrote. ValueError if it is not square or has other marks."""
        if any(len(row) != len(rows) for row in rows) or set("".join(rows)) - {".", "H"}:
            raise ValueError(f"{rows!r} is no square map of '.' and 'H'")
        return cls(len(rows), frozenset(i for i, mark in enumerate("".join(rows)) if mark == "H"))


@dataclass(frozen=True)
class Instance:
    """A map and where each agent starts and has to arrive. Starts are distinct, and so are goals."""

    grid: Grid
    starts: Cells
    goals: Cells

    @property
    def content_hash(self) -> str:
        """SHA-256 (hex), equal for instances that differ by a turn or reflection of the map or by the agents' order."""
        size = self.grid.size
        forms = []
        for flip in range(8):

            def seen(cell: Cell, flip: int = flip) -> Cell:
                row, column = divmod(cell, size)
                row, column = (size - 1 - row if flip & 1 else row), (size - 1 - column if flip & 2 else column)
                return column * size + row if flip & 4 else row * size + column

            agents = sorted((seen(start), seen(goal)) for start, goal in zip(self.starts, self.goals, strict=True))
            forms.append((sorted(map(seen, self.grid.holes)), agents))
        return hashlib.sha256(f"mapf_frozenlake/{size}/{min(forms)}".encode()).hexdigest()


def joint_move(grid: Grid, cells: Cells, letters: Sequence[str]) -> Cells | tuple[Breach, tuple[int, ...]]:
    """Where all agents stand after one joint move, or the breach of rules with the agents that are to blame for it."""
    targets = [grid.target(cell, letter) for cell, letter in zip(cells, letters, strict=True)]
    outside = tuple(agent for agent, target in enumerate(targets) if target is None)
    if outside:
        return Breach.ILLEGAL_MOVE, outside
    ends = tuple(target for target in targets if target is not None)
    fallen = tuple(agent for agent, end in enumerate(ends) if end in grid.holes)
    if fallen:
        return Breach.HOLE, fallen
    pair = first_conflict(cells, ends)
    return (Breach.CONFLICT, pair) if pair else ends


def first_conflict(before: Cells, after: Cells) -> tuple[int, int] | None:
    """The first two agents that meet on a cell or exchange their cells in one joint move."""
    for one in range(len(after)):
        for other in range(one + 1, len(after)):
            meet = after[one] == after[other]
            if meet or (after[one] == before[other] and after[other] == before[one]):
                return one, other
    return None


def letters_of(grid: Grid, paths: Sequence[Cells]) -> list[str]:
    """The joint moves, one string of letters a time step, of one path of cells per agent, all of one length."""
    steps = []
    for before, after in zip(zip(*paths, strict=True), list(zip(*paths, strict=True))[1:], strict=False):
        steps.append("".join(_letter(grid, start, end) for start, end in zip(before, after, strict=True)))
    return steps


def _letter(grid: Grid, start: Cell, end: Cell) -> str:
    return next(letter for letter in MOVES if grid.target(start, letter) == end)


def sum_of_costs(trail: Iterable[Cells], goals: Cells) -> int:
    """Sum over the agents of the time step at which each arrived at its goal for good.

    ``trail``: the agents' cells at each time step from 0 on, ending with all agents on their goals.
    """
    arrived = [0] * len(goals)
    for time, cells in enumerate(trail):
        for agent, cell in enumerate(cells):
            if cell != goals[agent]:
                arrived[agent] = time + 1
    return sum(arrived)
