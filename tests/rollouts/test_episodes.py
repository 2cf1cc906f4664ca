"""The episode loop: tokens, masks, limits, reproducibility."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from countdown_environment import CountdownSettings, task
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine
from tiny_models import qwen2, tokenizer

from rised.environments.pool import EnvironmentPool
from rised.models.engine import TransformersEngine
from rised.models.randomness import episode_uniforms
from rised.models.rendering import ChatRendering
from rised.models.scoring import sequence_logprobs
from rised.records.schemas import to_table
from rised.records.types import Rollout, StopReason
from rised.rollouts import cohorts, episodes
from rised.rollouts.episodes import CollectionRequest, CollectTimings, collect_rollouts
from rised.rollouts.plans import EpisodePlan
from rised.rollouts.settings import RolloutSettings

NANO, CHATML = ChatRendering(tokenizer("nano")), ChatRendering(tokenizer("chatml"))
LIMITS = RolloutSettings(max_new_tokens_per_turn=8, max_episode_tokens=400, max_turns={"countdown": 5})


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("diary")


@pytest.fixture(scope="module")
def pool(diary: Path) -> Iterator[EnvironmentPool]:
    with make_pool(diary, 2) as made:
        yield made


def make_pool(diary: Path, worker_count: int) -> EnvironmentPool:
    settings = CountdownSettings(diary=str(diary))
    return EnvironmentPool({"countdown": settings}, worker_count, plugin_modules=("countdown_environment",))


def plan(index: int = 0, rollout: int = 0, trouble: dict[str, Any] | None = None, **changes: Any) -> EpisodePlan:
    made = EpisodePlan(
        task=task(index, trouble),
        split="train",
        step=3,
        group_id=f"g{index}",
        rollout_index=rollout,
        run="run",
        run_seed=11,
        weight_version=2,
    )
    return replace(made, **changes)


def test_every_sampled_token_has_uniforms_of_its_own(pool: EnvironmentPool) -> None:
    """Those of the episode in order, whatever the turns are: equal ones in each turn would bias all sampling."""
    given: list[float] = []

    class Recording(ScriptedEngine):
        def session(self, *arguments: Any, **options: Any) -> Any:
            session = super().session(*arguments, **options)
            generate = session.generate

            def recorded(episodes: Any, prompts: Any, limits: Any, uniforms: Any, *more: Any) -> Any:
                replies = generate(episodes, prompts, limits, uniforms, *more)
                for row, one in zip(uniforms, replies, strict=True):
                    assert len(row) >= len(one.token_ids)
                    given.extend(row[: len(one.token_ids)])
                return replies

            session.generate = recorded
            return session

    replies = [reply("guess 1"), reply("guess 2"), reply("guess 3")]
    request = CollectionRequest([plan()], NANO, pool, LIMITS.model_copy(update={"max_turns": {"countdown": 3}}))
    (rollout,) = collect_rollouts(Recording([replies], NANO.end_token_id), request)
    assert len(rollout.turns) == 3 and len(given) == sum(rollout.policy_mask)
    np.testing.assert_array_equal(given, episode_uniforms(plan().seed, len(given)))
    assert len(set(given)) == len(given)


def script(
    pool: EnvironmentPool, replies: Sequence[Sequence[int]], rendering: ChatRendering = NANO, **limits: Any
) -> Rollout:
    """One episode whose replies are given as token ids."""
    engine = ScriptedEngine([replies], rendering.end_token_id)
    return collect_rollouts(engine, CollectionRequest([plan()], rendering, pool, LIMITS.model_copy(update=limits)))[0]


def reply(text: str, rendering: ChatRendering = NANO) -> list[int]:
    return rendering._encode(text) + [rendering.end_token_id]


def check_invariants(rollout: Rollout, rendering: ChatRendering) -> None:
    """What must hold for every rollout, however it ended."""
    assert len(rollout.token_ids) == len(rollout.policy_mask)
    assert len(rollout.logprobs) == sum(rollout.policy_mask)
    spans = [(turn.action_start, turn.action_end) for turn in rollout.turns]
    from_spans = [False] * len(rollout.token_ids)
    for start, end in spans:
        from_spans[start:end] = [True] * (end - start)
    assert from_spans == list(rollout.policy_mask)
    rebuilt: list[int] = []
    for index, turn in enumerate(rollout.turns):
        scaffold = (
            rendering.extend(turn.observation) if index else rendering.start(rollout.system_prompt, turn.observation)
        )
        rebuilt += scaffold
        own = list(rollout.token_ids[turn.action_start : turn.action_end])
        assert turn.action_start == len(rebuilt)
        rebuilt += own
        assert turn.truncated == (own[-1] != rendering.end_token_id)
        assert turn.action_raw == rendering.decode(own)
        if turn.truncated:
            rebuilt.append(rendering.end_token_id)
    assert rebuilt == list(rollout.token_ids[: len(rebuilt)])
    assert not any(rollout.policy_mask[len(rebuilt) :])
    assert rollout.reward_valid == (rollout.reward is not None)


def test_sampled_ids_are_stored_not_reencoded_ones(pool: EnvironmentPool) -> None:
    """A reply sampled in other pieces than encoding its text would give, then the end token."""
    for rendering in (NANO, CHATML):
        pieces = rendering._encode("he") + rendering._encode("llo")
        assert rendering._encode("hello") != pieces
        rollout = script(pool, [[*pieces, rendering.end_token_id]] * 5, rendering)
        first = rollout.turns[0]
        assert list(rollout.token_ids[first.action_start : first.action_end]) == [*pieces, rendering.end_token_id]
        assert first.action_raw == "hello"
        after = list(rollout.token_ids[first.action_end : rollout.turns[1].action_start])
        assert after == rendering.extend("say digits")
        check_invariants(rollout, rendering)


def test_the_chatml_newline_after_the_end_token_is_masked(pool: EnvironmentPool) -> None:
    rollout = script(pool, [reply("50", CHATML)] * 5, CHATML)
    end = rollout.turns[0].action_end
    assert rollout.token_ids[end - 1] == CHATML.end_token_id and rollout.policy_mask[end - 1]
    assert tokenizer("chatml").decode([rollout.token_ids[end]]) == "\n" and not rollout.policy_mask[end]


def test_a_truncated_reply_is_closed_by_an_unsampled_end_token(pool: EnvironmentPool) -> None:
    words = NANO._encode("the shelf 1 the shelf 2 Nothing happens. hello")
    rollout = script(pool, [words] * 5)
    for turn in rollout.turns:
        assert turn.truncated and turn.action_end - turn.action_start == 8
        assert rollout.token_ids[turn.action_end] == NANO.end_token_id
        assert not rollout.policy_mask[turn.action_end]
    check_invariants(rollout, NANO)


def test_a_reply_cut_inside_a_character_keeps_its_ids(pool: EnvironmentPool) -> None:
    emoji = NANO._encode("\u00ff")
    byte = tokenizer("nano").convert_tokens_to_ids("Ã")
    assert byte in emoji or len(emoji) == 1
    rollout = script(pool, [[byte, NANO.end_token_id]] * 5)
    turn = rollout.turns[0]
    assert turn.action_raw == "\ufffd"
    assert list(rollout.token_ids[turn.action_start : turn.action_end]) == [byte, NANO.end_token_id]


def test_running_out_of_turns_is_a_failure_with_reward_zero(pool: EnvironmentPool) -> None:
    rollout = script(pool, [reply("hello")] * 5)
    assert (rollout.stop_reason, rollout.reward, rollout.success) == (StopReason.TURN_LIMIT, 0.0, False)
    assert len(rollout.turns) == 5
    assert rollout.final_observation == "say digits"


def test_the_environments_verdict_is_stored(pool: EnvironmentPool) -> None:
    number = random.Random(f"number-0/{task(0).seed}").randrange(100)
    rollout = script(pool, [reply("hello"), reply(f"it is {number}")])
    assert (rollout.stop_reason, rollout.reward, rollout.success) == (StopReason.ENVIRONMENT_DONE, 1.0, True)
    assert [turn.action_valid for turn in rollout.turns] == [False, True]
    assert rollout.turns[1].action_mapped == str(number) and rollout.turns[1].info == {"turn": 2}
    assert rollout.final_observation == "right"
    assert rollout.policy_mask[-1]


@pytest.mark.parametrize("budget", range(40, 90, 3))
def test_the_token_budget_is_never_exceeded_and_leaves_no_reward(pool: EnvironmentPool, budget: int) -> None:
    rollout = script(pool, [reply("hello hello")] * 5, max_episode_tokens=budget)
    check_invariants(rollout, NANO)
    assert rollout.stop_reason in (StopReason.EPISODE_TOKEN_LIMIT, StopReason.TURN_LIMIT)
    if rollout.stop_reason is StopReason.EPISODE_TOKEN_LIMIT:
        assert (rollout.reward, rollout.reward_valid, rollout.success) == (None, False, False)
        assert not rollout.turns or rollout.turns[-1].action_end <= budget


def test_what_the_engine_saw_and_what_is_stored_must_agree(pool: EnvironmentPool) -> None:
    engine = ScriptedEngine([[reply("hello")] * 5, [reply("hello")] * 5], NANO.end_token_id, corrupt_turn=1)
    for rollout in collect_rollouts(engine, CollectionRequest([plan(0), plan(1)], NANO, pool, LIMITS)):
        assert rollout.stop_reason is StopReason.PREFIX_VIOLATION
        assert (rollout.reward, rollout.reward_valid, rollout.success) == (None, False, None)
        assert len(rollout.turns) == 2


def test_an_episode_whose_environment_keeps_failing_is_kept_without_a_reward(diary: Path) -> None:
    troubles = [None, {"kind": "raise", "turn": 2, "times": 99}, {"kind": "raise", "turn": 0, "times": 99}]
    plans = [plan(40 + index, trouble=trouble) for index, trouble in enumerate(troubles)]
    with make_pool(diary, 1) as pool:
        engine = ScriptedEngine([[reply("hello")] * 5] * 3, NANO.end_token_id)
        rollouts = collect_rollouts(engine, CollectionRequest(plans, NANO, pool, LIMITS))
    assert [r.stop_reason for r in rollouts] == [StopReason.TURN_LIMIT] + [StopReason.ENVIRONMENT_ERROR] * 2
    assert [r.reward for r in rollouts] == [0.0, None, None]
    assert [len(r.turns) for r in rollouts] == [5, 2, 0]
    assert "engine broke" in rollouts[1].turns[-1].info["fault"]


def test_a_rollout_is_handed_out_once_its_episode_ends_while_others_are_still_played(pool: EnvironmentPool) -> None:
    right = reply(f"it is {random.Random(f'number-1/{task(1).seed}').randrange(100)}")
    engine = ScriptedEngine([[reply("hello")] * 5, [right]], NANO.end_token_id)
    seen: list[tuple[Rollout, int]] = []
    plans = [plan(0), plan(1)]
    request = CollectionRequest(
        plans, NANO, pool, LIMITS, on_rollout=lambda r: seen.append((r, engine.tokens_generated))
    )
    rollouts = collect_rollouts(engine, request)
    assert [rollout for rollout, _ in seen] == [rollouts[1], rollouts[0]]
    assert seen[0][1] == len(reply("hello")) + len(right), "after the first turn of five"


def test_what_the_receiver_of_rollouts_raises_ends_the_collection(pool: EnvironmentPool) -> None:
    def refuse(rollout: Rollout) -> None:
        raise KeyError(rollout.rollout_id)

    engine = ScriptedEngine([[reply("hello")] * 5] * 2, NANO.end_token_id)
    with pytest.raises(KeyError, match="train-000003-g0-0"):
        collect_rollouts(engine, CollectionRequest([plan(0), plan(1)], NANO, pool, LIMITS, on_rollout=refuse))


# ---- with a real model


@pytest.fixture(scope="module")
def engine() -> TransformersEngine:
    return TransformersEngine(qwen2(vocabulary=len(tokenizer("nano"))), NANO.end_token_id)


PLANS = [plan(index, rollout) for index in range(3) for rollout in range(4)]


@pytest.fixture(scope="module")
def reference(engine: TransformersEngine, pool: EnvironmentPool) -> list[Rollout]:
    return collect_rollouts(engine, CollectionRequest(PLANS, NANO, pool, LIMITS))


def test_one_rollout_per_plan_in_order_with_all_invariants(reference: list[Rollout]) -> None:
    assert [r.rollout_id for r in reference] == [f"train-000003-g{i}-{j}" for i in range(3) for j in range(4)]
    for rollout in reference:
        check_invariants(rollout, NANO)
    assert len({rollout.token_ids for rollout in reference}) == len(reference)


def test_the_same_seed_gives_identical_rollouts(
    reference: list[Rollout], engine: TransformersEngine, pool: EnvironmentPool
) -> None:
    assert collect_rollouts(engine, CollectionRequest(PLANS, NANO, pool, LIMITS)) == reference


def test_another_number_of_workers_gives_identical_rollouts(
    reference: list[Rollout], engine: TransformersEngine, diary: Path
) -> None:
    with make_pool(diary, 3) as pool:
        assert collect_rollouts(engine, CollectionRequest(PLANS, NANO, pool, LIMITS)) == reference


def test_a_worker_killed_while_collecting_changes_nothing(
    reference: list[Rollout], engine: TransformersEngine, pool: EnvironmentPool
) -> None:
    restarts, killed = pool.restarts, []

    def kill_once(finished: int, total: int) -> None:
        if not killed:
            killed.append(pool.worker_pids[0])
            os.kill(killed[0], signal.SIGKILL)

    assert collect_rollouts(engine, CollectionRequest(PLANS, NANO, pool, LIMITS, on_progress=kill_once)) == reference
    assert pool.restarts == restarts + 1


def test_the_order_of_plans_does_not_change_an_episode(
    reference: list[Rollout], engine: TransformersEngine, pool: EnvironmentPool
) -> None:
    order = list(np.random.default_rng(0).permutation(len(PLANS)))
    shuffled = collect_rollouts(engine, CollectionRequest([PLANS[i] for i in order], NANO, pool, LIMITS))
    for place, index in enumerate(order):
        assert shuffled[place].token_ids == reference[index].token_ids
        assert shuffled[place].logprobs == pytest.approx(reference[index].logprobs, abs=1e-4)


def test_cohorts_of_another_size_sample_the_same(
    reference: list[Rollout], engine: TransformersEngine, pool: EnvironmentPool
) -> None:
    small = collect_rollouts(engine, CollectionRequest(PLANS, NANO, pool, LIMITS.model_copy(update={"cohort_size": 5})))
    assert [r.token_ids for r in small] == [r.token_ids for r in reference]


def test_another_run_seed_or_step_gives_other_rollouts(
    reference: list[Rollout], engine: TransformersEngine, pool: EnvironmentPool
) -> None:
    for change in ({"run_seed": 12}, {"step": 4}, {"split": "validation"}):
        plans = [replace(each, **change) for each in PLANS]
        other = collect_rollouts(engine, CollectionRequest(plans, NANO, pool, LIMITS))
        assert sum(a.token_ids == b.token_ids for a, b in zip(other, reference, strict=True)) <= 1


def test_stored_log_probabilities_are_those_of_the_model(reference: list[Rollout], engine: TransformersEngine) -> None:
    scored = sequence_logprobs(engine.model, [r.token_ids for r in reference], [r.policy_mask for r in reference])
    for rollout, values in zip(reference, scored, strict=True):
        assert values.tolist() == pytest.approx(list(rollout.logprobs), abs=1e-4)


def test_steering_text_is_seen_by_the_policy_and_stored_with_its_hash(
    engine: TransformersEngine, pool: EnvironmentPool
) -> None:
    text = "Avoid: repeating a guess."
    plans = [plan(0, steering_text=text, steering_rubrics=("repeats_action",)), plan(1)]
    steered, plain = collect_rollouts(engine, CollectionRequest(plans, NANO, pool, LIMITS))
    assert steered.system_prompt == pool.system_prompt("countdown") + "\n" + text
    prompt = tokenizer("nano").decode(list(steered.token_ids[: steered.turns[0].action_start]))
    assert text in prompt
    assert steered.steering_text_hash == hashlib.sha256(text.encode()).hexdigest()
    assert steered.steering_rubrics == ("repeats_action",)
    assert plain.system_prompt == pool.system_prompt("countdown") and plain.steering_text_hash == ""


def ticking(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Give modules a clock that is one second further whenever it is read."""
    clock = SimpleNamespace(perf_counter=itertools.count(1.0).__next__)
    for module in modules:
        monkeypatch.setattr(module, "time", clock)


