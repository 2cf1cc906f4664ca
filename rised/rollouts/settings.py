"""Settings of the episode loop."""

from __future__ import annotations

from rised.config import operational, strict
from rised.models.settings import GenerationSettings


class RolloutSettings(GenerationSettings):
    """Limits of an episode and how episodes are run."""

    max_turns: dict[str, int] = strict(
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
    environment_workers: int = operational(2, description="Processes that run environments.", gt=0)
    environment_timeout_s: float = operational(
        120.0, description="Longest time of one reset or step before its worker is replaced.", gt=0
    )
    recycle_workers_after: int = operational(
        2000, description="Episodes after which an environment worker is replaced (engines leak memory).", gt=0
    )
