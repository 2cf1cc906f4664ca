"""The judge's interface and the registry of rule-based detectors.

A detector decides from a rollout (transcript and the environment's own log) whether one rubric is demonstrated,
violated or absent. Detectors of one environment live in ``detectors/<environment>.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from rised.records.types import Rollout, Tag, TagState
from rised.rubrics.judge_record import JudgeRecord


class RubricError(ValueError):
    """A vocabulary, a detector or a set of tags contradicts the rules of this room."""


class Verdict(NamedTuple):
    """State of one rubric and the turn index that shows it (None when absent)."""

    state: TagState
    evidence_turn: int | None = None


ABSENT = Verdict(TagState.ABSENT)
Detector = Callable[[Rollout], Verdict]

DETECTORS: dict[str, dict[str, Detector]] = {}
"""environment -> rubric id -> detector."""


def detector(environment: str, rubric_id: str) -> Callable[[Detector], Detector]:
    """Register a detector for one rubric of one environment."""

    def add(function: Detector) -> Detector:
        table = DETECTORS.setdefault(environment, {})
        if rubric_id in table:
            raise ValueError(f"two detectors for {rubric_id!r} in {environment!r}")
        table[rubric_id] = function
        return function

    return add


Progress = Callable[[int, int], None]
"""Called with the number of rollouts done and of all."""


class Judge(Protocol):
    """Tags rollouts. ``judge_id`` names model or rule set, revision, prompt version and vocabulary hash.

    ``record``: raw replies and costs of the last call of ``tag``; empty for a judge that asks no model.
    """

    judge_id: str
    record: JudgeRecord

    def tag(self, rollouts: Sequence[Rollout], progress: Progress | None = None) -> list[Tag]:
        """One tag per rollout and applicable rubric, in input order; a failure is a status of its own."""
        ...
