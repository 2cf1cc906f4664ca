"""A judge against the detectors: the counts are exact, errors are no absences, undefined is not zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rised.records.schemas import from_table, to_table
from rised.records.types import JudgeAudit, Rollout, Tag, TagState, TagStatus
from rised.rubrics.audit import audit
from rised.rubrics.vocabulary import Vocabulary

POSITIVE, NEGATIVE = "explores_database_schema", "repeats_failed_action"
D, V, A = TagState.DEMONSTRATES, TagState.VIOLATES, TagState.ABSENT


@pytest.fixture
def rollouts(make_rollout: Callable[..., Rollout]) -> list[Rollout]:
    return [make_rollout("dbbench", rollout_id=f"r{i}", group_id=f"g{i // 2}") for i in range(8)]


def tags(judge: str, states: dict[str, list[TagState]]) -> list[Tag]:
    return [
        Tag(f"r{i}", rubric, state, None if state is A else 0, judge, TagStatus.OK)
        for rubric, values in states.items()
        for i, state in enumerate(values)
    ]


TRUTH = tags("rules-1", {POSITIVE: [D, D, D, V, A, A, A, A], NEGATIVE: [V, V, A, A, A, A, A, A]})
JUDGED = tags("llm:x", {POSITIVE: [D, D, A, D, D, A, A, A], NEGATIVE: [V, A, A, A, A, A, A, V]})


def of(rows: list[JudgeAudit], rubric: str, state: str) -> JudgeAudit:
    (row,) = [row for row in rows if (row.rubric_id, row.state) == (rubric, state)]
    return row


def counts(row: JudgeAudit) -> tuple[int, int, int, int]:
    return row.true_positives, row.false_positives, row.false_negatives, row.true_negatives


def test_found_missed_and_invented_are_counted_exactly(rollouts: list[Rollout], vocabulary: Vocabulary) -> None:
    rows = audit(rollouts, TRUTH, JUDGED, vocabulary, "x")
    assert [(row.rubric_id, row.state) for row in rows] == [
        ("", "shown"),
        (POSITIVE, "demonstrates"),
        (POSITIVE, "violates"),
        (NEGATIVE, "violates"),
    ]
    assert counts(of(rows, POSITIVE, "demonstrates")) == (2, 2, 1, 3)
    assert counts(of(rows, POSITIVE, "violates")) == (0, 0, 1, 7)
    assert counts(of(rows, NEGATIVE, "violates")) == (1, 1, 1, 5)
    pooled = of(rows, "", "shown")
    assert counts(pooled) == (3, 3, 3, 8), "shown in another state is both invented and missed"
    assert (pooled.precision, pooled.recall) == (0.5, 0.5) and pooled.precision_low is None
    demonstrates = of(rows, POSITIVE, "demonstrates")
    assert (demonstrates.precision, demonstrates.recall) == pytest.approx((0.5, 2 / 3))
    assert 0 < demonstrates.precision_low < 0.5 < demonstrates.precision_high < 1  # type: ignore[operator]
    assert of(rows, NEGATIVE, "violates").kappa == pytest.approx((6 / 8 - 5 / 8) / (1 - 5 / 8))
    assert {(row.judge, row.model, row.detectors) for row in rows} == {("llm:x", "x", "rules-1")}
    assert from_table(to_table(rows, "judge_audits")) == rows


def test_precision_over_nothing_is_undefined(rollouts: list[Rollout], vocabulary: Vocabulary) -> None:
    nothing = [replace(tag, state=A, evidence_turn=None) for tag in JUDGED]
    row = of(audit(rollouts, TRUTH, nothing, vocabulary, "x"), NEGATIVE, "violates")
    assert (row.precision, row.precision_low, row.recall, row.kappa) == (None, None, 0.0, 0.0)
    same = audit(rollouts, nothing_of(TRUTH), nothing, vocabulary, "x")
    assert of(same, NEGATIVE, "violates").kappa is None and of(same, NEGATIVE, "violates").recall is None


def nothing_of(found: list[Tag]) -> list[Tag]:
    return [replace(tag, state=A, evidence_turn=None) for tag in found]


def test_an_error_of_the_judge_is_no_absence_and_one_of_the_truth_leaves_the_rollout_out(
    rollouts: list[Rollout], vocabulary: Vocabulary
) -> None:
    def failed(found: list[Tag], rollout_id: str) -> list[Tag]:
        return [
            replace(t, state=None, evidence_turn=None, status=TagStatus.TIMEOUT) if t.rollout_id == rollout_id else t
            for t in found
        ]

    row = of(audit(rollouts, TRUTH, failed(JUDGED, "r1"), vocabulary, "x"), NEGATIVE, "violates")
    assert (row.rollouts, row.errors, counts(row)) == (8, 1, (1, 1, 0, 5)), "r1 was a miss, and is none now"
    row = of(audit(rollouts, failed(TRUTH, "r7"), JUDGED, vocabulary, "x"), NEGATIVE, "violates")
    assert (row.rollouts, row.errors, counts(row)) == (7, 0, (1, 0, 1, 5))


def test_what_the_detectors_do_not_cover_is_not_compared(rollouts: list[Rollout], vocabulary: Vocabulary) -> None:
    more = JUDGED + tags("llm:x", {"corrects_query_after_error": [D] * 8})
    assert audit(rollouts, TRUTH, more, vocabulary, "x") == audit(rollouts, TRUTH, JUDGED, vocabulary, "x")
