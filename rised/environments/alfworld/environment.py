"""ALFWorld behind the environment protocol: one episode, its rules of ending, and the log that detectors read.

``StepResult.info`` (names are the text's lower-case names, ``mug 1``):

==================== =================================================================================================
``event``            what the game did: goto, open, close, take, put, heat, cool, clean, slice, use, examine, look,
                     inventory, help, or ``nothing`` when the command was not admissible
``object``           the object that the event acted on, or null
``receptacle``       the receptacle that the event involved (for ``use``: null), or null
``verb``, ``named``  first word of the policy's action, and the entities it names, admissible or not
``readable``         the action (typing slips forgiven) has the form of one of the grammar's, possible here or not
``admissible``       the policy's own action was admissible (false when it was replaced or ignored)
``unobserved``       entities named in the action that no observation has shown so far
``location``         receptacle that the agent faces after the step, or null
``closed``           that receptacle is shut
``holding``          object carried after the step, or null
``visible``          objects lying open at the location after the step
``target_visible``   one of ``visible`` is of the goal's object type
``placed``           goal objects (in the required state) that lie in a goal receptacle, at most in one of them
``changed``          the carried object has undergone the goal's state change
``ready``            what the goal asks for at this point: ``search``, ``change``, ``place``, ``light`` or ``done``
``state``            digest of the game's state after the step: equal digests, equal states
``task``             first step only: type, object, receptacle, toggle, appliance, count; the room: ``receptacles``,
                     ``openable``, ``plausible`` (can hold the goal object); ``start`` (digest before the step) and
                     ``direct`` (turns of the direct plan from the start, knowing where everything is)
==================== =================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rised.environments.alfworld import expert, games, prompts
from rised.environments.alfworld.actions import action_text, map_faithful, map_normalised, normalised
from rised.environments.alfworld.engine import NOTHING_HAPPENS, State, Transition
from rised.environments.alfworld.grammar import load_grammar
from rised.environments.alfworld.settings import AlfworldSettings
from rised.environments.alfworld.world import ENTITY, View, World, kind
from rised.environments.base import EnvironmentFault, StepResult, Task

_EVENTS = {
    "gotolocation": "goto",
    "openobject": "open",
    "closeobject": "close",
    "pickupobject": "take",
    "putobject": "put",
    "heatobject": "heat",
    "coolobject": "cool",
    "cleanobject": "clean",
    "sliceobject": "slice",
    "toggleobject": "use",
    "examinereceptacle": "examine",
    "examineobject": "examine",
}


class Alfworld:
    """One episode at a time. The games it has loaded stay explored in the process (``cached_games``)."""

    def __init__(self, settings: AlfworldSettings) -> None:
        self.settings = settings
        self.grammar = load_grammar(settings.grammar)
        self._world: World | None = None

    def system_prompt(self) -> str:
        """Instructions of the configured style."""
        return prompts.system_prompt(self.settings.prompt_style, self.grammar)

    def reset(self, task: Task, seed: int) -> str:
        """Start a game. It has no randomness of its own: ``seed`` changes nothing."""
        self._world = games.load_world(task, self.settings)
        self.state: State = self.world.graph.initial
        self.turn = 0
        self.outputs: list[str] = []
        self.facing: str | None = None
        self.seen: dict[str, str] = {}
        self.looked_into: list[str] = []
        self.observed: set[str] = set(self.world.receptacles)
        self.done = False
        self._direct = len(expert.direct_plan(self))
        goal = games.goal_text(task)
        return prompts.first_observation(
            self.settings.prompt_style, self.world.graph.intro, goal, self.world.receptacles, list(self.state.commands)
        )

    @property
    def world(self) -> World:
        """The loaded game."""
        if self._world is None:
            raise EnvironmentFault("alfworld: step or expert called before reset")
        return self._world

    @property
    def view(self) -> View:
        """The current state in names."""
        return self.world.view(self.state)

    def step(self, action: str) -> StepResult:
        """Execute one reply."""
        world = self.world
        if self.done:
            raise EnvironmentFault("alfworld: step called after the episode ended; call reset")
        before = self.state
        admissible = list(before.commands)
        faithful = self.settings.mapping == "faithful"
        found = action_text(action, self.settings.prompt_style == "full", faithful)
        text = found or ""
        mapped = (map_faithful if faithful else map_normalised)(text, admissible)
        transition = world.graph.follow(before, mapped.text) if mapped.text in before.commands else None
        if transition is not None:
            self.state = transition.state
        self.turn += 1
        self.outputs.append(action)
        info = self._log(text, mapped.exact, transition, world.view(before))
        stop, won = ("invalid_format", False) if found is None else self._ending()
        self.done = stop is not None
        feedback = transition.feedback if transition is not None else NOTHING_HAPPENS
        return StepResult(
            observation=prompts.observation(self.settings.prompt_style, feedback, list(self.state.commands)),
            done=self.done,
            action_mapped=mapped.text,
            action_valid=transition is not None,
            reward=float(won) if self.done else None,
            success=won if self.done else None,
            stop=stop,
            info=info,
        )

    def expert(self, seed: int, noise: float) -> Iterator[str]:
        """See :mod:`.expert`."""
        return expert.replies(self, seed, noise)

    def close(self) -> None:
        """Forget the episode; explored games stay for the next one."""
        self._world = None

    def _ending(self) -> tuple[str | None, bool]:
        """AgentBench looks for repeated raw outputs before it looks at success."""
        limit = self.settings.repeat_limit
        if limit and len(self.outputs) > limit and len(set(self.outputs[-limit:])) == 1:
            return "repeated_output", False
        return ("environment_done", True) if self.state.won else (None, False)

    def _log(self, text: str, exact: bool, transition: Transition | None, before: View) -> dict[str, Any]:
        world, view = self.world, self.view
        named = ENTITY.findall(text.lower())
        unobserved = sorted({name for name in named if name not in self.observed})
        event, obj, place = self._event(transition)
        if event == "goto" or (event in ("open", "close", "examine") and place in view.at):
            self.facing = place
        if self.facing not in view.at:
            self.facing = view.at[0] if event == "goto" and view.at else None
        closed = self.facing is not None and world.is_closed(view, self.facing)
        visible = [] if self.facing is None or closed else list(view.contents.get(self.facing, ()))
        self.observed.update(visible)
        for name in visible:
            self.seen[name] = str(self.facing)
        if view.holding is not None:
            self.seen.pop(view.holding, None)
        if self.facing is not None and not closed and self.facing not in self.looked_into:
            self.looked_into.append(self.facing)
        words = text.lower().split()
        info: dict[str, Any] = {
            "event": event,
            "object": obj,
            "receptacle": place,
            "verb": words[0] if words else "",
            "named": named,
            "readable": exact or self.grammar.is_readable(normalised(text)),
            "admissible": exact,
            "unobserved": unobserved,
            "location": self.facing,
            "closed": closed,
            "holding": view.holding,
            "visible": visible,
            "target_visible": any(kind(name) == world.goal.object for name in visible),
            "placed": expert.placed_count(world, view),
            "changed": expert.is_changed(world, view, view.holding),
            "ready": "done" if self.state.won else expert.phase(world, view),
            "state": view.digest,
        }
        if self.turn == 1:
            info["task"] = self._task_log(before)
        return info

    def _event(self, transition: Transition | None) -> tuple[str, str | None, str | None]:
        """(event, object, receptacle) of a transition."""
        if transition is None:
            return "nothing", None, None
        names = self.world.graph.names
        arguments = [names[item] for item in transition.operator.arguments if item in names]
        objects = [name for name in arguments if name in self.world.objects]
        places = [name for name in arguments if name in self.world.receptacles]
        event = _EVENTS.get(transition.operator.action, transition.operator.action)
        place = None if event in ("use", "slice", "look", "inventory") or not places else places[-1]
        return event, objects[0] if objects else None, place

    def _task_log(self, before: View) -> dict[str, Any]:
        world, goal = self.world, self.world.goal
        return {
            "type": goal.task_type,
            "object": goal.object,
            "receptacle": goal.receptacle,
            "toggle": goal.toggle,
            "appliance": goal.appliance,
            "count": goal.count,
            "receptacles": list(world.receptacles),
            "openable": sorted(world.openable),
            "plausible": [place for place in world.receptacles if world.can_hold(place, f"{goal.object} 1")],
            "start": before.digest,
            "direct": self._direct,
        }
