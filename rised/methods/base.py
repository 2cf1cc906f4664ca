"""What a method is made of: the prompt group, and one small abstract class per kind of piece.

A method composes ``selector`` × ``reward`` × ``advantage`` × ``teacher`` × ``distillation`` × ``policy_loss`` ×
``steering``. Pieces are pure but for steering, whose state is JSON, and for a teacher that studies the groups first,
which keeps what it found until the next step. The files that implement them stand in the folder of their kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rised.config.settings import Settings
from rised.methods.streams import TokenStreams
from rised.records.types import Rollout, RubricBundle, Selection, Tag

if TYPE_CHECKING:
    from torch import Tensor

    from rised.methods.bundles.base import Desk
    from rised.rubrics.blocks import BlockStyle
    from rised.rubrics.vocabulary import Vocabulary
    from rised.rubrics.windows import TagWindow

AdvantageValue = float | np.ndarray | None
"""One rollout's advantage: for all its tokens, one per policy token (shape n), or None for no token at all."""


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """All rollouts of one task in one step, and their tags (empty when no judge ran)."""

    group_id: str
    environment: str
    rollouts: tuple[Rollout, ...]
    tags: tuple[Tag, ...] = ()

    @property
    def valid_rewards(self) -> np.ndarray:
        """Rewards of the rollouts with ``reward_valid``, float64, shape (<= G,)."""
        return np.array([r.reward for r in self.rollouts if r.reward_valid], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class TeacherContext:
    """The privileged text of one rollout's teacher, and the rubrics that it renders."""

    text: str
    rubric_ids: tuple[str, ...] = ()


class Piece:
    """Base of all pieces: holds the settings and the vocabulary. ``needs_tags``: the piece is blind without a judge."""

    needs_tags: bool = False

    def prompts(self) -> dict[str, str]:
        """name -> text of the prompt files that the piece asks somebody with; they belong to a run's identity."""
        return {}

    @classmethod
    def asks_judge(cls, settings: Mapping[str, Any]) -> bool:
        """Whether a piece with these settings (plain values) needs a judge, for tags or for anything else."""
        return cls.needs_tags

    def __init__(self, settings: Any, vocabulary: Vocabulary) -> None:
        self.settings = settings
        self.vocabulary = vocabulary


class Selector(Piece, ABC):
    """Chooses the prompt groups to train on among the step's candidates."""

    def candidate_count(self, candidate_groups: int, selected_groups: int) -> int:
        """How many groups to roll out."""
        return candidate_groups

    def selected_count(self, candidate_groups: int, selected_groups: int) -> int:
        """How many of them to select."""
        return selected_groups

    @abstractmethod
    def select(self, groups: Sequence[PromptGroup], count: int, step: int, seed: int) -> list[Selection]:
        """One :class:`Selection` per candidate, in the candidates' order, exactly ``count`` of them selected.

        ``order`` counts from 0 in the order of choice. The result depends on the arguments alone.
        Raises MethodError if there are fewer than ``count`` candidates.
        """


class TrainingReward(Piece, ABC):
    """Decides what an episode is worth in training. Records and evaluation keep the environment's own reward."""

    @abstractmethod
    def reward(self, rollout: Rollout) -> float | None:
        """The reward that training sees; None for a rollout without a valid reward."""


class Advantage(Piece, ABC):
    """Turns the rewards of the selected groups into advantages.

    ``shaped_by_teacher``: each token's advantage also gets ``gap_weight`` · (T − S), in advantage per nat, which the
    learner adds where the rollout has a teacher.
    """

    shaped_by_teacher: ClassVar[bool] = False

    @property
    def gap_weight(self) -> float:
        """Weight of the teacher's gap; 0: the advantage follows from rewards alone."""
        return 0.0

    @abstractmethod
    def advantages(self, groups: Sequence[PromptGroup]) -> list[list[AdvantageValue]]:
        """Per group and rollout. Rollouts with an invalid reward get None."""


class Teacher(Piece, ABC):
    """Decides what privileged text the policy's own weights read before they score the stored tokens again.

    ``asks_policy``: :meth:`study` has the running policy write, so that no episode may be played meanwhile.
    """

    asks_policy: bool = False

    def study(self, groups: Sequence[PromptGroup], desk: Desk, step: int, seed: int) -> list[RubricBundle]:
        """Find out what :meth:`contexts` will need of the selected groups, and return it as records.

        Called once a step, before the contexts, for a teacher that asks somebody; others need nothing.
        """
        return []

    @abstractmethod
    def contexts(self, group: PromptGroup, window: TagWindow, style: BlockStyle) -> list[TeacherContext | None]:
        """One context per rollout of the group; None: the rollout carries no distillation token."""


class TokenTerm(Piece, ABC):
    """A per-token loss with a coefficient: a distillation loss or a policy loss."""

    @classmethod
    def uncorrected(cls, settings: Any) -> str | None:
        """Key to set before tokens that older weights sampled may enter; None: with these settings they are weighed."""
        key = "truncated_importance"
        return key if getattr(settings, key, None) is None else None

    @property
    def uses_sampled(self) -> bool:
        """Whether the loss reads ``streams.sampled``."""
        return True

    @abstractmethod
    def token_loss(self, streams: TokenStreams) -> Tensor:
        """Losses of shape (N,), to be minimised; the gradient flows through ``streams.current`` alone."""

    def diagnostics(self, streams: TokenStreams) -> dict[str, Tensor]:
        """Named values of some of the tokens, shape (<= N,), whose means are worth logging."""
        return {}


class Steering(Piece, ABC):
    """Decides which rubrics the next step's *training* rollouts are told to avoid. Validation never asks it."""

    @abstractmethod
    def next_step(self, window: TagWindow) -> dict[str, tuple[str, ...]]:
        """environment -> rubrics of its avoid block; unsteered environments are absent. Advances the state."""

    def state(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned."""


class PieceSettings(Settings):
    """Base of the pieces' settings: every subclass declares ``type`` as a Literal."""
