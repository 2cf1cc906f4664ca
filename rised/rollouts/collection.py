"""A collection of rollouts: what is asked for, who hears of it, what came of it, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rised.environments.pool import EnvironmentPool
from rised.models.rendering import ChatRendering
from rised.records.types import Rollout
from rised.rollouts.plans import EpisodePlan
from rised.rollouts.settings import RolloutSettings

Progress = Callable[[int, int], None]
"""Called with the number of finished episodes and of all."""

OnRollout = Callable[[Rollout], None]
"""Called with each rollout once, soon after its episode ends; in an order that depends on timing."""

Superfluous = Callable[[Rollout], Iterable[str]]
"""Called with each rollout; answers the ids of rollouts that are not needed any more, those that ended left aside."""


@dataclass
class CollectTimings:
    """Seconds, and tokens. ``environment_wait_s`` is the time in which nothing was generated.

    ``cancelled`` episodes were given up because enough groups were complete, those among them that had ended; so many
    tokens had been sampled for them.
    """

    wall_s: float = 0.0
    generation_s: float = 0.0
    environment_s: float = 0.0
    environment_wait_s: float = 0.0
    tokens_fed: int = 0
    tokens_generated: int = 0
    cancelled: int = 0
    cancelled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CollectionRequest:
    """All that a collection follows from, but the engine that answers it.

    ``on_rollout`` should return at once; what it or ``on_progress`` raises ends the collection. What it costs is added
    to ``timings``.
    """

    plans: Sequence[EpisodePlan]
    rendering: ChatRendering
    pool: EnvironmentPool
    settings: RolloutSettings
    on_progress: Progress | None = None
    on_rollout: OnRollout | None = None
    timings: CollectTimings = field(default_factory=CollectTimings)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """An episode that was given up because nobody needed it any more: counted, never scored.

    ``turns`` that were complete and ``tokens`` that were sampled by then; both 0 if it had not begun.
    """

    plan: EpisodePlan
    turns: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Collection:
    """What came of the plans, both in their order; together they are all of them."""

    rollouts: list[Rollout]
    cancelled: list[Cancelled]
