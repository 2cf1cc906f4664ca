"""An expert that searches like a person and then carries the task out [ours].

It knows what it has been shown. Unknown objects are looked for receptacle by receptacle, plausible ones first, in the
order of the room from a drawn start; only when the remaining turns would not allow another look does it use the true
places. So with ``noise`` 0 it ends with success whenever the direct plan fits in the turns. ``noise`` is the chance,
before each action, of a wasteful or impossible one, as long as the turns allow for it. Reactive: it reads the live
state, so foreign actions between its own do not derail it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rised.environments.alfworld import prompts
from rised.environments.alfworld.world import View, World, kind

if TYPE_CHECKING:
    from rised.environments.alfworld.environment import Alfworld

_LOOK_COST = 2
"""Turns that looking into one more receptacle may take (go, open)."""
_NOISE_COST = 3
"""Turns that a wasteful action and its repair may take."""


def is_changed(world: World, view: View, name: str | None) -> bool:
    """Whether an object has undergone the goal's state change (true when the goal asks for none)."""
    verb = world.goal.verb
    return name is not None and (not verb or name in view.changed[verb])


def _finished(world: World, view: View, place: str) -> list[str]:
    return [
        name
        for name in view.contents.get(place, ())
        if kind(name) == world.goal.object and is_changed(world, view, name)
    ]


def placed_count(world: World, view: View) -> int:
    """Goal objects, in the required state, in the goal receptacle that holds most of them."""
    return max((len(_finished(world, view, place)) for place in world.of_kind(world.goal.receptacle)), default=0)


def phase(world: World, view: View) -> str:
    """What the goal asks for next: ``search`` (find and take), ``change`` (appliance), ``place`` or ``light``."""
    if view.holding is None or kind(view.holding) != world.goal.object:
        return "search"
    if world.goal.toggle:
        return "light"
    return "place" if is_changed(world, view, view.holding) else "change"


class _Plan:
    """The direct way to the goal, given where objects are believed to be (``where``: object -> receptacle)."""

    def __init__(self, environment: Alfworld, where: dict[str, str]) -> None:
        self.world, self.view, self.where = environment.world, environment.view, dict(where)
        self.templates = environment.grammar.templates
        self.at = self.view.at
        self.opened = set(self.view.opened)
        self.commands: list[str] = []
        self.missing: str | None = None

    def say(self, action: str, **words: str) -> None:
        self.commands.append(self.templates[action].format(**words))

    def go(self, place: str, opened: bool) -> None:
        """Stand before a receptacle, open if it must be."""
        if place not in self.at:
            self.say("GotoLocation", r=place)
            self.at = (place,)
        if opened and place in self.world.openable and place not in self.opened:
            self.say("OpenObject", r=place)
            self.opened.add(place)

    def build(self) -> _Plan:
        """Fill ``commands``; ``missing`` is the object type that must be found first, if one must."""
        world, view, goal = self.world, self.view, self.world.goal
        holding = view.holding
        targets = world.of_kind(goal.receptacle)
        place = max(targets, key=lambda name: len(_finished(world, view, name)), default="")
        needed = goal.count - (len(_finished(world, view, place)) if place else 0)
        if holding is not None and kind(holding) != goal.object:
            self.put_away(holding)
            holding = None
        kept = set(_finished(world, view, place)) if place else set()
        for _ in range(needed):
            if holding is None:
                holding = self.fetch(kept)
                if holding is None:
                    return self
            if goal.verb and holding not in view.changed[goal.verb]:
                appliances = world.of_kind(goal.appliance)
                if not appliances:
                    return self
                self.go(appliances[0], opened=False)
                self.say(f"{goal.verb.capitalize()}Object", o=holding, r=appliances[0])
            if goal.toggle:
                self.light()
                return self
            self.go(place, opened=True)
            self.say("PutObject", o=holding, r=place)
            kept.add(holding)
            holding = None
        return self

    def put_away(self, name: str) -> None:
        """Get rid of an object that the goal does not want, here if possible."""
        fits = [place for place in self.world.receptacles if self.world.can_hold(place, name)]
        here = [place for place in fits if place in self.at]
        if fits:
            place = (here or fits)[0]
            self.go(place, opened=True)
            self.say("PutObject", o=name, r=place)

    def fetch(self, kept: set[str]) -> str | None:
        """Take a goal object that is not in its place yet."""
        known = sorted(
            (name for name in self.where if kind(name) == self.world.goal.object and name not in kept),
            key=lambda name: (self.where[name] not in self.at, name),
        )
        if not known:
            self.missing = self.world.goal.object
            return None
        place = self.where[known[0]]
        self.go(place, opened=True)
        self.say("PickupObject", o=known[0], r=place)
        return known[0]

    def light(self) -> None:
        """Go to the lamp and use it."""
        lamps = sorted(name for name in self.where if kind(name) == self.world.goal.toggle)
        if not lamps:
            self.missing = self.world.goal.toggle
            return
        self.go(self.where[lamps[0]], opened=True)
        self.say("ToggleObject", o=lamps[0])


