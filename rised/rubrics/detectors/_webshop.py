"""Readings of a shopping episode's log that several WebShop detectors share. Registers nothing.

The log's fields are documented in ``rised.environments.webshop.log``.
"""

from __future__ import annotations

import re
from typing import Any

from rised.records.types import Rollout, TagState
from rised.rubrics.base import Verdict

Info = dict[str, Any]


def demonstrates(turn: int) -> Verdict:
    return Verdict(TagState.DEMONSTRATES, turn)


def violates(turn: int) -> Verdict:
    return Verdict(TagState.VIOLATES, turn)


def logs_of(rollout: Rollout) -> list[tuple[int, Info]]:
    """Turn index and log of every turn that the environment executed."""
    return [(index, turn.info) for index, turn in enumerate(rollout.turns) if "kind" in turn.info]


def goal_of(rollout: Rollout) -> Info:
    """What the task asks for; the log of the first turn holds it."""
    return next((info["goal"] for _, info in logs_of(rollout) if "goal" in info), {})


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def searches_of(rollout: Rollout) -> list[tuple[int, Info]]:
    return [(index, info) for index, info in logs_of(rollout) if info["kind"] == "search" and info["valid"]]


def purchase_of(rollout: Rollout) -> tuple[int, Info] | None:
    """The turn that bought, with the parts of its reward in ``purchase``."""
    return next(((index, info) for index, info in logs_of(rollout) if "purchase" in info), None)


def openings_of(rollout: Rollout) -> list[tuple[int, Info]]:
    """Turns that opened an item from the results."""
    return [
        (index, info)
        for index, info in logs_of(rollout)
        if info["valid"] and info["page_before"] == "results" and info["page"] == "item"
    ]


def departures_of(rollout: Rollout) -> list[tuple[int, Info]]:
    """Turns that left an item without buying it, each with the facts of the item left."""
    left = []
    item: Info | None = None
    for index, info in logs_of(rollout):
        if item is not None and info["page"] in ("search", "results"):
            left.append((index, item))
        item = info.get("item") if info["page"] != "done" else None
    return left


def constraints_of(goal: Info) -> list[set[str]]:
    """Word sets of the goal's product type, attributes and options."""
    return [set(words_of(text)) for text in (goal["query"], *goal["attributes"], *goal["options"])]


def carried_constraints(query: str, goal: Info) -> int:
    """How many of the goal's constraints a query carries in full."""
    words = set(words_of(query))
    return sum(constraint <= words for constraint in constraints_of(goal) if constraint)
