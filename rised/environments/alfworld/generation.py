"""Synthetic ALFWorld games [ours]: rooms sampled from the alfworld wheel's scene layouts, goals from its goal library.

Receptacles and their poses are those of the 120 scenes; the objects' places are drawn here, so these are not the
published games, and every payload says ``synthetic``. What plays the games is in ``engine``; panels in ``panels``.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from rised.environments.alfworld.settings import RoomSettings

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
APPLIANCES = {
    "pick_clean_then_place_in_recep": "SinkBasin",
    "pick_heat_then_place_in_recep": "Microwave",
    "pick_cool_then_place_in_recep": "Fridge",
}
_PROPERTY = {
    "pick_clean_then_place_in_recep": "Cleanable",
    "pick_heat_then_place_in_recep": "Heatable",
    "pick_cool_then_place_in_recep": "Coolable",
}
_KITCHENS, _LIVING_ROOMS = range(1, 31), range(201, 231)
_BEDROOMS, _BATHROOMS = range(301, 331), range(401, 431)
_SCENES = {
    "pick_and_place_simple": (*_KITCHENS, *_LIVING_ROOMS, *_BEDROOMS, *_BATHROOMS),
    "look_at_obj_in_light": (*_LIVING_ROOMS, *_BEDROOMS),
    "pick_clean_then_place_in_recep": (*_KITCHENS, *_BATHROOMS),
    "pick_heat_then_place_in_recep": tuple(_KITCHENS),
    "pick_cool_then_place_in_recep": tuple(_KITCHENS),
    "pick_two_obj_and_place": (*_KITCHENS, *_LIVING_ROOMS, *_BEDROOMS, *_BATHROOMS),
}
_LAMPS = ("DeskLamp", "FloorLamp")
_LAMP_STANDS = ("Desk", "SideTable", "DiningTable", "CoffeeTable", "Dresser", "Shelf", "Sofa", "ArmChair", "Bed")
_BASINS = {"Sink": "SinkBasin", "Bathtub": "BathtubBasin"}
_UNPOSED = ("CoffeeMachine", "StoveBurner", "GarbageCan", "Toilet", "ToiletPaperHanger", "TowelHolder")
"""Receptacle types that scenes list as objects but without a pose; they get a drawn one."""
_MANGLING = (("|", "_bar_"), ("-", "_minus_"), ("#", "-"), ("+", "_plus_"), (".", "_dot_"), (",", "_comma_"))
"""TextWorld's spelling of AI2-THOR ids in PDDL; ``#`` stands for the minus of a typed list."""


class UnusableDraw(Exception):
    """The drawn scene cannot hold the drawn task; draw again."""


@dataclass(frozen=True, slots=True)
class Game:
    """One generated game. ``problem`` is the mangled PDDL text; types are in the scenes' spelling (``SoapBar``)."""

    task_type: str
    object: str
    receptacle: str
    toggle: str
    appliance: str
    scene: int
    goal: str
    problem: str


@cache
def constants() -> Any:
    """The wheel's tables: which receptacle holds what, and what can be heated, cooled, cleaned."""
    from alfworld.gen import constants as module

    return module


@cache
def _goal_library() -> dict[str, dict[str, Any]]:
    from alfworld.gen.goal_library import gdict

    return gdict


@cache
def _scene(number: int) -> tuple[dict[str, str], frozenset[str]]:
    """Receptacle id -> location id, and all object types, of one scene."""
    layouts = resources.files("alfworld").joinpath("gen", "layouts")
    poses = json.loads(layouts.joinpath(f"FloorPlan{number}-openable.json").read_text(encoding="utf-8"))
    types = json.loads(layouts.joinpath(f"FloorPlan{number}-objects.json").read_text(encoding="utf-8"))
    receptacles = {}
    for identifier, (x, z, rotation, horizon) in poses.items():
        kind = identifier.split("|")[0]
        bare = kind in _BASINS and not identifier.endswith("Basin")
        name = f"{identifier}|{_BASINS[kind]}" if bare else identifier
        if type_of(name) in constants().VAL_RECEPTACLE_OBJECTS:
            receptacles[name] = f"loc|{round(x / 0.25)}|{round(z / 0.25)}|{round(rotation / 90)}|{int(horizon)}"
    return receptacles, frozenset(types)


