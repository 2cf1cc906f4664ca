"""How a game is told to the policy: system prompts derived from the action grammar, observations in two styles.

``full`` follows AgentBench's protocol (instructions, the arrival prefix cut, the list of available actions);
``compact`` [ours] is for small models that must copy names from short texts. Rules and rewards live elsewhere.
"""

from __future__ import annotations

import re

from rised.environments.alfworld.grammar import Grammar
from rised.environments.alfworld.world import ENTITY

COMPACT_SYSTEM = "alfworld"
_SHOWN = (
    "GotoLocation",
    "OpenObject",
    "CloseObject",
    "PickupObject",
    "PutObject",
    "HeatObject",
    "CoolObject",
    "CleanObject",
    "SliceObject",
    "ToggleObject",
    "examineReceptacle",
    "inventory",
    "look",
)
_PLACEHOLDERS = {"{o}": "{obj}", "{r}": "{recep}", "{co}": "{obj}", "{ko}": "{knife}"}
_ARRIVAL = re.compile(r"^You arrive at loc \d+\. ")
_ANY_ARRIVAL = re.compile(r"^You arrive at [a-z0-9 ]+?\. ")
_COMPACT = (
    (re.compile(r"^You open the .*?\. The (?P<r>.+?) is open\. In it, you see (?P<list>.*)\.$"), "{r} open: {list}."),
    (re.compile(r"^The (?P<r>.+?) is open\. In it, you see (?P<list>.*)\.$"), "{r} open: {list}."),
    (re.compile(r"^On the (?P<r>.+?), you see (?P<list>.*)\.$"), "{r}: {list}."),
    (re.compile(r"^You are carrying: (?P<list>.*)\.$"), "carrying {list}."),
    (re.compile(r"^The (?P<r>.+?) is closed\.$"), "{r} closed."),
    (re.compile(r"^You pick up the (?P<r>.+?) from the .*\.$"), "took {r}."),
    (re.compile(r"^You (?:put|move) the (?P<r>.+?) (?:in/on|to) the .*\.$"), "put {r}."),
    (re.compile(r"^You heat the (?P<r>.+?) using .*\.$"), "hot {r}."),
    (re.compile(r"^You cool the (?P<r>.+?) using .*\.$"), "cool {r}."),
    (re.compile(r"^You clean the (?P<r>.+?) using .*\.$"), "clean {r}."),
    (re.compile(r"^You turn on the (?P<r>.+?)\.$"), "on {r}."),
    (re.compile(r"^You turn off the (?P<r>.+?)\.$"), "off {r}."),
)


def system_prompt(style: str, grammar: Grammar) -> str:
    """Instructions of a prompt style; the actions are the grammar's own templates."""
    if style == "compact":
        return COMPACT_SYSTEM
    lines = []
    for number, name in enumerate((name for name in _SHOWN if name in grammar.templates), start=1):
        template = grammar.templates[name]
        for variable, shown in _PLACEHOLDERS.items():
            template = template.replace(variable, shown)
        lines.append(f"{number}. {template}")
    actions = "\n".join(lines)
    return (
        "You act in a household to complete a task. The first message describes the room and states the task; after "
        "each of your turns you are told what happened and which actions are available now.\n"
        "In each turn write one action, with your thoughts before it if they help:\n"
        "THOUGHT: what you conclude and plan\n"
        "ACTION: the next action\n\n"
        f"The actions are:\n{actions}\n"
        "{obj}, {knife} and {recep} stand for objects and receptacles, named with their number as in `mug 1`.\n\n"
        'Only an action from the list of available actions has an effect. "Nothing happens." means that the action '
        "was not possible: try another one."
    )


def reply(style: str, command: str) -> str:
    """A command in the reply format of the style."""
    return command if style == "compact" else f"ACTION: {command}"


def first_observation(style: str, intro: str, goal: str, receptacles: tuple[str, ...], admissible: list[str]) -> str:
    """Room and task."""
    if style == "compact":
        return f"{goal}. room: {', '.join(receptacles)}."
    return _with_actions("\n".join(intro.split("\n\n")[1:]), admissible)


def observation(style: str, feedback: str, admissible: list[str]) -> str:
    """What happened."""
    text = feedback.strip()
    if style == "compact":
        return compact(text)
    return _with_actions(_ARRIVAL.sub("", text), admissible)


def _with_actions(text: str, admissible: list[str]) -> str:
    return f"{text}\nAVAILABLE ACTIONS: {', '.join(admissible)}"


def compact(feedback: str) -> str:
    """The engine's sentence in few words, names unchanged [ours]."""
    text = _ANY_ARRIVAL.sub("", feedback.strip())
    for pattern, short in _COMPACT:
        match = pattern.match(text)
        if match:
            groups = match.groupdict()
            if "list" in groups:
                groups["list"] = ", ".join(ENTITY.findall(groups["list"])) or "nothing"
            return short.format(**groups)
    return text.replace("\n", " ").lower()
