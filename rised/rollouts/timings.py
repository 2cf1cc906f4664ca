"""What a collection cost, apart from the rollouts, which are reproducible; and who hears of its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rised.records.types import Rollout

Progress = Callable[[int, int], None]
"""Called with the number of finished episodes and of all."""

OnRollout = Callable[[Rollout], None]
"""Called with each rollout once, soon after its episode ends; in an order that depends on timing."""


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