def test_timings_count_tokens_and_the_seconds_of_each_part(
    engine: TransformersEngine, pool: EnvironmentPool, reference: list[Rollout], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticking(monkeypatch, episodes, cohorts)
    timings = CollectTimings()
    seen: list[tuple[int, int]] = []
    collect_rollouts(
        engine,
        CollectionRequest(PLANS, NANO, pool, LIMITS, on_progress=lambda *counts: seen.append(counts), timings=timings),
    )
    assert timings.tokens_generated == sum(len(r.logprobs) for r in reference)
    assert 0 < timings.generation_s < timings.wall_s and timings.environment_s > 0
    assert seen[-1] == (len(PLANS), len(PLANS))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.integers(5, 380), min_size=1, max_size=12), min_size=5, max_size=5),
    st.lists(st.booleans(), min_size=5, max_size=5),
    st.integers(30, 200),
    st.sampled_from([NANO, CHATML]),
)
def test_invariants_hold_for_any_sampled_tokens(
    pool: EnvironmentPool, words: list[list[int]], ends: list[bool], budget: int, rendering: ChatRendering
) -> None:
    replies = [[*ids, rendering.end_token_id] if end else ids * 3 for ids, end in zip(words, ends, strict=True)]
    check_invariants(script(pool, replies, rendering, max_episode_tokens=budget), rendering)


