"""MAPF-FrozenLake's episode: joint moves until all agents are on their goals, or until one breaks the rules.

A reply holds the joint moves of one or several time steps. They are carried out one after the other; the first that
breaks a rule ends the episode, as it would make a whole plan invalid, and so does the arrival of all agents. Success is
a *valid* plan: all goals reached without a breach. Its reward is 1 at the optimal sum of costs, else
``suboptimal_reward``; a failure has 0. [ours]

``StepResult.info`` of every turn, all JSON values, for reports (see :mod:`.measures`):

- ``size``, ``agents``, ``wait`` (a wait instance), ``optimal_cost``
- ``reply``: moves or unreadable; ``moves``: joint moves carried out by it; ``unused_moves``: those behind the end
- ``time``: time steps so far; ``positions``: [row, column] of each agent
- ``failure``: why the episode is no valid plan as it stands, one of :data:`FAILURES`; None for a valid one. An episode
  that goes on is ``not_finished``, or ``parse_error`` while its last reply could not be read: as which it counts if it
  is cut there
- ``agents_to_blame``: agents that broke the rule; ``cost``: sum of costs of a valid plan, else None
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rised.environments.base import EnvironmentFault, StepResult, Task
from rised.environments.mapf_frozenlake.expert import expert_replies
from rised.environments.mapf_frozenlake.generator import read_instance
from rised.environments.mapf_frozenlake.grid import Breach, Cells, Instance, joint_move, sum_of_costs
from rised.environments.mapf_frozenlake.settings import MapfFrozenLakeSettings
from rised.environments.mapf_frozenlake.styles import (
    UNREADABLE,
    breach_text,
    read_reply,
    state_text,
    system_prompt,
    task_text,
)

PARSE_ERROR, NOT_FINISHED = "parse_error", "not_finished"
FAILURES = (PARSE_ERROR, *(breach.value for breach in Breach), NOT_FINISHED)
"""Kinds of failure: the published breakdown, and plans that end before all agents have arrived [ours]."""


@dataclass(slots=True)
class Play:
    """The running episode. ``trail``: the agents' cells at each time step from 0 on."""

    instance: Instance
    wait: bool
    optimal_cost: int
    plan: tuple[str, ...]
    trail: list[Cells] = field(default_factory=list)
    unreadable: int = 0
    done: bool = False

    @property
    def cells(self) -> Cells:
        return self.trail[-1]

    @property
    def time(self) -> int:
        return len(self.trail) - 1

    @property
    def arrived(self) -> bool:
        return self.cells == self.instance.goals


class MapfFrozenLakeEnvironment:
    """One episode at a time. Nothing of it is random: ``seed`` has no effect."""

    def __init__(self, settings: MapfFrozenLakeSettings) -> None:
        self._settings = settings
        self._play: Play | None = None

    @property
    def play(self) -> Play:
        """The live episode; EnvironmentFault before the first reset."""
        if self._play is None:
            raise EnvironmentFault("MAPF-FrozenLake: no episode is running; call reset first")
        return self._play

    def system_prompt(self) -> str:
        return system_prompt(self._settings)

    def reset(self, task: Task, seed: int) -> str:
        """Put the agents on their starts; EnvironmentFault says what is wrong with a task's payload."""
        payload = task.payload
        try:
            instance = read_instance(payload)
            self._play = Play(instance, payload["wait"], payload["optimal_cost"], tuple(payload["plan"]))
        except (KeyError, TypeError, ValueError) as error:
            raise EnvironmentFault(
                f"MAPF-FrozenLake task {task.task_id}: the payload is no instance with its optimal plan "
                f"({error!r}); prepare the tasks again"
            ) from error
        self._play.trail.append(instance.starts)
        return task_text(self._settings.prompt_style, instance)

    def step(self, action: str) -> StepResult:
        """Carry out one reply; EnvironmentFault after the end."""
        play, style = self.play, self._settings.prompt_style
        if play.done:
            raise EnvironmentFault("MAPF-FrozenLake: the episode is over; call reset before step")
        steps = read_reply(style, action, len(play.instance.goals))
        if steps is None:
            play.unreadable += 1
            ends = self._settings.play == "plan" or play.unreadable >= self._settings.unreadable_replies
            info = self._info("unreadable", 0, 0, PARSE_ERROR)
            return self._end(UNREADABLE[style], "", info) if ends else self._go_on(UNREADABLE[style], "", info)
        carried_out: list[str] = []
        for letters in steps:
            after = joint_move(play.instance.grid, play.cells, letters)
            if isinstance(after[0], Breach):
                breach, agents = after
                info = self._info("moves", len(carried_out), len(steps) - len(carried_out), breach.value)
                info["agents_to_blame"] = list(agents)
                return self._end(breach_text(breach, agents, play.time + 1), " ".join(carried_out), info)
            play.trail.append(after)
            carried_out.append(letters)
            if play.arrived or play.time == self._settings.max_steps:
                break
        unused, mapped = len(steps) - len(carried_out), " ".join(carried_out)
        info = self._info("moves", len(carried_out), unused, None if play.arrived else NOT_FINISHED)
        if play.arrived or play.time == self._settings.max_steps or self._settings.play == "plan":
            return self._end("done" if play.arrived else "not finished", mapped, info)
        return self._go_on(state_text(style, play.instance, play.cells, play.time), mapped, info)

    def _info(self, reply: str, moves: int, unused: int, failure: str | None) -> dict[str, Any]:
        play = self.play
        size = play.instance.grid.size
        return {
            "size": size,
            "agents": len(play.instance.goals),
            "wait": play.wait,
            "optimal_cost": play.optimal_cost,
            "reply": reply,
            "moves": moves,
            "unused_moves": unused,
            "time": play.time,
            "positions": [list(divmod(cell, size)) for cell in play.cells],
            "failure": failure,
            "agents_to_blame": [],
            "cost": sum_of_costs(play.trail, play.instance.goals) if failure is None else None,
        }

    def _go_on(self, observation: str, mapped: str, info: dict[str, Any]) -> StepResult:
        return StepResult(observation, False, mapped, info["reply"] == "moves", info=info)

    def _end(self, observation: str, mapped: str, info: dict[str, Any]) -> StepResult:
        self.play.done = True
        failure = info["failure"]
        reward = 0.0
        if failure is None:
            reward = 1.0 if info["cost"] == info["optimal_cost"] else self._settings.suboptimal_reward
        stop = "invalid_format" if failure == PARSE_ERROR else "environment_done"
        valid = failure in (None, NOT_FINISHED)
        return StepResult(observation, True, mapped, valid, reward, failure is None, stop, info)

    def expert(self, seed: int, noise: float) -> Iterator[str]:
        """See :func:`rised.environments.mapf_frozenlake.expert.expert_replies`."""
        return expert_replies(self.play, self._settings, seed, noise)

    def close(self) -> None:
        self._play = None
