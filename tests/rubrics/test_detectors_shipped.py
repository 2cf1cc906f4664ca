"""What holds for every shipped detector: coverage, and sound verdicts on the experts' episodes and all their prefixes.

The cases of the single detectors are in ``test_detectors_<environment>.py``.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rised.environments.discovery import get
from rised.records.types import Rollout, StopReason, TagState, TagStatus
from rised.rollouts.demonstrations import play_expert
from rised.rubrics.judge_rules import RuleJudge, load_detectors
from rised.rubrics.vocabulary import Polarity, Vocabulary

ENVIRONMENTS = ("alfworld", "dbbench", "webshop")
EPISODES = 8
NOISE = 0.6
VIOLATES = TagState.VIOLATES

Episodes = dict[float, list[Rollout]]


@pytest.fixture(scope="module")
def judge(vocabulary: Vocabulary) -> RuleJudge:
    return RuleJudge(vocabulary)


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def episodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Episodes:
    """One environment's expert on real training tasks, by the share of noisy steps."""
    name = request.param
    spec = get(name)
    small: dict[str, Any] = {}
    if name == "webshop":
        small = {"product_count": 250, "cache_dir": str(tmp_path_factory.mktemp(name))}
    settings = spec.settings_type(**small)
    tasks = spec.prepare(settings, "train", EPISODES, 0)[:EPISODES]
    environment = spec.make(settings)
    played = {
        noise: [play_expert(environment, task, seed, noise, spec.max_turns) for seed, task in enumerate(tasks)]
        for noise in (0.0, NOISE)
    }
    environment.close()
    return played


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_at_least_twelve_rubrics_of_both_polarities_have_detectors(judge: RuleJudge, environment: str) -> None:
    rubrics = judge.rubrics_of(environment)
    polarities = Counter(judge.vocabulary.polarity(rubric_id) for rubric_id in rubrics)
    assert len(rubrics) >= 12
    assert min(polarities[Polarity.POSITIVE], polarities[Polarity.NEGATIVE]) >= 5


def test_every_detector_belongs_to_a_rubric_that_applies_to_its_environment(vocabulary: Vocabulary) -> None:
    for environment, by_rubric in load_detectors().items():
        assert set(by_rubric) <= {rubric.id for rubric in vocabulary.applicable(environment)}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_detector_is_named_in_at_least_two_unit_cases(judge: RuleJudge, environment: str) -> None:
    source = (Path(__file__).parent / f"test_detectors_{environment}.py").read_text(encoding="utf-8")
    named = Counter(node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    assert [rubric_id for rubric_id in judge.rubrics_of(environment) if named[rubric_id] < 2] == []


def test_experts_without_noise_exhibit_wanted_behaviours_and_no_unwanted_one(
    judge: RuleJudge, episodes: Episodes
) -> None:
    rollouts = episodes[0.0]
    assert all(rollout.success for rollout in rollouts)
    tags = judge.tag(rollouts)
    assert {tag.status for tag in tags} == {TagStatus.OK}
    unwanted = [tag for tag in tags if judge.vocabulary.polarity(tag.rubric_id) is Polarity.NEGATIVE]
    assert [(tag.rollout_id, tag.rubric_id) for tag in unwanted if tag.state is TagState.VIOLATES] == []
    shown = Counter(tag.rubric_id for tag in tags if tag.state is TagState.DEMONSTRATES)
    always = {rubric_id for rubric_id, count in shown.items() if count == len(rollouts)}
    assert len(shown) >= 6 and "uses_valid_action_format" in always
    assert all(
        sum(tag.state is TagState.DEMONSTRATES for tag in tags if tag.rollout_id == rollout.rollout_id) >= 3
        for rollout in rollouts
    )


def test_no_positive_rubric_is_broken_exactly_where_a_negative_one_is_exhibited(
    judge: RuleJudge, episodes: Episodes
) -> None:
    places: dict[str, set[tuple[str, int | None]]] = {}
    for tag in judge.tag([*episodes[0.0], *episodes[NOISE]]):
        if tag.state is TagState.VIOLATES:
            places.setdefault(tag.rubric_id, set()).add((tag.rollout_id, tag.evidence_turn))
    by_polarity: dict[Polarity, list[str]] = {Polarity.POSITIVE: [], Polarity.NEGATIVE: []}
    for rubric_id in places:
        by_polarity[judge.vocabulary.polarity(rubric_id)].append(rubric_id)
    mirrored = [
        (one, other)
        for one in by_polarity[Polarity.POSITIVE]
        for other in by_polarity[Polarity.NEGATIVE]
        if places[one] == places[other] and len(places[one]) > 1
    ]
    assert mirrored == []


def test_noisy_experts_exhibit_more_unwanted_behaviours_and_recover(judge: RuleJudge, episodes: Episodes) -> None:
    def violations(noise: float) -> set[str]:
        tags = judge.tag(episodes[noise])
        return {tag.rubric_id for tag in tags if tag.state is TagState.VIOLATES}

    assert violations(NOISE) > violations(0.0)


def test_verdicts_are_sound_on_every_prefix_of_an_episode(judge: RuleJudge, episodes: Episodes) -> None:
    cut = [
        replace(
            rollout,
            turns=rollout.turns[:length],
            final_observation=rollout.turns[length].observation,
            reward=0.0,
            success=False,
            stop_reason=stop,
        )
        for rollout in episodes[NOISE][:4]
        for length in range(1, len(rollout.turns))
        for stop in (StopReason.TURN_LIMIT, StopReason.EPISODE_TOKEN_LIMIT, StopReason.REPEATED_OUTPUT)
    ]
    tags = judge.tag(cut)
    assert [tag.reason for tag in tags if tag.status is not TagStatus.OK] == []
    budget = [tag.state for tag in tags if tag.rubric_id == "exhausts_turn_budget"]
    assert TagState.VIOLATES in budget


def test_tags_of_a_stored_rollout_equal_those_of_the_live_one(judge: RuleJudge, episodes: Episodes) -> None:
    live = episodes[NOISE]
    stored = [
        replace(rollout, turns=tuple(replace(turn, info=json.loads(json.dumps(turn.info))) for turn in rollout.turns))
        for rollout in live
    ]
    assert judge.tag(stored) == judge.tag(live)


def test_a_reply_cut_by_the_token_budget_leaves_the_episode_judgeable(judge: RuleJudge, episodes: Episodes) -> None:
    cut = []
    for rollout in episodes[NOISE]:
        last = replace(rollout.turns[-1], info={"executed": False}, action_valid=False, truncated=True)
        turns = (*rollout.turns[:-1], last)
        cut.append(replace(rollout, turns=turns, final_observation="", stop_reason=StopReason.EPISODE_TOKEN_LIMIT))
    tags = judge.tag(cut)
    assert [tag.reason for tag in tags if tag.status is not TagStatus.OK] == []
    budget = {tag.rollout_id for tag in tags if (tag.rubric_id, tag.state) == ("exhausts_turn_budget", VIOLATES)}
    assert budget == {rollout.rollout_id for rollout in cut if len(rollout.turns) > 1}


def test_an_episode_without_an_executed_turn_is_no_evidence_of_absence(judge: RuleJudge, episodes: Episodes) -> None:
    empty = replace(
        episodes[NOISE][0], turns=(), reward=None, success=False, stop_reason=StopReason.EPISODE_TOKEN_LIMIT
    )
    tags = judge.tag([empty])
    assert tags
    assert {tag.status for tag in tags} == {TagStatus.ERROR}
    assert all("no turn was executed" in tag.reason for tag in tags)
