"""The episode loop: plans in, rollouts out.

An engine that generates whole batches plays episodes in lock-step (``cohorts``), one that takes single requests lets
every episode go on by itself (``continuous``). The rules of an episode are the same (``rules``).
"""

from __future__ import annotations

from collections.abc import Sequence

from rised.environments.pool import EnvironmentPool
from rised.models.protocols import Engine, RequestEngine
from rised.models.rendering import ChatRendering
from rised.records.types import Rollout
from rised.rollouts.cohorts import COHORTS_AT_ONCE, collect_in_cohorts
from rised.rollouts.continuous import collect_continuously
from rised.rollouts.plans import EpisodePlan
from rised.rollouts.settings import RolloutSettings
from rised.rollouts.timings import CollectTimings, OnRollout, Progress

__all__ = ["COHORTS_AT_ONCE", "CollectTimings", "OnRollout", "Progress", "collect"]


def collect(
    plans: Sequence[EpisodePlan],
    engine: Engine,
    rendering: ChatRendering,
    pool: EnvironmentPool,
    settings: RolloutSettings,
    on_progress: Progress | None = None,
    timings: CollectTimings | None = None,
    on_rollout: OnRollout | None = None,
) -> list[Rollout]:
    """Play every plan to its end; one rollout per plan, in the order of ``plans``, whatever goes wrong in between.

    ``on_rollout`` should return at once; what it raises ends the collection. ModelError if an engine says that other
    weights sampled a reply than those of its plan.
    """
    timings = timings if timings is not None else CollectTimings()
    if isinstance(engine, RequestEngine):
        return collect_continuously(plans, engine, rendering, pool, settings, on_progress, timings, on_rollout).rollouts
    return collect_in_cohorts(plans, engine, rendering, pool, settings, on_progress, timings, on_rollout)
