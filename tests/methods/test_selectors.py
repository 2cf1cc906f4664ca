"""Selectors: exact counts, quotas, ties, and the greedy score against a plain reference."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from method_examples import group, tags_of, vocabulary

from rised.methods.base import PromptGroup, Selector
from rised.methods.errors import MethodError
from rised.methods.registry import build, known_types, piece_settings
from rised.methods.selectors._profiles import candidate_profiles
from rised.records.types import Selection, TagState
from rised.rubrics.profiles import cosine, rubric_profile

ROUND_ROBIN = ["round_robin_variance", "profile", "herding", "facility_location"]
STATES = list(TagState)
ENVIRONMENTS = ["alfworld", "dbbench", "webshop"]
RUBRICS = {e: [r.id for r in vocabulary().applicable(e)][:6] for e in ENVIRONMENTS}


def selector(type_name: str, **more: Any) -> Selector:
    built: Selector = build(
        "selector", piece_settings("selector", {"type": type_name, **more}), vocabulary=vocabulary()
    )
    return built


@st.composite
def candidates(draw: st.DrawFn, minimum: int = 1, sure: int = 0) -> list[PromptGroup]:
    """Groups of up to three environments, some of them untagged; ``sure``: at least so many tagged ones in each."""
    groups = []
    for environment in draw(st.lists(st.sampled_from(ENVIRONMENTS), min_size=1, max_size=3, unique=True)):
        count = draw(st.integers(max(minimum, sure), max(sure, 6)))
        for index in range(count):
            states = {rubric: draw(st.sampled_from(STATES)) for rubric in RUBRICS[environment]}
            rewards = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=2, max_size=4))
            errors = 0 if index < sure else draw(st.sampled_from([0, 0, len(rewards)]))
            groups.append(group(f"{environment}-{index}", environment, rewards, states, errors))
    return groups


def chosen(selections: list[Selection]) -> list[str]:
    """Ids of the selected groups in the order of choice."""
    return [s.group_id for s in sorted((s for s in selections if s.selected), key=lambda s: s.order or 0)]


@settings(max_examples=40, deadline=None)
@given(st.data(), candidates(), st.integers(0, 50), st.integers(0, 3))
def test_every_selector_returns_one_record_per_candidate_and_the_exact_count(
    data: st.DataObject, groups: list[PromptGroup], step: int, seed: int
) -> None:
    count = data.draw(st.integers(0, len(groups)))
    for name in known_types("selector"):
        wanted = len(groups) if name == "all" else count
        selections = selector(name).select(groups, wanted, step, seed)
        assert [s.group_id for s in selections] == [g.group_id for g in groups]
        assert sorted(s.order for s in selections if s.order is not None) == list(range(wanted))
        assert all(s.selected is (s.order is not None) for s in selections)
        assert selections == selector(name).select(groups, wanted, step, seed)


@settings(max_examples=25, deadline=None)
@given(candidates(sure=4), st.integers(0, 4), st.integers(0, 20))
def test_quotas_are_equal_and_the_remainder_rotates_with_the_step(
    groups: list[PromptGroup], each: int, step: int
) -> None:
    environments = sorted({g.environment for g in groups})
    remainder = 0 if each == 4 else step % len(environments)
    count = each * len(environments) + remainder
    favoured = {environments[(step + turn) % len(environments)] for turn in range(remainder)}
    for name in ROUND_ROBIN:
        selections = selector(name).select(groups, count, step, 0)
        taken = Counter(s.environment for s in selections if s.selected)
        assert {e: taken[e] for e in environments} == {e: each + (e in favoured) for e in environments}


@pytest.mark.parametrize("name", ROUND_ROBIN)
def test_an_environment_without_groups_passes_its_turn_on(name: str) -> None:
    states = {e: {RUBRICS[e][0]: TagState.DEMONSTRATES} for e in ENVIRONMENTS}
    groups = [group("a0", "alfworld", states=states["alfworld"])]
    groups += [group(f"w{i}", "webshop", states=states["webshop"]) for i in range(7)]
    selections = selector(name).select(groups, 6, step=0, seed=1)
    assert Counter(s.environment for s in selections if s.selected) == {"alfworld": 1, "webshop": 5}


@pytest.mark.parametrize("name", [n for n in ROUND_ROBIN if n != "round_robin_variance"])
def test_untagged_groups_are_taken_only_when_nothing_else_is_left_and_have_no_score(name: str) -> None:
    states = {RUBRICS["alfworld"][0]: TagState.DEMONSTRATES}
    web = {RUBRICS["webshop"][0]: TagState.VIOLATES}
    groups = [group(f"a{i}", "alfworld", [0.0, 1.0], states, tag_errors=2) for i in range(3)]
    groups += [group(f"w{i}", "webshop", [0.0, 1.0], web) for i in range(3)]
    assert set(chosen(selector(name).select(groups, 3, 0, 0))) == {"w0", "w1", "w2"}
    selections = selector(name).select(groups, 5, 0, 0)
    assert [s.group_id[0] for s in sorted(selections, key=lambda s: (s.order is None, s.order))][:5] == list("wwwaa")
    assert all(s.score is None and s.similarity is None for s in selections if s.group_id.startswith("a"))


def test_ties_are_broken_by_seed_and_step_and_by_nothing_else() -> None:
    groups = [group(f"g{i}", rewards=[0.0, 1.0]) for i in range(12)]
    for name in ("random", "global_variance", "round_robin_variance"):
        runs = {
            (step, seed): tuple(chosen(selector(name).select(groups, 4, step, seed)))
            for step in range(4)
            for seed in range(4)
        }
        assert len(set(runs.values())) > 10
        assert runs[(2, 3)] == tuple(chosen(selector(name).select(groups, 4, 2, 3)))


def test_one_success_of_eight_ties_with_seven_of_eight() -> None:
    one, seven = [1.0] + [0.0] * 7, [0.0] + [1.0] * 7
    groups = [group("one", rewards=one), group("seven", rewards=seven)]
    winners = {chosen(selector("global_variance").select(groups, 1, 0, seed))[0] for seed in range(20)}
    assert winners == {"one", "seven"}


def test_global_variance_takes_the_top_of_the_pool_and_scores_float_noise_zero() -> None:
    groups = [
        group("noise", rewards=[0.1 + 0.2, 0.3]),
        group("split", "webshop", [0.0, 1.0]),
        group("close", rewards=[0.4, 0.6]),
        group("alone", rewards=[1.0, None]),
    ]
    selections = selector("global_variance").select(groups, 2, 0, 0)
    assert chosen(selections) == ["split", "close"]
    assert [s.score for s in selections] == pytest.approx([0.0, 0.5, 0.02, 0.0])


def reference_greedy(groups: list[PromptGroup], count: int, step: int, weight: float, redundancy: str) -> list[str]:
    """The published-in-words greedy, written without shared code; assumes tagged groups and no ties."""
    profile = {g.group_id: rubric_profile(g.tags, [r.rollout_id for r in g.rollouts], vocabulary()) for g in groups}
    mu = np.mean(list(profile.values()), axis=0)
    environments = sorted({g.environment for g in groups})
    taken: list[str] = []
    turn = step
    while len(taken) < count:
        environment = environments[turn % len(environments)]
        turn += 1
        scores = {}
        for g in groups:
            if g.environment == environment and g.group_id not in taken:
                near = [cosine(profile[g.group_id], profile[t]) for t in taken] or [0.0]
                limit = max(near) if redundancy == "max" else sum(near) / len(near)
                scores[g.group_id] = cosine(profile[g.group_id], mu) - weight * limit
        if scores:
            taken.append(max(scores, key=lambda key: scores[key]))
    return taken


@pytest.mark.parametrize("redundancy", ["max", "mean"])
@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_profile_follows_the_greedy_formula(redundancy: str, weight: float) -> None:
    rng = np.random.default_rng(7)
    groups = []
    for environment in ENVIRONMENTS:
        for index in range(8):
            base = group(f"{environment}-{index}", environment, [0.0] * 8)
            tags = []
            for one in base.rollouts:
                states = {r: STATES[rng.choice(3, p=[0.35, 0.15, 0.5])] for r in RUBRICS[environment]}
                tags += tags_of(one.rollout_id, states)
            groups.append(PromptGroup(base.group_id, environment, base.rollouts, tuple(tags)))
    piece = selector("profile", redundancy_weight=weight, redundancy=redundancy)
    for step in range(4):
        selections = piece.select(groups, 13, step, seed=step)
        assert chosen(selections) == reference_greedy(groups, 13, step, weight, redundancy)
        for s in selections:
            assert s.score == pytest.approx(s.similarity - weight * s.redundancy)


def test_the_mean_of_environments_weighs_a_small_environment_as_much_as_a_large_one() -> None:
    states = {e: {RUBRICS[e][0]: TagState.DEMONSTRATES} for e in ENVIRONMENTS}
    groups = [group(f"a{i}", "alfworld", states=states["alfworld"]) for i in range(9)]
    groups.append(group("w", "webshop", states=states["webshop"]))
    k = vocabulary().index(RUBRICS["webshop"][0])
    for mode, share in (("mixed", 0.1), ("mean_of_environments", 0.5)):
        settings = piece_settings("selector", {"type": "profile", "mean": mode})
        assert candidate_profiles(groups, vocabulary(), settings).mean_D[k] == pytest.approx(share)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("level", "signal", "width"),
    [("rubric", "all", 118), ("rubric", "pos", 59), ("skill", "all", 20), ("skill", "neg", 10)],
)
def test_profiles_have_the_components_of_their_level_and_signal(level: str, signal: str, width: int) -> None:
    settings = piece_settings("selector", {"type": "herding", "level": level, "signal": signal})
    groups = [group("g", states={RUBRICS["alfworld"][0]: TagState.DEMONSTRATES})]
    assert candidate_profiles(groups, vocabulary(), settings).profiles_CD.shape == (1, width)  # type: ignore[arg-type]


def test_herding_and_facility_location_take_the_group_that_stands_for_the_others_first() -> None:
    first, second = RUBRICS["alfworld"][:2]
    typical = {first: TagState.DEMONSTRATES, second: TagState.ABSENT}
    odd = {first: TagState.ABSENT, second: TagState.DEMONSTRATES}
    groups = [group("odd", states=odd), *(group(f"typical{i}", states=typical) for i in range(5))]
    for name in ("herding", "facility_location"):
        order = chosen(selector(name).select(groups, 6, 0, 0))
        assert order[0].startswith("typical")
    assert chosen(selector("facility_location").select(groups, 2, 0, 0))[1] == "odd"


def test_random_rolls_out_only_what_is_trained_on_and_all_trains_on_everything() -> None:
    assert selector("random").candidate_count(128, 64) == 64
    assert selector("all").candidate_count(128, 64) == selector("all").selected_count(128, 64) == 128
    assert selector("profile").candidate_count(128, 64) == 128
    assert selector("profile").selected_count(128, 64) == 64


def test_asking_for_more_groups_than_there_are_is_refused_with_both_numbers() -> None:
    with pytest.raises(MethodError, match="cannot select 3 of 2 candidate groups"):
        selector("profile").select([group("a"), group("b")], 3, 0, 0)
    with pytest.raises(MethodError, match="same group_id"):
        selector("random").select([group("a"), group("a")], 1, 0, 0)
