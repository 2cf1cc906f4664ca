"""The rule judge: states, errors, identity, and its agreement with the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import rised.rubrics.detectors as detectors_package
from rised.records.types import Rollout, StopReason, TagState, TagStatus
from rised.rubrics.base import ABSENT, DETECTORS, RubricError, Verdict, detector
from rised.rubrics.judge_rules import RuleJudge, load_detectors
from rised.rubrics.judges import JUDGES, make_judge
from rised.rubrics.profiles import rubric_profile
from rised.rubrics.settings import RubricSettings, RuleJudgeSettings
from rised.rubrics.vocabulary import Vocabulary, load_vocabulary

MakeRollout = Callable[..., Rollout]
OPENS, REPEATS = "opens_closed_receptacle", "repeats_failed_action"


def opens(rollout: Rollout) -> Verdict:
    turns = [index for index, turn in enumerate(rollout.turns) if turn.action_raw.startswith("open")]
    return Verdict(TagState.DEMONSTRATES, turns[0]) if turns else ABSENT


def never(rollout: Rollout) -> Verdict:
    return ABSENT


def fails(rollout: Rollout) -> Verdict:
    raise KeyError("receptacle")


def test_each_rollout_gets_one_tag_per_rubric_in_input_and_vocabulary_order(
    vocabulary: Vocabulary, make_rollout: MakeRollout
) -> None:
    judge = RuleJudge(vocabulary, {"alfworld": {OPENS: opens, REPEATS: never}})
    first = make_rollout("alfworld", [("a", "look"), ("b", "open drawer 1")], rollout_id="first")
    second = make_rollout("alfworld", rollout_id="second")
    tags = judge.tag([second, first])
    assert [(tag.rollout_id, tag.rubric_id) for tag in tags] == [
        ("second", REPEATS),
        ("second", OPENS),
        ("first", REPEATS),
        ("first", OPENS),
    ]
    assert [tag.state for tag in tags] == [TagState.ABSENT, TagState.ABSENT, TagState.ABSENT, TagState.DEMONSTRATES]
    assert tags[-1].evidence_turn == 1
    assert {tag.judge for tag in tags} == {judge.judge_id}


def test_a_detector_that_raises_is_a_tag_error_and_never_absent(
    vocabulary: Vocabulary, make_rollout: MakeRollout
) -> None:
    judge = RuleJudge(vocabulary, {"alfworld": {OPENS: fails, REPEATS: never}})
    by_rubric = {tag.rubric_id: tag for tag in judge.tag([make_rollout("alfworld")])}
    assert by_rubric[OPENS].status is TagStatus.ERROR and by_rubric[OPENS].state is None
    assert by_rubric[OPENS].reason == "detector failed: KeyError: 'receptacle'"
    assert by_rubric[REPEATS].status is TagStatus.OK and by_rubric[REPEATS].state is TagState.ABSENT


@pytest.mark.parametrize("stop", [StopReason.ENVIRONMENT_ERROR, StopReason.PREFIX_VIOLATION])
def test_an_invalid_rollout_has_only_errors_and_leaves_the_denominator(
    vocabulary: Vocabulary, make_rollout: MakeRollout, stop: StopReason
) -> None:
    judge = RuleJudge(vocabulary, {"alfworld": {OPENS: opens}})
    opened = [("a", "open drawer 1")]
    rollouts = [
        make_rollout("alfworld", opened, rollout_id="valid"),
        make_rollout("alfworld", opened, rollout_id="invalid", stop_reason=stop, reward=None, reward_valid=False),
    ]
    tags = judge.tag(rollouts)
    assert (tags[1].status, tags[1].state) == (TagStatus.ERROR, None)
    assert tags[1].reason == f"invalid rollout: {stop.value}"
    profile = rubric_profile(tags, ["valid", "invalid"], vocabulary)
    assert profile is not None and profile[vocabulary.index(OPENS)] == 1.0


@pytest.mark.parametrize("stop", [stop for stop in StopReason if stop.value.startswith(("turn", "episode", "invalid"))])
def test_a_cut_or_unreadable_episode_is_judged_like_any_other(
    vocabulary: Vocabulary, make_rollout: MakeRollout, stop: StopReason
) -> None:
    judge = RuleJudge(vocabulary, {"alfworld": {OPENS: opens}})
    (tag,) = judge.tag([make_rollout("alfworld", [("a", "open drawer 1")], stop_reason=stop)])
    assert tag.state is TagState.DEMONSTRATES


def test_a_rollout_without_the_environments_log_is_an_error_and_never_absent(
    vocabulary: Vocabulary, make_rollout: MakeRollout
) -> None:
    rollout = make_rollout("alfworld", [("a", "look"), ("b", "open drawer 1")])
    bare = replace(rollout, turns=(rollout.turns[0], replace(rollout.turns[1], info={})))
    (tag,) = RuleJudge(vocabulary, {"alfworld": {OPENS: never}}).tag([bare])
    assert (tag.status, tag.state) == (TagStatus.ERROR, None)
    assert tag.reason.startswith("no environment log in turn 1")


def test_detectors_never_see_a_reply_that_was_not_executed(vocabulary: Vocabulary, make_rollout: MakeRollout) -> None:
    rollout = make_rollout("alfworld", [("a", "look"), ("b", "open drawer 1")])
    cut = replace(rollout.turns[1], info={"executed": False}, action_valid=False, truncated=True)
    rollout = replace(
        rollout, turns=(rollout.turns[0], cut), final_observation="", stop_reason=StopReason.EPISODE_TOKEN_LIMIT
    )
    seen: list[Rollout] = []

    def remember(rollout: Rollout) -> Verdict:
        seen.append(rollout)
        return ABSENT

    (tag, other) = RuleJudge(vocabulary, {"alfworld": {OPENS: opens, REPEATS: remember}}).tag([rollout])
    assert tag.status is other.status is TagStatus.OK and other.state is TagState.ABSENT
    assert [turn.action_raw for turn in seen[0].turns] == ["look"] and seen[0].final_observation == "b"


@pytest.mark.parametrize(
    ("rubric_id", "verdict", "message"),
    [
        (REPEATS, Verdict(TagState.DEMONSTRATES, 0), "negative rubric cannot be demonstrated"),
        (OPENS, Verdict(TagState.DEMONSTRATES, 7), "evidence turn 7 does not exist, the rollout has 1"),
        (OPENS, Verdict(TagState.DEMONSTRATES, -1), "evidence turn -1 does not exist"),
        (OPENS, Verdict(TagState.ABSENT, 0), "absence has no evidence turn"),
    ],
)
def test_an_impossible_verdict_stops_with_the_detector_and_the_rollout(
    vocabulary: Vocabulary, make_rollout: MakeRollout, rubric_id: str, verdict: Verdict, message: str
) -> None:
    judge = RuleJudge(vocabulary, {"alfworld": {rubric_id: lambda rollout: verdict}})
    with pytest.raises(RubricError, match=f"'{rubric_id}' of 'alfworld' on rollout 'r0': .*{message}"):
        judge.tag([make_rollout("alfworld")])


def test_detectors_without_a_place_in_the_vocabulary_are_refused_together(vocabulary: Vocabulary) -> None:
    with pytest.raises(RubricError) as caught:
        RuleJudge(vocabulary, {"webshop": {OPENS: opens, "is_polite": never}})
    assert "webshop: detector for 'is_polite', which is not in the vocabulary" in str(caught.value)
    assert f"webshop: detector for '{OPENS}', which the vocabulary limits to alfworld" in str(caught.value)


def test_an_environment_without_detectors_is_named(vocabulary: Vocabulary, make_rollout: MakeRollout) -> None:
    judge = RuleJudge(vocabulary, {"alfworld": {OPENS: opens}})
    with pytest.raises(RubricError, match="no detectors for environment 'webshop'"):
        judge.tag([make_rollout("webshop")])


def test_two_detectors_for_the_same_rubric_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DETECTORS, "synthetic", {})
    detector("synthetic", OPENS)(opens)
    with pytest.raises(ValueError, match="two detectors"):
        detector("synthetic", OPENS)(never)


def test_equal_rollouts_get_equal_tags(vocabulary: Vocabulary, make_rollout: MakeRollout) -> None:
    table = {"alfworld": {OPENS: opens, REPEATS: fails}}
    rollouts = [make_rollout("alfworld", [("a", "open drawer 1")])]
    assert RuleJudge(vocabulary, table).tag(rollouts) == RuleJudge(vocabulary, table).tag(rollouts)


def test_the_judge_id_changes_with_the_vocabulary_and_with_the_detectors_source(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_id = RuleJudge(vocabulary, {}).judge_id
    assert judge_id == RuleJudge(load_vocabulary(), {}).judge_id and judge_id.startswith("rules-")
    other = Vocabulary(vocabulary.version + 1, vocabulary.environments, vocabulary.skills, vocabulary.rubrics)
    assert RuleJudge(other, {}).judge_id != judge_id
    (tmp_path / "chess.py").write_text('"""Detectors."""\n')
    monkeypatch.setattr(detectors_package, "__path__", [*detectors_package.__path__, str(tmp_path)])
    with_chess = RuleJudge(vocabulary, {}).judge_id
    (tmp_path / "chess.py").write_text('"""Other detectors."""\n')
    assert len({judge_id, with_chess, RuleJudge(vocabulary, {}).judge_id}) == 3


def test_the_registry_builds_the_judge_that_the_settings_name(vocabulary: Vocabulary) -> None:
    assert RubricSettings().judge.type in JUDGES
    judge = make_judge(RuleJudgeSettings(), vocabulary)
    assert isinstance(judge, RuleJudge) and judge.judge_id == RuleJudge(vocabulary).judge_id
    assert load_detectors() is DETECTORS
