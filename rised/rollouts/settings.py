"""Settings of the episode loop."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from rised.config import operational, strict
from rised.models.settings import GenerationSettings


class RolloutSettings(GenerationSettings):
    """Limits of an episode and how episodes are run."""

    max_turns: dict[str, Annotated[int, Field(gt=0)]] = strict(
        {}, description="Turns by environment; absent ones use the benchmark's own limit."
    )
    max_episode_tokens: int = strict(
        1024, description="Longest episode in tokens: system prompt, observations and replies.", gt=0
    )
    cohort_size: int = strict(
        64,
        description="Episodes of one environment that generate together; the batch decides the last bits of a logit.",
        gt=0,
    )
    oversample: float = strict(
        0.0,
        in_hash_at_default=False,
        description="Further groups that a training step begins, as a share of those that it needs; what is not "
        "complete when enough are is given up. Only with an engine whose episodes go on by themselves (vllm).",
        ge=0,
        le=1,
    )
    environment_workers: int = operational(2, description="Processes that run environments.", gt=0)
    environment_timeout_s: float = operational(
        120.0, description="Longest time of one reset or step before its worker is replaced.", gt=0
    )
    recycle_workers_after: int = operational(
        2000, description="Episodes after which an environment worker is replaced (engines leak memory).", gt=0
    )

    def spare_groups(self, needed: int) -> int:
        """How many groups are begun beyond the ``needed`` ones of an environment."""
        return math.ceil(needed * self.oversample)
