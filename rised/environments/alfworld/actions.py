"""From the policy's reply to a command: the reply format, and the two ways to treat an inadmissible action.

``faithful`` is AgentBench's: the admissible command with the highest sentence BLEU, if above 0.01. It can act on the
wrong object in silence (a full stop turns ``go to shelf 2`` into shelf 1), hence ``normalised`` [ours], the default:
case, quotes and final punctuation are forgiven, anything else is no action.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_ACTION_LINE = re.compile(r"action\s*:(.*)", re.IGNORECASE)
_BLEU_FLOOR = 0.01
_QUOTES = "\"'`“”‘’ "


class Mapped(NamedTuple):
    """``text`` is what is sent to the game; ``exact``: it is the policy's own text, not a replacement."""

    text: str
    exact: bool


def action_text(reply: str, labelled: bool) -> str:
    """The action inside a reply; ``labelled`` replies carry it after ``ACTION:`` (a bare action is accepted too)."""
    if labelled:
        match = _ACTION_LINE.search(reply)
        if match:
            return match.group(1)
    return reply


def normalised(action: str) -> str:
    """First line without outer quotes, final punctuation, case and repeated spaces [ours]."""
    lines = action.strip().splitlines()
    line = lines[0].strip() if lines else ""
    return " ".join(line.strip(_QUOTES).rstrip(".!?;,:").strip(_QUOTES).lower().split())


def map_normalised(action: str, admissible: Iterable[str]) -> Mapped:
    """The :func:`normalised` text, whatever the game makes of it [ours]."""
    text = normalised(action)
    return Mapped(text, text in set(admissible))


def map_faithful(action: str, admissible: list[str]) -> Mapped:
    """AgentBench's ``process_action``: exact, else the first maximum of BLEU above the floor, else the text itself."""
    lowered = action.strip().lower()
    text = lowered.split("\n")[0] if lowered else ""
    if text in admissible:
        return Mapped(text, True)
    if not text or not admissible:
        return Mapped(text, False)
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    smoothing = SmoothingFunction().method4
    scores = [sentence_bleu([choice.split()], text.split(), smoothing_function=smoothing) for choice in admissible]
    best = max(range(len(scores)), key=scores.__getitem__)
    return Mapped(admissible[best] if scores[best] > _BLEU_FLOOR else text, False)