def test_half_a_character_in_an_observation_is_replaced_and_noted_and_costs_no_episode(pool: EnvironmentPool) -> None:
    said = [{"0": " a\ud800b"}, {"1": " a\ud800b"}, {}]
    plans = [plan(index) for index in range(3)]
    plans = [replace(p, task=replace(p.task, payload={"say": say})) for p, say in zip(plans, said, strict=True)]
    engine = ScriptedEngine([[reply("x")] * 5] * 3, NANO.end_token_id)
    rollouts = collect_rollouts(engine, CollectionRequest(plans, NANO, pool, LIMITS))
    for rollout in rollouts:
        check_invariants(rollout, NANO)
    assert [[turn.info.get("text_replaced", False) for turn in r.turns[:2]] for r in rollouts] == [
        [True, False],
        [True, False],
        [False, False],
    ]
    assert rollouts[0].turns[0].observation.endswith(" a\ufffdb")
    assert rollouts[1].turns[1].observation == "say digits a\ufffdb"
    to_table(rollouts)


def test_sampled_ids_without_a_text_are_counted_and_kept(pool: EnvironmentPool) -> None:
    beyond = len(NANO.tokenizer)
    replies = [[beyond, *reply("x")], reply("x"), [beyond + 3, beyond, *reply("x")], reply("x"), reply("x")]
    rollout = script(pool, replies)
    check_invariants(rollout, NANO)
    assert [turn.info.get("undecodable_ids") for turn in rollout.turns] == [1, None, 2, None, None]
    assert rollout.token_ids.count(beyond) == 2
