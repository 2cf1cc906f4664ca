"""DBBench's published verdicts: answers, table hashes and reply formats, row by row against the recorded cases."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from rised.environments.dbbench.judging import (
    GROUP_CONCAT_MAX_BYTES,
    answers_equal,
    clean_answer,
    combined_hash,
    hashes_equal,
    null_counts_as_zero,
    table_hash,
)
from rised.environments.dbbench.replies import Reply, match_compact, match_published, parse_reply


def _case(cases_dir: Path, number: str) -> list[dict[str, Any]]:
    (path,) = cases_dir.glob(f"{number}-*/expected.json")
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def test_every_recorded_answer_pair_gets_the_published_verdict_and_cleaning(cases_dir: Path) -> None:
    rows = _case(cases_dir, "11")
    assert len(rows) == 61
    for row in rows:
        assert clean_answer(row["answer"]) == row["answer_cleaned"], row
        assert clean_answer(row["gold"]) == row["gold_cleaned"], row
        assert answers_equal(row["answer"], row["gold"]) is row["correct"], row


def test_every_recorded_table_has_the_hash_that_mariadb_gave(cases_dir: Path) -> None:
    rows = _case(cases_dir, "13")
    assert len(rows) == 12
    numbered = [(str(index), "v", "w") for index in range(200)]
    for row in rows:
        limit = GROUP_CONCAT_MAX_BYTES if "1024" in row["name"] else None
        assert table_hash(row.get("rows", numbered), limit) == row["md5"], row["name"]


def test_every_recorded_reply_is_read_as_published_and_as_lenient(cases_dir: Path) -> None:
    rows = _case(cases_dir, "15")
    assert len(rows) == 20
    kinds = {"sql": "operation"}
    for row in rows:
        kind, *text = row["published_pattern"]
        assert match_published(row["reply"]) == Reply(kinds.get(kind, kind), *text), row
        kind, *text = row["lenient_ours"]
        assert parse_reply(row["reply"], "lenient") == Reply(kinds.get(kind, kind), *text), row


def test_an_action_line_without_its_end_is_none() -> None:
    """AgentBench's pattern takes the line break in."""
    assert match_published("```sql\nSELECT 1\n```\nAction: Operation") == Reply("invalid")
    assert match_published("```sql\nSELECT 1\n```\nAction: Operation\n") == Reply("operation", "SELECT 1")


def test_a_format_quoted_inside_closed_thinking_does_not_count_in_any_form() -> None:
    reply = '<think>Action: Answer\nFinal Answer: ["9"]\n</think>\nAction: Operation\n```sql\nSELECT 1\n```'
    assert match_published(reply) == Reply("answer", '["9"]')
    assert parse_reply(reply, "published") == Reply("operation", "SELECT 1")
    assert parse_reply("<think>answer: 9</think>sql: SELECT 1", "compact") == Reply("operation", "SELECT 1")


@pytest.mark.parametrize("reply", ["", "SELECT 1", "sql:", "answer: ", "I think sql: SELECT 1", "query: SELECT 1"])
def test_a_compact_reply_without_its_leading_word_or_content_is_invalid(reply: str) -> None:
    assert match_compact(reply).kind == "invalid"


def test_numbers_are_equal_within_a_hundredth() -> None:
    for pair, equal in ((("0.0", "0.01"), True), (("0.0", "0.0101"), False), (("5", "5.09"), False)):
        assert answers_equal(pair[0], [pair[1]]) is equal, pair
        assert answers_equal(f"[{pair[0]}, 7]", [pair[1], "7"]) is equal, pair


def test_a_rows_hash_is_five_characters_of_the_md5_of_its_cells() -> None:
    row = hashlib.md5(b"a,b").hexdigest()
    assert table_hash([["a", None, "b"]]) == hashlib.md5(row[:5].encode()).hexdigest()


def test_an_empty_table_hashes_to_null_and_equals_only_a_null_gold() -> None:
    assert table_hash([]) is None
    assert combined_hash([None]) == "None"
    assert hashes_equal("None", "[(None,)]")
    assert not hashes_equal("None", f"[('{table_hash([['a']])}',)]")


def test_answers_that_count_only_because_null_reads_as_zero_are_recognised() -> None:
    assert answers_equal("null", ["0"]) and null_counts_as_zero("null", ["0"])
    assert answers_equal("0", ["0"]) and not null_counts_as_zero("0", ["0"])
    assert not answers_equal("null", ["3"]) and not null_counts_as_zero("null", ["3"])


@pytest.mark.parametrize(
    "answer", ["[" * 5000 + "]" * 5000, "[" + "9" * 6000 + "]", "[__import__('os').getcwd()]", "[(]"]
)
def test_hostile_answers_are_wrong_and_never_evaluated(answer: str) -> None:
    assert answers_equal(answer, ["3"]) is False