def type_of(receptacle_id: str) -> str:
    """Receptacle type of an AI2-THOR id: ``Sink|..|SinkBasin`` is a SinkBasin."""
    parts = receptacle_id.split("|")
    return parts[-1] if parts[-1].endswith("Basin") else parts[0]


def can_hold(receptacle_type: str, object_type: str) -> bool:
    """Whether the wheel's tables allow the object in or on the receptacle."""
    return object_type in constants().VAL_RECEPTACLE_OBJECTS.get(receptacle_type, ())


def _coordinate(value: float) -> str:
    return f"{value:+06.2f}"


def _all_receptacles(scene: int, rng: random.Random) -> dict[str, str]:
    receptacles, types = _scene(scene)
    found = dict(receptacles)
    known = {type_of(name) for name in found}
    for kind in sorted(set(_UNPOSED) & types - known):
        for _ in range(4 if kind == "StoveBurner" else 1):
            x, z = rng.randint(-8, 8), rng.randint(-8, 8)
            name = f"{kind}|{_coordinate(x * 0.25)}|+00.90|{_coordinate(z * 0.25 + 0.1)}"
            found[name] = f"loc|{x}|{z}|{rng.randint(0, 3)}|45"
    return found


def _pick_room(
    receptacles: dict[str, str], obj: str, target: str, appliance: str, look: bool, size: int, rng: random.Random
) -> dict[str, str]:
    """At most ``size`` receptacles: the target, the appliance, two to four holders of the object, then any.

    No two share a location: the engine refuses to go where the agent stands already.
    """
    names = sorted(receptacles)
    rng.shuffle(names)
    kept: list[str] = []
    taken: set[str] = set()

    def keep(candidates: list[str], count: int) -> None:
        for name in candidates:
            if count and len(kept) < size and receptacles[name] not in taken:
                kept.append(name)
                taken.add(receptacles[name])
                count -= 1

    for needed in (target, appliance):
        if needed:
            keep([name for name in names if type_of(name) == needed], 1)
            if not any(type_of(name) == needed for name in kept):
                raise UnusableDraw(f"no free location for {needed}")
    holders = [name for name in names if can_hold(type_of(name), obj) and type_of(name) != target]
    keep(holders, rng.randint(2, 4))
    if look:
        keep([name for name in names if type_of(name) in _LAMP_STANDS], 1)
    keep(names, size)
    return {name: receptacles[name] for name in sorted(kept)}


def _draw_goal(task_type: str, scene: int, rng: random.Random) -> tuple[str, str, str]:
    """(object, receptacle, toggle) that the scene allows."""
    receptacles, types = _scene(scene)
    kinds = sorted({type_of(name) for name in receptacles})
    action_objects = constants().VAL_ACTION_OBJECTS
    allowed = action_objects[_PROPERTY[task_type]] if task_type in _PROPERTY else types
    objects = sorted(
        name
        for name in types
        if name in constants().OBJECTS_SET
        and name not in _LAMPS
        and name in allowed
        and any(can_hold(kind, name) for kind in kinds)
    )
    if not objects:
        raise UnusableDraw(f"scene {scene} has no object for {task_type}")
    obj = rng.choice(objects)
    if task_type == "look_at_obj_in_light":
        lamps = sorted(types.intersection(_LAMPS))
        if not lamps:
            raise UnusableDraw(f"scene {scene} has no lamp")
        return obj, "", rng.choice(lamps)
    targets = [kind for kind in kinds if can_hold(kind, obj)]
    if len(targets) < 2:
        raise UnusableDraw(f"scene {scene} has one kind of place for {obj}")
    return obj, rng.choice(targets), ""


