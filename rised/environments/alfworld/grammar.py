"""Action grammars and PDDL domain, derived from the files that the alfworld wheel ships.

AgentBench plays an older grammar than alfworld 0.4: ``put X in/on Y`` instead of ``move X to Y``, arrivals named by
location, and no ``help``. Both are one text with three substitutions, so only the substitutions live here. What the
engine does with the text is in ``engine``; how the policy is told of it in ``prompts``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from rised.environments.base import EnvironmentFault

GOAL_PLACEHOLDER = "UNKNOWN GOAL"
_GOAL_LINE = re.compile(r"Your task is to: (?P<goal>[^\"\n]*?)\.?\"")
_ACTION = re.compile(r"^action (?P<name>\w+) \{.*?template :: \"(?P<template>[^\"]*)\";", re.MULTILINE | re.DOTALL)
_HELP_GRAMMAR = re.compile(r"^action help \{.*?^\}\n*", re.MULTILINE | re.DOTALL)
_HELP_DOMAIN = re.compile(r"^\(:action help\n.*?^\)\n*", re.MULTILINE | re.DOTALL)
_GO_TO = "go to {r}"


@dataclass(frozen=True, slots=True)
class Grammar:
    """Texts of one action grammar: PDDL domain, text grammar (goal left open), verb templates by action name."""

    name: str
    domain: str
    text: str
    templates: dict[str, str]

    def is_readable(self, action: str) -> bool:
        """Whether a text has the form of one of the actions, whatever it names."""
        return _forms(tuple(sorted(set(self.templates.values())))).fullmatch(action) is not None

    def with_goal(self, goal: str) -> str:
        """The grammar text as a game file holds it."""
        return self.text.replace(GOAL_PLACEHOLDER, goal)


@cache
def _forms(templates: tuple[str, ...]) -> re.Pattern[str]:
    parts = (re.sub(r"\\{\w+\\}", lambda _: r"[a-z]+ \d+", re.escape(template)) for template in templates)
    return re.compile("|".join(parts))


def _wheel_text(file_name: str) -> str:
    try:
        return resources.files("alfworld").joinpath("data", file_name).read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise EnvironmentFault(
            f"the alfworld package with data/{file_name} is missing: pip install --no-deps alfworld==0.4.2"
        ) from error


def _without_help(text: str, pattern: re.Pattern[str], what: str) -> str:
    shortened, count = pattern.subn("", text)
    if count != 1:
        raise EnvironmentFault(f"the alfworld wheel's {what} has {count} `help` actions, expected 1 (alfworld 0.4.2)")
    return shortened


@cache
def load_grammar(name: str) -> Grammar:
    """The grammar ``alfworld`` (0.4, as shipped) or ``agentbench`` (the older verbs)."""
    domain, text = _wheel_text("alfred.pddl"), _wheel_text("alfred.twl2")
    if name == "agentbench":
        domain = _without_help(domain, _HELP_DOMAIN, "domain")
        text = _without_help(text, _HELP_GRAMMAR, "grammar")
        text = text.replace("You arrive at {r.name}.", "You arrive at {lend.name}.")
        text = text.replace("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}.")
        text = text.replace("move {o} to {r}", "put {o} in/on {r}")
    elif name != "alfworld":
        raise EnvironmentFault(f"unknown action grammar {name!r}: use 'agentbench' or 'alfworld'")
    templates = {match["name"]: match["template"] for match in _ACTION.finditer(text)}
    templates["GotoLocation"] = _GO_TO
    return Grammar(name, domain, text, templates)


def goal_of(grammar_text: str) -> str:
    """The goal sentence inside a game file's grammar."""
    match = _GOAL_LINE.search(grammar_text)
    if match is None:
        raise EnvironmentFault("the game's grammar holds no line `Your task is to: ...`")
    return match["goal"]
