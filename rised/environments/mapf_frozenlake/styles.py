"""What an episode says and how a reply is read, in both prompt styles. All wording and forms of replies are [ours].

Places are row and column from the top left, counted from 0; agents are a, b, c, … in the task's order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rised.environments.mapf_frozenlake.grid import MOVES, Breach, Cells, Instance
from rised.environments.mapf_frozenlake.settings import MapfFrozenLakeSettings
from rised.environments.thinking import without_thinking

COMPACT_SYSTEM = """\
bring each agent to its goal, never into a hole H, off the map, onto or through another agent.
one letter per agent: u d l r w. {turns}"""

FULL_SYSTEM = """\
You guide several agents over a frozen lake. The map is a square of cells: '.' is ice and 'H' is a hole. Rows are \
counted from 0 at the top, columns from 0 at the left.

In each time step every agent makes one move, all at once: U (up), D (down), L (left), R (right) or W (wait).
- No agent may leave the map or enter a hole.
- Two agents may not be on the same cell, and may not exchange their cells in one step.
- An agent may enter a cell that another one leaves in the same step.
A move against these rules ends the task as a failure. The task is done when all agents are on their goals at the same \
time; an agent may leave its goal again to make way.
The cost of a solution is the sum, over the agents, of the time step at which each arrives at its goal for good. \
Reach the goals at the least cost, within {max_steps} time steps.

{turns} End your reply with a line "Moves:" and then one line for each time step, which names the move of every agent \
in order, for example with three agents:
Moves:
A=R B=D C=W
A=R B=D C=L"""

TURNS = {
    ("compact", "plan"): "reply with all steps: {example}",
    ("compact", "turns"): "reply with one or more steps: {example}",
    ("full", "plan"): "Reply with the whole plan; there is one reply.",
    (
        "full",
        "turns",
    ): "Reply with the moves of one or several time steps; you then see where the agents are and go on.",
}
EXAMPLE = "rd rw"
BREACHES = {
    Breach.ILLEGAL_MOVE: "off the map",
    Breach.HOLE: "into a hole",
    Breach.CONFLICT: "collision",
}
UNREADABLE = {
    "compact": "unreadable",
    "full": 'That could not be read. End your reply with "Moves:" and one line for each time step that names a move of '
    "every agent.",
}

_HEAD = re.compile(r"^[ \t*#]*moves[ \t]*:[ \t*]*$", re.IGNORECASE | re.MULTILINE)
_NUMBERED = re.compile(r"^\d+[.):]\s+")


def agent_name(agent: int) -> str:
    """``a`` for the first."""
    return chr(ord("a") + agent)


def system_prompt(settings: MapfFrozenLakeSettings) -> str:
    """The rules in the settings' style."""
    turns = TURNS[settings.prompt_style, settings.play].format(example=EXAMPLE)
    if settings.prompt_style == "compact":
        return COMPACT_SYSTEM.format(turns=turns)
    return FULL_SYSTEM.format(turns=turns, max_steps=settings.max_steps)


def task_text(style: str, instance: Instance) -> str:
    """The map, and each agent's start and goal."""
    grid, lines = instance.grid, []
    if style == "compact":
        lines = grid.rows()
        for agent, (start, goal) in enumerate(zip(instance.starts, instance.goals, strict=True)):
            here, there = divmod(start, grid.size), divmod(goal, grid.size)
            lines.append(f"{agent_name(agent)} {here[0]} {here[1]} to {there[0]} {there[1]}")
        return "\n".join(lines)
    lines.append(f"The map, {grid.size} rows of {grid.size} columns:")
    lines.append("   " + " ".join(str(column) for column in range(grid.size)))
    lines += [f"{row}  {' '.join(cells)}" for row, cells in enumerate(grid.rows())]
    lines.append("The agents:")
    for agent, (start, goal) in enumerate(zip(instance.starts, instance.goals, strict=True)):
        name = agent_name(agent).upper()
        lines.append(f"{name} starts at {divmod(start, grid.size)}, goal {divmod(goal, grid.size)}")
    return "\n".join(lines)


def state_text(style: str, instance: Instance, cells: Cells, time: int) -> str:
    """Where the agents are after ``time`` steps."""
    grid, lines = instance.grid, [] if style == "compact" else [f"After {time} time steps:"]
    for agent, (cell, goal) in enumerate(zip(cells, instance.goals, strict=True)):
        (row, column), name = divmod(cell, grid.size), agent_name(agent)
        if style == "compact":
            lines.append(f"{name} {row} {column} home" if cell == goal else f"{name} {row} {column}")
        else:
            home = "at its goal" if cell == goal else f"goal {divmod(goal, grid.size)}"
            lines.append(f"{name.upper()} is at {row, column}, {home}")
    return "\n".join(lines)


def breach_text(breach: Breach, agents: Sequence[int], time: int) -> str:
    """Who broke which rule, in which time step."""
    return f"step {time}: {BREACHES[breach]}: {' and '.join(map(agent_name, agents))}"


def read_reply(style: str, reply: str, agents: int) -> list[str] | None:
    """The joint moves of a reply, a string of one letter per agent each; None if it is not of the style's form."""
    text = without_thinking(reply)
    steps = _named(text, agents) if style == "full" else text.lower().split()
    if not steps or any(len(step) != agents or set(step) - set(MOVES) for step in steps):
        return None
    return steps


def write_reply(style: str, steps: Sequence[str]) -> str:
    """Joint moves in the style's form."""
    if style == "compact":
        return " ".join(steps)
    lines = [" ".join(f"{agent_name(a)}={move}".upper() for a, move in enumerate(step)) for step in steps]
    return "\n".join(["Moves:", *lines])


def _named(text: str, agents: int) -> list[str]:
    """The lines behind the last ``Moves:``, fences and blank lines aside; "" stands for one that is not of the form."""
    heads = list(_HEAD.finditer(text))
    if not heads:
        return []
    found = []
    for line in text[heads[-1].end() :].splitlines():
        line = _NUMBERED.sub("", line.strip())
        if not line or line.startswith("```"):
            continue
        pairs = re.findall(r"([a-z])\s*=\s*([a-z])\b", line.lower())
        rest = re.sub(r"[a-z]\s*=\s*[a-z]\b|[\s,;]", "", line.lower())
        in_order = [name for name, _ in pairs] == [agent_name(agent) for agent in range(agents)]
        found.append("".join(move for _, move in pairs) if in_order and not rest else "")
    return found
