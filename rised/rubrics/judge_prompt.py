"""The judge's prompt: a versioned file, filled with the rubrics of an environment and with a transcript.

The system message holds all that does not change within an environment, the vocabulary first of all, and the user
message the transcript: a server with a prefix cache then computes the vocabulary once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rised.rubrics.prompt_file import Messages, asked_again, filled, read_prompt
from rised.rubrics.vocabulary import Polarity, Rubric

__all__ = ["JudgePrompt", "Messages", "load_prompt", "states_of"]

_PLACES = {
    "System": {"environment", "count", "rubrics", "example"},
    "User": {"transcript", "count", "last_turn"},
    "Again": {"reason", "count", "last_turn"},
}
_REQUIRED = {"System": {"rubrics"}, "User": {"transcript"}, "Again": {"reason"}}


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """One version. ``hash``: SHA-256 (hex) of the file's bytes."""

    name: str
    hash: str
    system: str
    user: str
    again: str

    @property
    def version(self) -> str:
        """``judge_v2-1a2b3c4d``: the file's name and the beginning of its hash."""
        return f"{self.name}-{self.hash[:8]}"

    def messages(self, environment: str, rubrics: Sequence[Rubric], transcript: str, turn_count: int) -> Messages:
        """The chat that is sent: vocabulary first, transcript last."""
        count = str(len(rubrics))
        system = {
            "environment": environment,
            "count": count,
            "rubrics": "\n".join(_rubric_text(rubric) for rubric in rubrics),
            "example": _example(rubrics),
        }
        user = {"transcript": transcript, "count": count, "last_turn": str(turn_count - 1)}
        return [
            {"role": "system", "content": filled(self.system, system)},
            {"role": "user", "content": filled(self.user, user)},
        ]

    def asked_again(self, messages: Messages, reply: str, reason: str, rubric_count: int, turn_count: int) -> Messages:
        """The chat goes on after a reply that was none, with the reason."""
        values = {"reason": reason, "count": str(rubric_count), "last_turn": str(turn_count - 1)}
        return asked_again(messages, reply, filled(self.again, values))


def load_prompt(path: Path | str) -> JudgePrompt:
    """Read a prompt file; relative paths are of the repository. RubricError says what it lacks."""
    found = read_prompt(path, _PLACES, _REQUIRED, "the judge's prompt")
    return JudgePrompt(found.name, found.hash, *found.sections.values())


def states_of(rubric: Rubric) -> tuple[str, ...]:
    """The states that a verdict on this rubric may have: a negative rubric is never demonstrated."""
    return ("violates", "absent") if rubric.polarity is Polarity.NEGATIVE else ("demonstrates", "violates", "absent")


def _rubric_text(rubric: Rubric) -> str:
    lines = [
        f"- {rubric.id} ({rubric.polarity.value}: {' | '.join(states_of(rubric))})",
        f"  {rubric.definition} {rubric.note}".rstrip(),
        f"  Shows it: {rubric.positive_example}",
        f"  Does not: {rubric.negative_example}",
    ]
    return "\n".join(lines)


def _example(rubrics: Sequence[Rubric]) -> str:
    """The form of a reply, with the first two rubrics."""
    tags = [
        {
            "id": rubric.id,
            "evidence_turn": 0 if place == 0 else None,
            "state": states_of(rubric)[0 if place == 0 else -1],
        }
        for place, rubric in enumerate(rubrics[:2])
    ]
    return json.dumps({"tags": tags})[:-2] + ", …]}"
