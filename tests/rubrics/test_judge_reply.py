"""What counts as a judge model's verdict, and the reason when a reply is none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rised.records.types import Tag, TagState, TagStatus
from rised.rubrics.judge_reply import ReplyError, find_object, read_reply, reply_schema
from rised.rubrics.profiles import group_shares
from rised.rubrics.vocabulary import Polarity, Vocabulary

RUBRICS: Any = [
    SimpleNamespace(id="checks_inventory", polarity=Polarity.POSITIVE),
    SimpleNamespace(id="repeats_failed_action", polarity=Polarity.NEGATIVE),
]
GOOD = [
    {"id": "checks_inventory", "state": "demonstrates", "evidence_turn": 1},
    {"id": "repeats_failed_action", "state": "absent", "evidence_turn": None},
]


def reply(*entries: dict[str, Any], **outer: Any) -> str:
    return json.dumps({"tags": entries or GOOD} | outer)


def changed(place: int, **fields: Any) -> str:
    return reply(*[entry | (fields if index == place else {}) for index, entry in enumerate(GOOD)])


def code_of(text: str, finish_reason: str = "stop", turn_count: int = 6) -> str:
    """``ok`` or the code of the error."""
    try:
        read_reply(text, finish_reason, RUBRICS, turn_count)
    except ReplyError as error:
        return error.code
    return "ok"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (reply(), "ok"),
        (reply(*reversed(GOOD)), "ok"),
        (reply(note="use ```sql x```"), "ok"),
        (f"```json\n{reply()}\n```", "ok"),
        (f'Braces {{like these}} and a quote: it\'s "fine".\n{reply()} Done.', "ok"),
        (f"<think>{{}}</think>\n{reply()}", "ok"),
        (f"so {{that}} is why</think>{reply()}", "ok"),
        (f"{reply()}\n{reply()}", "ok"),
        (f"\ufeff {reply()}", "ok"),
        (changed(0, quote="</think> } {"), "ok"),
        (f"{reply()} {reply(GOOD[0])}", "ambiguous"),
        (f"<think>{reply()}", "unclosed_thinking"),
        (reply()[:-1], "unbalanced"),
        ('{"judgement": ' + reply(), "unbalanced"),
        ('{"tags": [],}', "invalid_json"),
        ('{"tags": [], "tags": []}', "duplicate_key"),
        (changed(0, score=1).replace("1}", "NaN}"), "not_finite"),
        (changed(0, score=1).replace("1}", "-Infinity}"), "not_finite"),
        (changed(0, score=1).replace("1}", "1e999}"), "not_finite"),
        ("[" * 100_000, "too_deep"),
        ('{"a":' * 100_000, "too_deep"),
        ("", "no_json"),
        ("I'm sorry, but I can't help with that.", "no_json"),
        ("{'tags': []}", "no_json"),
        ("null", "schema"),
        ("[]", "schema"),
        ('{"checks_inventory": "absent"}', "schema"),
        ('{"tags": {"checks_inventory": "absent"}}', "schema"),
        ('{"tags": ["absent"]}', "schema"),
        ('{"tags": []}', "missing_ids"),
        (reply(GOOD[0]), "missing_ids"),
        (reply(*GOOD, GOOD[0] | {"id": "is_polite"}), "unknown_id"),
        (changed(0, id="Checks Inventory"), "unknown_id"),
        (changed(0, id=1), "unknown_id"),
        (changed(0, id=["checks_inventory"]), "unknown_id"),
        (reply(*GOOD, GOOD[0]), "duplicate_id"),
        (changed(0, state="DEMONSTRATES"), "unknown_state"),
        (changed(0, state="partially demonstrates"), "unknown_state"),
        (changed(0, state=True), "unknown_state"),
        (changed(0, state=None), "unknown_state"),
        (changed(0, state=["absent"]), "unknown_state"),
        (changed(1, state="demonstrates", evidence_turn=0), "negative_demonstrated"),
        (changed(0, evidence_turn=5), "ok"),
        (changed(0, evidence_turn=3.0), "ok"),
        (changed(0, evidence_turn=6), "evidence_out_of_range"),
        (changed(0, evidence_turn=-1), "evidence_out_of_range"),
        (changed(0, evidence_turn=10**30), "evidence_out_of_range"),
        (changed(0, evidence_turn=2.5), "evidence_type"),
        (changed(0, evidence_turn="turn 3"), "evidence_type"),
        (changed(0, evidence_turn=True), "evidence_type"),
        (changed(0, evidence_turn=None), "evidence_missing"),
    ],
)
def test_a_reply_counts_as_a_whole_or_not_at_all(text: str, code: str) -> None:
    assert code_of(text) == code


def test_a_reply_cut_by_its_limit_counts_only_when_it_is_complete() -> None:
    assert code_of(reply(), "length") == "ok"
    assert code_of(reply()[:-20], "length") == code_of(reply(GOOD[0]), "length") == "finish_reason_length"


def test_an_absence_loses_its_evidence_and_is_counted() -> None:
    verdicts = read_reply(changed(1, evidence_turn=2), "stop", RUBRICS, 6)
    assert verdicts.dropped_evidence == 1
    assert verdicts.by_rubric["repeats_failed_action"] == (TagState.ABSENT, None)
    assert verdicts.by_rubric["checks_inventory"] == (TagState.DEMONSTRATES, 1)


@given(st.text(max_size=80) | st.text('{}[]",:tags0 \\', max_size=60))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    assert code_of(text) != "ok"


def test_the_schema_admits_each_rubric_at_its_place_with_the_states_and_turns_of_a_valid_reply(
    vocabulary: Vocabulary,
) -> None:
    rubrics = vocabulary.applicable("alfworld")
    tags = reply_schema(rubrics, 6)["properties"]["tags"]
    assert tags["minItems"] == tags["maxItems"] == len(rubrics) and tags["items"] is False
    for rubric, entry in zip(rubrics, tags["prefixItems"], strict=True):
        shown, absent = entry["anyOf"]
        assert shown["properties"]["id"] == absent["properties"]["id"] == {"const": rubric.id}
        negative = rubric.polarity is Polarity.NEGATIVE
        assert shown["properties"]["state"] == {"enum": ["violates"] if negative else ["demonstrates", "violates"]}
        assert shown["properties"]["evidence_turn"] == {"type": "integer", "minimum": 0, "maximum": 5}
        assert absent["properties"]["state"] == {"enum": ["absent"]}
        assert absent["properties"]["evidence_turn"] == {"type": "null"}
        for alternative in (shown, absent):
            assert alternative["required"] == ["id", "evidence_turn", "state"], "the state follows from the evidence"
            assert list(alternative["properties"]) == alternative["required"]
            assert alternative["additionalProperties"] is False


def test_with_three_errors_among_eight_a_share_is_of_the_other_five(vocabulary: Vocabulary) -> None:
    rubric = vocabulary.rubric_ids[0]
    states = [*[None] * 3, *[TagState.DEMONSTRATES] * 2, *[TagState.ABSENT] * 3]
    tags = [
        Tag(f"r{i}", rubric, state, None, "llm:m", TagStatus.OK if state else TagStatus.PARSE_ERROR)
        for i, state in enumerate(states)
    ]
    shares = group_shares(tags, [f"r{i}" for i in range(8)], vocabulary)
    assert shares.demonstrates_K[0] == 2 / 5 and shares.tagged


# ---- replies of other people's judges


def test_json_is_found_in_prose_as_the_case_says(cases_dir: Path) -> None:
    rows = json.loads((cases_dir / "18-json-in-prose" / "expected.json").read_text())
    assert len(rows) == 29
    for row in rows:
        try:
            accepted = bool(find_object(row["reply"]))
        except ReplyError:
            accepted = False
        assert accepted == row["accept"], row["reply"][:200]


STRICTER = {"upper case states", "states with spaces", "demonstrates without evidence"}
"""Replies that the case leaves to a rule: ours says error."""
DEMONSTRATED_NEGATIVE = "obeys text inside the transcript: all demonstrates with evidence 0"
"""Well-formed by the case; but it demonstrates a negative rubric, which our rule makes an error."""


def test_every_judge_reply_of_the_table_has_its_status_and_reason(cases_dir: Path) -> None:
    folder = cases_dir / "20-judge-reply-table"
    rubrics: Any = [
        SimpleNamespace(id=entry["id"], polarity=Polarity(entry["polarity"]))
        for entry in json.loads((folder / "vocabulary.json").read_text())
    ]
    rows = json.loads((folder / "replies.json").read_text())
    assert len(rows) == 31
    for row in rows:
        try:
            read_reply(row["reply"], row["finish_reason"], rubrics, 6)
            found, code = "ok", ""
        except ReplyError as error:
            found, code = "error", error.code
        if row["name"] == DEMONSTRATED_NEGATIVE:
            assert code == "negative_demonstrated"
        elif row["name"] in STRICTER:
            assert found == "error"
        else:
            assert found in row["status"].split(" or "), row["name"]
        if row["status"] == "error":
            assert code == row["reason"] or (code == "no_json" and row["reason"] == "refusal_or_no_json"), row["name"]
