"""From the policy's reply to a command: the reply format, and the two ways to treat an inadmissible action.

``faithful`` is AgentBench's: the text after ``ACTION:``, then the admissible command with the highest sentence BLEU, if
above 0.01. It can act on the wrong object in silence (a full stop turns ``go to shelf 2`` into shelf 1), hence
``normalised`` [ours], the default: case, quotes and final punctuation are forgiven, anything else is no action. The
label may then be ``Action:`` too, or be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from rised.environments.thinking import without_thinking

_LABEL = re.compile(r"ACTION:(.*)")
_OUR_LABEL = re.compile(r"\b(?:ACTION|Action)[ \t]*:(.*)")
_BLEU_FLOOR = 0.01
_QUOTES = "\"'`“”‘’ "


class Mapped(NamedTuple):
    """``text`` is what is sent to the game; ``exact``: it is the policy's own text, not a replacement."""

    text: str
    exact: bool


def action_text(reply: str, labelled: bool, faithful: bool = False) -> str | None:
    """The action inside a reply, its thinking removed; None where a label is demanded and absent.

    ``labelled`` replies carry the action after a label; without ``faithful`` a bare action is accepted too [ours].
    """
    text = without_thinking(reply)
    if not labelled:
        return text
    match = (_LABEL if faithful else _OUR_LABEL).search(text)
    return match.group(1) if match else None if faithful else text


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
