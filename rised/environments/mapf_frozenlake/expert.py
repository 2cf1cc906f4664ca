"""An expert for MAPF-FrozenLake, the source of warm-start transcripts: the stored optimal plan in several replies.

With noise it strays, and then goes on with an optimal plan from where the agents are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rised.environments.mapf_frozenlake.cbs import Outcome, solve
from rised.environments.mapf_frozenlake.grid import MOVES, WAIT, Breach, Instance, joint_move, letters_of
from rised.environments.mapf_frozenlake.settings import MapfFrozenLakeSettings
from rised.environments.mapf_frozenlake.styles import write_reply

if TYPE_CHECKING:
    from rised.environments.mapf_frozenlake.environment import Play

MOST_STEPS = 4
"""Time steps in a reply, unless the plan is too long for the turns."""
TRIES = 20


def expert_replies(play: Play, settings: MapfFrozenLakeSettings, seed: int, noise: float) -> Iterator[str]:
    """Replies that bring every agent to its goal; without noise at the least cost.

    ``noise``: before each reply, the chance of a wasted one. With ``turns`` that is an unreadable reply (at most one
    in an episode), a step in which all wait, or one in which the agents stray without harm; with ``plan`` a first step
    in which all wait, since there is no second reply.
    """
    rng, style = random.Random(f"mapf-expert/{seed}"), settings.prompt_style
    plan = list(play.plan)
    idle = WAIT * len(play.instance.goals)
    if settings.play == "plan":
        wasteful = rng.random() < noise and len(plan) < settings.max_steps
        yield write_reply(style, [idle, *plan] if wasteful else plan)
        return
    room = settings.max_turns - 1
    while not play.done:
        spare = room - _replies_needed(len(plan)) > 0 and len(plan) + 2 < settings.max_steps - play.time
        if spare and rng.random() < noise:
            kind = rng.choice(("unreadable", "wait", "stray") if play.unreadable == 0 else ("wait", "stray"))
            if kind == "unreadable" and settings.unreadable_replies > 1:
                room -= 1
                yield rng.choice(("go", write_reply(style, [idle + WAIT])))
                continue
            strayed = _stray(play, settings, rng) if kind == "stray" else None
            letters, plan = strayed or (idle, plan)
            room -= 1
            yield write_reply(style, [letters])
            continue
        least = -(-len(plan) // max(1, room))
        count = max(least, rng.randint(1, MOST_STEPS))
        steps, plan = plan[:count], plan[count:]
        room -= 1
        yield write_reply(style, steps)


def _replies_needed(steps: int) -> int:
    return -(-steps // MOST_STEPS)


def _stray(play: Play, settings: MapfFrozenLakeSettings, rng: random.Random) -> tuple[str, list[str]] | None:
    """A harmless joint move and an optimal plan from where it leads; None if none of some random ones is any good."""
    grid, goals = play.instance.grid, play.instance.goals
    for _ in range(TRIES):
        letters = "".join(rng.choice(list(MOVES)) for _ in goals)
        after = joint_move(grid, play.cells, letters)
        if isinstance(after[0], Breach) or after == goals:
            continue
        solution = solve(Instance(grid, after, goals), settings.node_limit)
        if solution.outcome is Outcome.OPTIMAL and play.time + 2 + solution.makespan < settings.max_steps:
            return letters, letters_of(grid, solution.paths)
    return None