def _true_places(view: View) -> dict[str, str]:
    return {name: place for place, objects in view.contents.items() for name in objects}


def direct_plan(environment: Alfworld) -> list[str]:
    """Commands of the direct way to the goal, knowing where everything is."""
    return _Plan(environment, _true_places(environment.view)).build().commands


def _next_look(environment: Alfworld, missing: str, order: list[str]) -> str | None:
    """The next command of the search for an object type; None when everything has been looked into."""
    world, view = environment.world, environment.view
    unseen = [place for place in order if place not in environment.looked_into]
    plausible = [place for place in unseen if world.can_hold(place, f"{missing} 1")]
    if missing == world.goal.toggle:
        plausible = [place for place in unseen if place not in world.openable]
    # Nobody asks to bring a thing to the kind of place where it lies already.
    plausible.sort(key=lambda place: kind(place) == world.goal.receptacle)
    for place in plausible or unseen:
        if place not in view.at:
            return environment.grammar.templates["GotoLocation"].format(r=place)
        if world.is_closed(view, place):
            return environment.grammar.templates["OpenObject"].format(r=place)
        return environment.grammar.templates["examineReceptacle"].format(r=place)
    return None


def _waste(environment: Alfworld, rng: random.Random) -> str:
    """A wasteful or impossible command."""
    world, view, templates = environment.world, environment.view, environment.grammar.templates
    admissible = list(environment.state.commands)
    moves = [command for command in admissible if command.startswith("go to ")]
    options = [rng.choice(moves), rng.choice(moves), "inventory" if rng.random() < 0.5 else "look"]
    options += [command for command in admissible if command.startswith("close ")][:1]
    target = f"{world.goal.object} 1"
    place = rng.choice(world.receptacles)
    if view.holding is None:
        options.append(templates["PickupObject"].format(o=target, r=environment.facing or place))
        others = [command for command in admissible if command.startswith("take ")]
        options += [command for command in others if not command.startswith(f"take {world.goal.object} ")][:1]
    else:
        options.append(templates["PutObject"].format(o=view.holding, r=place))
    if environment.facing is not None:
        options.append(templates["OpenObject"].format(r=environment.facing))
    return rng.choice(options)


def replies(environment: Alfworld, seed: int, noise: float) -> Iterator[str]:
    """Replies, in the environment's reply format, that solve the running episode."""
    world, style = environment.world, environment.settings.prompt_style
    rng = random.Random(f"alfworld expert {seed} {world.view(world.graph.initial).digest}")
    start = rng.randrange(len(world.receptacles))
    order = [*world.receptacles[start:], *world.receptacles[:start]]
    while not environment.done and environment.turn < environment.settings.max_turns:
        direct = direct_plan(environment)
        slack = environment.settings.max_turns - environment.turn - len(direct)
        command: str | None = None
        if noise > 0 and slack > _NOISE_COST and rng.random() < noise:
            command = _waste(environment, rng)
            if environment.outputs and prompts.reply(style, command) == environment.outputs[-1]:
                command = None
        if command is None:
            plan = _Plan(environment, environment.seen).build()
            command = plan.commands[0] if plan.commands else None
            if command is None and plan.missing and slack > _LOOK_COST:
                command = _next_look(environment, plan.missing, order)
        if command is None:
            if not direct:
                return
            command = direct[0]
        yield prompts.reply(style, command)
