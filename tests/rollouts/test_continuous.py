"""Episodes that go on by themselves: the cohort loop's rules, order and limits, whatever the order of arrival."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from countdown_environment import task
from request_engine import ThreadedEngine
from scripted_engine import ScriptedEngine
from test_episodes import LIMITS, NANO, check_invariants, make_pool, plan, reply, ticking
from tiny_models import qwen2, tokenizer

from rised.environments.pool import EnvironmentPool
from rised.models.engine import TransformersEngine
from rised.models.errors import ModelError
from rised.models.randomness import reply_seed
from rised.records.types import Rollout, StopReason
from rised.rollouts import continuous, episodes
from rised.rollouts.continuous import collect_continuously
from rised.rollouts.episodes import CollectionRequest, CollectTimings, collect_rollouts
from rised.rollouts.rules import prompt_tokens

PLANS = [plan(index, rollout) for index in range(3) for rollout in range(4)]


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("diary")


@pytest.fixture(scope="module")
def pool(diary: Path) -> Iterator[EnvironmentPool]:
    with make_pool(diary, 2) as made:
        yield made


def hello(**options: object) -> ThreadedEngine:
    return ThreadedEngine(None, NANO.end_token_id, [reply("hello")], **options)  # type: ignore[arg-type]


def number_of(index: int) -> int:
    return random.Random(f"number-{index}/{task(index).seed}").randrange(100)


@pytest.mark.parametrize("words", ["hello", "hello hello hello hello hello", f"it is {number_of(1)}"])
@pytest.mark.parametrize("budget", [40, 55, 90, 400])
def test_the_rules_are_those_of_the_cohort_loop(pool: EnvironmentPool, words: str, budget: int) -> None:
    limits = LIMITS.model_copy(update={"max_episode_tokens": budget})
    scripted = ScriptedEngine([[reply(words)] * 5] * len(PLANS), NANO.end_token_id)
    expected = collect_rollouts(scripted, CollectionRequest(PLANS, NANO, pool, limits))
    alone = ThreadedEngine(None, NANO.end_token_id, [reply(words)])
    assert collect_rollouts(alone, CollectionRequest(PLANS, NANO, pool, limits)) == expected


def test_a_prompt_beyond_the_limit_costs_no_other_episode_in_either_loop(pool: EnvironmentPool) -> None:
    plans = [plan(80), plan(81), plan(82)]
    long = replace(plans[1].task, payload={"say": {"0": " and so on" * 80}})
    plans[1] = replace(plans[1], task=long)
    scripted = ScriptedEngine([[reply("hello")] * 5] * 3, NANO.end_token_id)
    for engine in (scripted, hello()):
        rollouts = collect_rollouts(engine, CollectionRequest(plans, NANO, pool, LIMITS))
        assert [r.stop_reason for r in rollouts] == [
            StopReason.TURN_LIMIT,
            StopReason.EPISODE_TOKEN_LIMIT,
            StopReason.TURN_LIMIT,
        ]
        assert (rollouts[1].turns, rollouts[1].reward_valid) == ((), False) and len(rollouts[1].token_ids) > 400


def test_the_tokens_of_prompts_are_measured_without_an_engine(pool: EnvironmentPool) -> None:
    plans = [plan(83), plan(84)]
    rollouts = collect_rollouts(hello(), CollectionRequest(plans, NANO, pool, LIMITS))
    tasks = [p.task for p in plans]
    assert prompt_tokens(pool, NANO, tasks) == {"countdown": [r.turns[0].action_start for r in rollouts]}


def test_troubles_of_the_environment_end_as_in_the_cohort_loop(diary: Path) -> None:
    troubles = [None, {"kind": "raise", "turn": 2, "times": 99}, {"kind": "raise", "turn": 0, "times": 99}]
    found = []
    for first, engine in ((60, ScriptedEngine([[reply("hello")] * 5] * 3, NANO.end_token_id)), (70, hello())):
        plans = [plan(first + index, trouble=trouble) for index, trouble in enumerate(troubles)]
        with make_pool(diary, 1) as pool:
            rollouts = collect_rollouts(engine, CollectionRequest(plans, NANO, pool, LIMITS))  # type: ignore[arg-type]
        found.append([(r.stop_reason, r.reward, len(r.turns)) for r in rollouts])
    assert found[0] == found[1]
    assert [reason for reason, _, _ in found[1]] == [StopReason.TURN_LIMIT] + [StopReason.ENVIRONMENT_ERROR] * 2


def test_what_the_engine_read_and_what_is_stored_must_agree(pool: EnvironmentPool) -> None:
    (rollout,) = collect_rollouts(hello(forget_a_token=True), CollectionRequest([plan()], NANO, pool, LIMITS))
    assert (rollout.stop_reason, rollout.reward, rollout.success) == (StopReason.PREFIX_VIOLATION, None, None)


def test_a_reply_of_another_version_than_the_plans_ends_the_collection(pool: EnvironmentPool) -> None:
    assert collect_rollouts(hello(version=2), CollectionRequest([plan()], NANO, pool, LIMITS))[0].weight_version == 2
    with pytest.raises(ModelError, match="train-000003-g0-0: .* version 3 of the weights instead of 2"):
        collect_rollouts(hello(version=3), CollectionRequest([plan()], NANO, pool, LIMITS))
    (rollout,) = collect_rollouts(hello(), CollectionRequest([plan()], NANO, pool, LIMITS))
    assert rollout.stop_reason is StopReason.TURN_LIMIT, "the pool is sound"


def test_each_request_holds_the_whole_episode_and_a_seed_of_episode_and_turn(pool: EnvironmentPool) -> None:
    engine = hello()
    (rollout,) = collect_rollouts(engine, CollectionRequest([plan(1, 3)], NANO, pool, LIMITS))
    assert len(engine.requests) == len(rollout.turns) == 5
    for turn, request in enumerate(engine.requests):
        assert list(request.token_ids) == list(rollout.token_ids[: rollout.turns[turn].action_start])
        assert request.seed == reply_seed(rollout.seed, turn) and request.affinity == "g1"
        assert (request.temperature, request.top_p, request.max_new_tokens) == (1.0, 1.0, 8)
    assert len({request.seed for request in engine.requests}) == 5


def test_no_more_episodes_are_open_than_the_engine_takes(pool: EnvironmentPool) -> None:
    engine = hello(concurrency=3)
    rollouts = collect_rollouts(engine, CollectionRequest(PLANS, NANO, pool, LIMITS))
    assert engine.most_at_once <= 3 and [r.rollout_id for r in rollouts] == [p.rollout_id for p in PLANS]


def test_an_episode_goes_on_while_another_waits_for_its_reply(pool: EnvironmentPool) -> None:
    """One reply is held back until the other episode has come to its end."""

    class Holding(ThreadedEngine):
        def _answer(self, request, delay):  # type: ignore[no-untyped-def]
            if request.affinity == "g0":
                assert self.first_over.wait(120)
            return super()._answer(request, delay)

    engine = Holding(None, NANO.end_token_id, [reply("hello")])
    engine.first_over = threading.Event()  # type: ignore[attr-defined]
    ended: list[str] = []

    def note(rollout: Rollout) -> None:
        ended.append(rollout.group_id)
        engine.first_over.set()  # type: ignore[attr-defined]

    rollouts = collect_rollouts(engine, CollectionRequest([plan(0), plan(1)], NANO, pool, LIMITS, on_rollout=note))
    assert ended == ["g1", "g0"] and [r.group_id for r in rollouts] == ["g0", "g1"]


def test_rollouts_with_a_real_model_repeat_in_any_order_of_arrival(pool: EnvironmentPool, diary: Path) -> None:
    model = TransformersEngine(qwen2(vocabulary=len(tokenizer("nano"))), NANO.end_token_id)
    first = collect_rollouts(ThreadedEngine(model, NANO.end_token_id), CollectionRequest(PLANS, NANO, pool, LIMITS))
    for rollout in first:
        check_invariants(rollout, NANO)
    assert len({rollout.token_ids for rollout in first}) == len(first)
    killed: list[int] = []

    def kill_once(finished: int, total: int) -> None:
        if not killed:
            killed.append(other.worker_pids[0])
            os.kill(killed[0], signal.SIGKILL)

    with make_pool(diary, 3) as other:
        slow = ThreadedEngine(model, NANO.end_token_id, concurrency=5, delays=(0.0, 0.05))
        assert collect_rollouts(slow, CollectionRequest(PLANS, NANO, other, LIMITS, on_progress=kill_once)) == first
        assert killed and other.restarts <= 1


def test_progress_and_timings_count_what_was_done(pool: EnvironmentPool, monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch, episodes, continuous)
    timings, seen = CollectTimings(), []
    engine = hello()
    rollouts = collect_rollouts(
        engine,
        CollectionRequest(PLANS, NANO, pool, LIMITS, on_progress=lambda *counts: seen.append(counts), timings=timings),
    )
    assert seen[-1] == (12, 12) and [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert timings.tokens_generated == sum(len(r.logprobs) for r in rollouts) and timings.tokens_fed > 0
    assert 0 < timings.generation_s <= timings.wall_s and 0 < timings.environment_s <= timings.wall_s


def test_what_the_receiver_of_rollouts_raises_ends_the_collection_and_the_pool_stays_sound(
    pool: EnvironmentPool,
) -> None:
    def refuse(rollout: Rollout) -> None:
        raise KeyError(rollout.rollout_id)

    with pytest.raises(KeyError, match="train-000003-g"):
        collect_rollouts(hello(), CollectionRequest(PLANS, NANO, pool, LIMITS, on_rollout=refuse))
    assert len(collect_rollouts(hello(), CollectionRequest(PLANS, NANO, pool, LIMITS))) == 12


# ---- enough


def test_what_is_superfluous_is_cancelled_counted_and_never_a_rollout(pool: EnvironmentPool) -> None:
    """As soon as two of a group's four have ended the other two are not needed."""
    ended: dict[str, list[str]] = {}
    engine = hello(concurrency=6)

    def superfluous(rollout: Rollout) -> list[str]:
        ended.setdefault(rollout.group_id, []).append(rollout.rollout_id)
        if len(ended[rollout.group_id]) < 2:
            return []
        return [p.rollout_id for p in PLANS if p.group_id == rollout.group_id]

    timings = CollectTimings()
    found = collect_continuously(
        engine, CollectionRequest(PLANS, NANO, pool, LIMITS, timings=timings), superfluous=superfluous
    )
    assert {group: len(ids) for group, ids in ended.items()} == {"g0": 2, "g1": 2, "g2": 2}
    rollouts = [r.rollout_id for r in found.rollouts]
    cancelled = [c.plan.rollout_id for c in found.cancelled]
    assert len(rollouts) == len(cancelled) == 6
    assert sorted(rollouts + cancelled) == sorted(p.rollout_id for p in PLANS)
    assert all(c.tokens >= c.turns * len(reply("hello")) and c.turns < 5 for c in found.cancelled)
    again = collect_rollouts(hello(), CollectionRequest(PLANS, NANO, pool, LIMITS))
    assert {r.rollout_id: r for r in again} | {r.rollout_id: r for r in found.rollouts} == {
        r.rollout_id: r for r in again
    }, "the pool holds nothing of what was cancelled, and the others are as they would have been"


