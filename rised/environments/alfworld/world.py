"""What a game's state means in names: where the agent stands, what it holds, what it can see.

The detectors' ground truth and the expert's knowledge. Read from the engine's facts, never from its text; the text is
``render``'s matter.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from rised.environments.alfworld.engine import GameGraph, State

_FLAGS = ("opened", "ishot", "iscool", "isclean", "istoggled")
ENTITY = re.compile(r"\b[a-z]+ \d+\b")


def kind(name: str) -> str:
    """Type in a name: ``drawer 2`` is a ``drawer``."""
    return name.rsplit(" ", 1)[0]


@dataclass(frozen=True, slots=True)
class Goal:
    """What the task asks for, in the text's lower-case types. Empty where the task type has no such part."""

    task_type: str
    object: str
    receptacle: str
    toggle: str
    appliance: str

    @property
    def count(self) -> int:
        """How many objects must be placed."""
        return 2 if self.task_type == "pick_two_obj_and_place" else 1

    @property
    def verb(self) -> str:
        """The state change that the goal needs: heat, cool, clean or none."""
        return {"microwave": "heat", "fridge": "cool", "sinkbasin": "clean"}.get(self.appliance, "")


@dataclass(frozen=True, slots=True)
class View:
    """One state in names.

    ``at``: receptacles at the agent's location; ``holding``: the carried object; ``contents``: receptacle -> all its
    objects; ``opened``: receptacles that stand open; ``changed``: verb (heat, cool, clean) -> objects in that state;
    ``toggled``: lamps switched; ``digest``: eight hex digits that name the state, the same in every process.
    """

    at: tuple[str, ...]
    holding: str | None
    contents: dict[str, tuple[str, ...]]
    opened: frozenset[str]
    changed: dict[str, frozenset[str]]
    toggled: frozenset[str]
    digest: str

    def place_of(self, name: str) -> str | None:
        """Where an object is; None when it is carried or unknown."""
        return next((place for place, objects in self.contents.items() if name in objects), None)


class World:
    """The fixed part of a game: receptacles in the order of the text, which of them open, where they stand."""

    def __init__(self, graph: GameGraph, goal: Goal) -> None:
        self.graph = graph
        self.goal = goal
        names = graph.names
        facts = graph.initial.facts
        self._location = {
            names[fact.arguments[0].name]: fact.arguments[1].name
            for fact in facts
            if fact.name == "receptacleatlocation"
        }
        listing = graph.intro.split("you see", 1)[-1].split("\n", 1)[0]
        listed = [name for name in ENTITY.findall(listing) if name in self._location]
        self.receptacles = tuple(listed or sorted(self._location))
        self.openable = frozenset(names[fact.arguments[0].name] for fact in facts if fact.name == "openable")
        self.objects = frozenset(names[fact.arguments[0].name] for fact in facts if fact.name == "objecttype")
        self._holds = {
            (fact.arguments[0].name.removesuffix("type"), fact.arguments[1].name.removesuffix("type"))
            for fact in facts
            if fact.name == "cancontain"
        }
        self._views: dict[State, View] = {}

    def can_hold(self, place: str, name: str) -> bool:
        """Whether the game lets the object be put there."""
        return (kind(place), kind(name)) in self._holds

    def of_kind(self, wanted: str) -> list[str]:
        """Receptacles of a type, in the order of the text."""
        return [name for name in self.receptacles if kind(name) == wanted]

    def is_closed(self, view: View, place: str) -> bool:
        """Whether the receptacle is openable and shut."""
        return place in self.openable and place not in view.opened

    def visible(self, view: View) -> list[str]:
        """Objects that lie open at the agent's location, sorted."""
        return sorted(
            name for place in view.at if not self.is_closed(view, place) for name in view.contents.get(place, ())
        )

    def view(self, state: State) -> View:
        """The state in names (kept, because rollouts of a group meet in the same states)."""
        if state not in self._views:
            self._views[state] = self._read(state)
        return self._views[state]

    def _read(self, state: State) -> View:
        names = self.graph.names
        location: str | None = None
        holding: str | None = None
        contents: dict[str, list[str]] = {}
        flags: dict[str, set[str]] = {name: set() for name in _FLAGS}
        for fact in state.facts:
            arguments = fact.arguments
            if fact.name == "atlocation":
                location = arguments[1].name
            elif fact.name == "holds":
                holding = names[arguments[1].name]
            elif fact.name == "inreceptacle":
                contents.setdefault(names[arguments[1].name], []).append(names[arguments[0].name])
            elif fact.name in flags:
                flags[fact.name].add(names[arguments[0].name])
        placed = {place: tuple(sorted(objects)) for place, objects in sorted(contents.items())}
        at = tuple(name for name in self.receptacles if self._location[name] == location)
        words = [location, holding, placed, *(sorted(flags[key]) for key in sorted(flags))]
        return View(
            at=at,
            holding=holding,
            contents=placed,
            opened=frozenset(flags["opened"]),
            changed={
                "heat": frozenset(flags["ishot"]),
                "cool": frozenset(flags["iscool"]),
                "clean": frozenset(flags["isclean"]),
            },
            toggled=frozenset(flags["istoggled"]),
            digest=hashlib.sha256(repr(words).encode()).hexdigest()[:8],
        )
