"""The nouns of rubric bundles, and the two kinds of pieces that make and score them.

A *bundle* is a list of criteria for attempts at one task. A writer drafts some for each group, a verifier scores
every criterion on every rollout. Neither sees a reward. What they need of the running policy or of a server they get
from the *desk*, which the train loop sets up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from rised.methods.base import Piece, PromptGroup
from rised.records.types import BundleStatus

if TYPE_CHECKING:
    from rised.models.writing import WritingRequest, Written
    from rised.rubrics.verifier_llm import BundleScores, Question


@dataclass(frozen=True, slots=True)
class Criterion:
    """One sentence to check. ``rubric_id`` names the vocabulary's rubric, if it is one."""

    text: str
    rubric_id: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """One candidate bundle. ``criteria`` is empty exactly when ``status`` is not ok; ``reply``: the writer's words."""

    criteria: tuple[Criterion, ...] = ()
    status: BundleStatus = BundleStatus.OK
    reason: str = ""
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """A draft's scores: one row per rollout of the group, one score in [0, 1] per criterion, an empty row where there
    is none. No rows at all exactly when ``status`` is not ok. ``verifier`` names who scored."""

    scores_GK: tuple[tuple[float, ...], ...]
    verifier: str
    status: BundleStatus = BundleStatus.OK
    reason: str = ""
    reply: str = ""


class Desk(Protocol):
    """Whom a writer or a verifier may ask between a step's rollouts and its update, while no episode is played."""

    def write(self, requests: Sequence[WritingRequest]) -> list[list[Written]]:
        """The current policy's answers, one for each seed of each request."""
        ...

    def verify(self, questions: Sequence[Question], prompt: str) -> list[BundleScores]:
        """The judge model's scores of each bundle; ``prompt``: file of the verifier's prompt."""
        ...

    @property
    def verifier_id(self) -> str:
        """Who answered :meth:`verify`."""
        ...


class BundleWriter(Piece, ABC):
    """Drafts bundles for each group. ``asks_policy``: with the running policy."""

    asks_policy: ClassVar[bool] = False

    @abstractmethod
    def drafts(self, groups: Sequence[PromptGroup], count: int, desk: Desk, step: int, seed: int) -> list[list[Draft]]:
        """``count`` drafts of each group, the failed ones among them, without a look at rewards.

        ``seed`` is the run's; the drafts depend on the arguments and the policy's weights alone.
        """


class Verifier(Piece, ABC):
    """Scores drafted bundles on their groups' rollouts."""

    @abstractmethod
    def scored(self, drafts: Sequence[tuple[PromptGroup, Draft]], desk: Desk) -> list[Scored]:
        """Scores of each draft, in order."""