def generate(task_type: str, room: RoomSettings, rng: random.Random) -> Game:
    """One game of ``task_type``. Raises :class:`UnusableDraw` when the draw does not work out."""
    scene = rng.choice(_SCENES[task_type])
    obj, target, toggle = _draw_goal(task_type, scene, rng)
    appliance = APPLIANCES.get(task_type, "")
    everything = _all_receptacles(scene, rng)
    if appliance and appliance not in {type_of(name) for name in everything}:
        raise UnusableDraw(f"scene {scene} has no {appliance}")
    receptacles = _pick_room(everything, obj, target, appliance, bool(toggle), room.max_receptacles, rng)
    placed: list[tuple[str, str, str]] = []

    def place(kind: str, places: list[str]) -> None:
        if not places:
            raise UnusableDraw(f"no place for {kind}")
        where = rng.choice(places)
        position = "|".join(_coordinate(rng.uniform(low, high)) for low, high in ((-4, 4), (0, 2), (-4, 4)))
        placed.append((f"{kind}|{position}", kind, where))

    starts = [name for name in receptacles if can_hold(type_of(name), obj) and type_of(name) != target]
    for _ in range(2 if task_type == "pick_two_obj_and_place" else rng.randint(1, 2)):
        place(obj, starts)
    if toggle:
        place(toggle, [name for name in receptacles if type_of(name) in _LAMP_STANDS])
    _, types = _scene(scene)
    others = sorted(
        kind
        for kind in types
        if kind in constants().OBJECTS_SET
        and kind != obj
        and kind not in _LAMPS
        and any(can_hold(type_of(name), kind) for name in receptacles)
    )
    for _ in range(room.max_distractors if others else 0):
        kind = rng.choice(others)
        place(kind, [name for name in receptacles if can_hold(type_of(name), kind)])
    entry = _goal_library()[task_type]
    words = {"obj": obj.lower(), "recep": target.lower(), "toggle": toggle.lower(), "mrecep": ""}
    goal = rng.choice(entry["templates"]).format(**words)
    goal_pddl = entry["pddl"].format(obj=obj, recep=target, toggle=toggle, mrecep="")
    start = f"loc|{rng.randint(-9, 9)}|{rng.randint(-9, 9)}|{rng.randint(0, 3)}|30"
    problem = _mangle(_problem_text(receptacles, placed, start) + goal_pddl)
    return Game(task_type, obj, target, toggle, appliance, scene, goal, problem)


def _mangle(text: str) -> str:
    for plain, mangled in _MANGLING:
        text = text.replace(plain, mangled)
    return text


def _problem_text(receptacles: dict[str, str], placed: list[tuple[str, str, str]], start: str) -> str:
    """PDDL problem without its goal, before mangling."""
    tables = constants()
    kinds = sorted({type_of(name) for name in receptacles})
    objects = sorted({kind for _, kind, _ in placed})
    # The domain names these types as constants, so they must be declared in every problem.
    object_types = sorted({*objects, "Knife", "ButterKnife"})
    receptacle_types = sorted({*kinds, *APPLIANCES.values()})
    declared = ["agent1 # agent"]
    declared += [f"{kind}Type # otype" for kind in object_types] + [f"{kind}Type # rtype" for kind in receptacle_types]
    declared += [f"{name} # object" for name, _, _ in placed] + [f"{name} # receptacle" for name in receptacles]
    declared += [f"{name} # location" for name in sorted({*receptacles.values(), start})]
    facts = ["(= (total#cost) 0)", f"(atLocation agent1 {start})"]
    for name, location in receptacles.items():
        facts += [f"(receptacleType {name} {type_of(name)}Type)", f"(receptacleAtLocation {name} {location})"]
        if type_of(name) in tables.OPENABLE_CLASS_SET:
            facts.append(f"(openable {name})")
    facts += [f"(canContain {place}Type {kind}Type)" for place in kinds for kind in objects if can_hold(place, kind)]
    for name, kind, place in placed:
        facts += [f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {place})"]
        facts += [f"(objectAtLocation {name} {receptacles[place]})"]
        facts.append(f"(toggleable {name})" if kind in _LAMPS else f"(pickupable {name})")
        if kind in tables.MOVABLE_RECEPTACLES_SET:
            facts.append(f"(isReceptacleObject {name})")
        for predicate in ("cleanable", "heatable", "coolable", "sliceable"):
            if kind in tables.VAL_ACTION_OBJECTS[predicate.capitalize()]:
                facts.append(f"({predicate} {name})")
    body = "\n  ".join(declared), "\n  ".join(facts)
    return f"(define (problem synthetic)\n(:domain alfred)\n(:objects\n  {body[0]})\n(:init\n  {body[1]})\n"
