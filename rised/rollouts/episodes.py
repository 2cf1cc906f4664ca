"""The episode loop: plans in, rollouts out.

An engine that generates whole batches plays episodes in lock-step (``cohorts``), one that takes single requests lets
every episode go on by itself (``continuous``). The rules of an episode are the same (``rules``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from rised.models.protocols import Engine, RequestEngine
from rised.records.types import Rollout
from rised.rollouts.cohorts import collect_in_cohorts
from rised.rollouts.collection import CollectionRequest, CollectTimings, OnRollout, Progress
from rised.rollouts.continuous import collect_continuously
from rised.rollouts.oversampling import FirstComplete

__all__ = [
    "CollectTimings",
    "CollectionRequest",
    "OnRollout",
    "Progress",
    "collect_rollouts",
]


def collect_rollouts(engine: Engine, request: CollectionRequest) -> list[Rollout]:
    """Play every plan to its end; one rollout per plan, in the order of the plans, whatever goes wrong in between.

    Where some plans are spare, rollouts of as many whole groups of each environment as are not; the others are given up
    and counted in the timings. ValueError if the engine cannot give up single episodes. ModelError if it says that
    other weights sampled a reply than those of its plan.
    """
    spare = any(plan.spare for plan in request.plans)
    with _measured(engine, request.timings):
        if isinstance(engine, RequestEngine):
            return _collect_the_first(engine, request) if spare else collect_continuously(engine, request).rollouts
        if spare:
            raise ValueError(
                "an engine whose episodes advance together gives up none of them: set rollout.oversample to 0"
            )
        return collect_in_cohorts(engine, request)


@contextmanager
def _measured(engine: Engine, timings: CollectTimings) -> Iterator[None]:
    """Add the wall-clock seconds of what is done inside, and the tokens of the engine meanwhile."""
    begun, fed, generated = time.perf_counter(), engine.tokens_fed, engine.tokens_generated
    yield
    timings.wall_s += time.perf_counter() - begun
    timings.tokens_fed += engine.tokens_fed - fed
    timings.tokens_generated += engine.tokens_generated - generated


def _collect_the_first(engine: RequestEngine, request: CollectionRequest) -> list[Rollout]:
    first = FirstComplete(request.plans)
    begun = [plan for plan in request.plans if first.wants(plan)]
    found = collect_continuously(engine, replace(request, plans=begun), superfluous=first)
    surplus = [rollout for rollout in found.rollouts if not first.needs(rollout)]
    timings = request.timings
    timings.cancelled += len(request.plans) - len(begun) + len(found.cancelled) + len(surplus)
    timings.cancelled_tokens += sum(episode.tokens for episode in found.cancelled)
    timings.cancelled_tokens += sum(sum(rollout.policy_mask) for rollout in surplus)
    return [rollout for rollout in found.rollouts if first.needs(rollout)]