def test_the_requests_of_superfluous_episodes_are_cancelled_while_they_run(pool: EnvironmentPool) -> None:
    engine = ThreadedEngine(None, NANO.end_token_id, [reply(f"it is {number_of(1)}")], delays=(0.0, 0.0))
    answer, submit = engine._answer, engine.submit
    cancelled, all_cancelled = [], threading.Event()

    def asked_for_g0() -> int:
        """Requests so far; an episode that waits for its environment by then has none to cancel."""
        return sum(request.affinity == "g0" for request in engine.requests)

    def slow(request, delay):  # type: ignore[no-untyped-def]
        if request.affinity == "g0":
            assert all_cancelled.wait(60), "the reply is waited for"
        return answer(request, delay)

    def cancellable(request):  # type: ignore[no-untyped-def]
        future = submit(request)

        def cancel() -> bool:
            cancelled.append(request.affinity)
            if len(cancelled) == asked_for_g0():
                all_cancelled.set()
            return type(future).cancel(future)

        future.cancel = cancel
        return future

    engine._answer, engine.submit = slow, cancellable  # type: ignore[method-assign]
    found = collect_continuously(
        engine,
        CollectionRequest([plan(0, i) for i in range(4)] + [plan(1)], NANO, pool, LIMITS),
        superfluous=lambda rollout: [plan(0, i).rollout_id for i in range(4)],
    )
    assert cancelled == ["g0"] * asked_for_g0()
    assert [r.group_id for r in found.rollouts] == ["g1"] and len(found.cancelled) == 4
