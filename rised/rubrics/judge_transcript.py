"""A rollout as the judge model reads it, and the one rule by which a long one is shortened.

One JSON object a line, so that nothing in an episode can pass for the prompt around it. Reward and success are not
shown, nor what the environment said after the last reply, where WebShop prints the reward: a judge that knows the
outcome tags the outcome. Rule of shortening [ours], until the budget is kept:

1. every text of the earlier turns is cut in its middle to one common length, the greatest that fits;
2. earlier turns are left out whole, the oldest first.

The system prompt, the first observation (it states the task) and the last turns are never touched; if these alone
exceed the budget, the transcript does too.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from rised.records.text import storable
from rised.records.types import Rollout, Turn
from rised.rubrics.prompt_file import without_control_tokens

_MARK = " […{} characters left out…] "
_MARK_LENGTH = 40
"""Longest mark: a text that is longer than its limit by less is shown whole, since the mark would not shorten it."""


class Transcript(NamedTuple):
    """What is shown. ``shortened``: something was left out."""

    text: str
    shortened: bool


def transcript(rollout: Rollout, budget: int, final_turns: int) -> Transcript:
    """The rollout in at most ``budget`` characters where possible; the last ``final_turns`` turns stay whole."""
    earlier = max(0, len(rollout.turns) - final_turns)
    texts = [
        text for turn in rollout.turns[:earlier] for text in (turn.observation, turn.action_raw, turn.action_mapped)
    ]
    longest = max(map(len, texts), default=0)
    whole = _render(rollout, earlier, longest)
    if len(whole) <= budget or not earlier:
        return Transcript(whole, False)
    shortest = _render(rollout, earlier, 0)
    if len(shortest) <= budget:
        fits, too_long = 0, longest
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            if len(_render(rollout, earlier, middle)) <= budget:
                fits = middle
            else:
                too_long = middle
        return Transcript(_render(rollout, earlier, fits), True)
    for left_out in range(1, earlier):
        shortest = _render(rollout, earlier, 0, left_out)
        if len(shortest) <= budget:
            break
    return Transcript(shortest, True)


def _render(rollout: Rollout, earlier: int, limit: int, left_out: int = 0) -> str:
    """``limit``: characters of each text in the first ``earlier`` turns; ``left_out``: turns missing after turn 0."""
    lines = [_line({"system_prompt": rollout.system_prompt})] if rollout.system_prompt else []
    for index, turn in enumerate(rollout.turns):
        if 1 <= index <= left_out:
            if index == left_out:
                lines.append(_line({"turns_left_out": f"1 to {left_out}"}))
            continue
        lines.append(_turn_line(index, turn, limit if index < earlier else None))
    lines.append(_line({"episode_ended_by": rollout.stop_reason.value}))
    return "\n".join(lines)


def _turn_line(index: int, turn: Turn, limit: int | None) -> str:
    """``limit`` None: whole. The observation of turn 0 is always whole."""
    entry: dict[str, Any] = {
        "turn": index,
        "observation": turn.observation if index == 0 else _cut(turn.observation, limit),
        "reply": _cut(turn.action_raw, limit),
    }
    if turn.action_mapped and turn.action_mapped.strip() != turn.action_raw.strip():
        entry["executed"] = _cut(turn.action_mapped, limit)
    if turn.truncated:
        entry["reply_cut_by_token_limit"] = True
    return _line(entry)


def _cut(text: str, limit: int | None) -> str:
    if limit is None or len(text) <= limit + _MARK_LENGTH:
        return text
    head, tail = (limit + 1) // 2, limit // 2
    return text[:head] + _MARK.format(len(text) - limit) + text[len(text) - tail :]


def _line(entry: dict[str, Any]) -> str:
    return without_control_tokens(storable(json.dumps(entry, ensure_ascii=False)))
