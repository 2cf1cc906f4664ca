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
from rised.rollouts.oversampling import FirstComplete
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

    Where some plans are spare, rollouts of as many whole groups of each environment as are not; the others are given up
    and counted in ``timings``. ValueError if the engine cannot give up single episodes.

    ``on_rollout`` should return at once; what it raises ends the collection. ModelError if an engine says that other
    weights sampled a reply than those of its plan.
    """
    timings = timings if timings is not None else CollectTimings()
    spare = any(plan.spare for plan in plans)
    if isinstance(engine, RequestEngine) and spare:
        return _collect_the_first(plans, engine, rendering, pool, settings, on_progress, timings, on_rollout)
    if isinstance(engine, RequestEngine):
        return collect_continuously(plans, engine, rendering, pool, settings, on_progress, timings, on_rollout).rollouts
    if spare:
        raise ValueError("an engine whose episodes advance together gives up none of them: set rollout.oversample to 0")
    return collect_in_cohorts(plans, engine, rendering, pool, settings, on_progress, timings, on_rollout)


def _collect_the_first(
    plans: Sequence[EpisodePlan],
    engine: RequestEngine,
    rendering: ChatRendering,
    pool: EnvironmentPool,
    settings: RolloutSettings,
    on_progress: Progress | None,
    timings: CollectTimings,
    on_rollout: OnRollout | None,
) -> list[Rollout]:
    first = FirstComplete(plans)
    begun = [plan for plan in plans if first.wants(plan)]
    found = collect_continuously(
        begun, engine, rendering, pool, settings, on_progress, timings, on_rollout, superfluous=first
    )
    surplus = [rollout for rollout in found.rollouts if not first.needs(rollout)]
    timings.cancelled += len(plans) - len(begun) + len(found.cancelled) + len(surplus)
    timings.cancelled_tokens += sum(episode.tokens for episode in found.cancelled)
    timings.cancelled_tokens += sum(sum(rollout.policy_mask) for rollout in surplus)
    return [rollout for rollout in found.rollouts if first.needs(rollout)]
