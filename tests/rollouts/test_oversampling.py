"""More groups are begun than are needed: whole groups come back, as many as were asked for, and the rest is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from request_engine import ThreadedEngine
from scripted_engine import ScriptedEngine
from test_episodes import LIMITS, NANO, make_pool, plan, reply

from rised.environments.pool import EnvironmentPool
from rised.rollouts.episodes import CollectionRequest, CollectTimings, collect_rollouts
from rised.rollouts.oversampling import is_spare

GROUPS, SIZE, SPARE = 5, 4, 2
PLANS = [
    replace(plan(group, index), spare=is_spare(group, GROUPS - SPARE, SPARE))
    for group in range(GROUPS)
    for index in range(SIZE)
]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentPool]:
    with make_pool(tmp_path_factory.mktemp("diary"), 2) as made:
        yield made


def threaded(**options: object) -> ThreadedEngine:
    return ThreadedEngine(None, NANO.end_token_id, [reply("hello")], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("concurrency", [3, 64])
def test_the_first_whole_groups_come_back_and_all_others_are_counted(pool: EnvironmentPool, concurrency: int) -> None:
    timings, heard = CollectTimings(), []
    engine = threaded(concurrency=concurrency)
    request = CollectionRequest(PLANS, NANO, pool, LIMITS, on_rollout=heard.append, timings=timings)
    rollouts = collect_rollouts(engine, request)  # type: ignore[arg-type]
    assert set(Counter(r.group_id for r in rollouts).values()) == {SIZE}
    assert len(rollouts) == (GROUPS - SPARE) * SIZE
    assert timings.cancelled == SPARE * SIZE
    kept = {r.rollout_id for r in rollouts}
    order = [p.rollout_id for p in PLANS if p.rollout_id in kept]
    assert [r.rollout_id for r in rollouts] == order, "in the order of the plans"
    plans = [replace(p, spare=False) for p in PLANS]
    whole = collect_rollouts(threaded(), CollectionRequest(plans, NANO, pool, LIMITS))
    everything = {r.rollout_id: r for r in whole}
    assert all(everything[r.rollout_id] == r for r in rollouts), "each as it would have been"
    tokens = engine.tokens_generated - sum(sum(r.policy_mask) for r in rollouts)
    assert 0 <= timings.cancelled_tokens <= tokens and kept <= {r.rollout_id for r in heard}


def test_nothing_is_given_up_where_nothing_is_spare(pool: EnvironmentPool) -> None:
    request = CollectionRequest([replace(p, spare=False) for p in PLANS], NANO, pool, LIMITS)
    assert len(collect_rollouts(threaded(), request)) == len(PLANS)
    assert request.timings.cancelled == 0


def test_a_process_that_has_spare_groups_alone_keeps_none(pool: EnvironmentPool) -> None:
    spare = [p for p in PLANS if p.spare]
    assert collect_rollouts(threaded(), CollectionRequest(spare, NANO, pool, LIMITS)) == []


def test_an_engine_that_plays_in_step_refuses_spare_groups(pool: EnvironmentPool) -> None:
    engine = ScriptedEngine([[reply("hello")] * 5] * len(PLANS), NANO.end_token_id)
    with pytest.raises(ValueError, match="set rollout.oversample to 0"):
        collect_rollouts(engine, CollectionRequest(PLANS, NANO, pool, LIMITS))


@given(st.integers(1, 60), st.integers(0, 60))
def test_spare_groups_are_spread_evenly(needed: int, spare: int) -> None:
    flags = [is_spare(place, needed, spare) for place in range(needed + spare)]
    assert sum(flags) == spare
    for width in {1, 2, 3, max(1, len(flags) // 8)}:
        counts = [sum(flags[start : start + width]) for start in range(len(flags) - width + 1)]
        assert not counts or max(counts) - min(counts) <= 1, "any stretch of groups has its part of them"
