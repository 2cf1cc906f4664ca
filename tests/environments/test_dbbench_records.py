"""DBBench's record files: what is accepted, and what a bad record is told."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from rised.environments.base import EnvironmentFault
from rised.environments.dbbench import SPEC, DbbenchSettings
from rised.environments.dbbench.records import content_hash, load_records, parse_record

QUESTION: dict[str, Any] = {
    "description": "how many rows are there?",
    "label": ["2"],
    "table": {"table_name": "t", "table_info": {"columns": [{"name": "a", "type": "INT"}], "rows": [["x"], ["y"]]}},
    "type": ["counting"],
    "sql": {"query": "SELECT COUNT(*) FROM t", "length": 22},
    "add_description": "",
    "source": "synthetic",
}
CHANGE: dict[str, Any] = {
    **{key: value for key, value in QUESTION.items() if key not in ("sql", "label")},
    "type": ["INSERT"],
    "label": ["INSERT INTO t VALUES ('z')"],
    "answer_md5": "[('00000000000000000000000000000000',)]",
}


def _write(path: Path, records: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n", encoding="utf-8")
    return path


def test_all_records_of_the_benchmarks_files_load(shared_dir: Path) -> None:
    standard = load_records(shared_dir / "data" / "dbbench_standard.jsonl")
    assert len(standard) == 300
    assert sum(record.is_modification for record in standard) == 200
    assert len(load_records(shared_dir / "data" / "dbbench_dev.jsonl")) == 60
    for index in (15, 52, 193, 208):
        cells = [cell for table in standard[index].table for row in table.table_info.rows for cell in row]
        assert all(cell is None or isinstance(cell, str) for cell in cells)


def test_records_of_the_benchmark_load_with_the_kinds_they_have(excerpts_dir: Path) -> None:
    records = load_records(excerpts_dir / "dbbench_standard.jsonl")
    assert [record.kind for record in records] == [
        *("other", "aggregation-SUM", "aggregation-MAX", "aggregation-AVG"),
        *("INSERT", "INSERT", "UPDATE", "UPDATE"),
    ]
    assert [record.label for record in records[:4]] == [
        ("Shooto 2003 - 5/4 in Korakuen Hall",), ("5",), ("Đeravica",), ("293.0",),
    ]  # fmt: skip
    assert all(record.answer_md5 and record.gold_sql for record in records[4:])


def test_numbers_in_cells_and_labels_become_text() -> None:
    raw = copy.deepcopy(QUESTION)
    raw["table"]["table_info"]["rows"] = [[3], [2.5]]
    raw["label"] = [2]
    record = parse_record(raw, "here")
    assert record.table[0].table_info.rows == (("3",), ("2.5",))
    assert record.label == ("2",)


def test_labels_of_the_training_file_may_be_the_text_of_a_result() -> None:
    record = parse_record({**QUESTION, "type": ["SELECT"], "label": "[('2',)]"}, "here")
    assert record.label == "[('2',)]" and not record.is_modification


@pytest.mark.parametrize("field", ["description", "type", "table", "label"])
def test_a_missing_field_of_a_question_is_named_with_file_and_line(tmp_path: Path, field: str) -> None:
    bad = {key: value for key, value in QUESTION.items() if key != field}
    path = _write(tmp_path / "tasks.jsonl", [QUESTION, bad])
    with pytest.raises(EnvironmentFault) as caught:
        load_records(path)
    message = str(caught.value)
    assert f"{path}, line 2" in message and field in message and len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"table": {"table_name": "t", "table_info": {"columns": [{"name": "a"}]}}}, "rows"),
        (
            {"table": {"table_name": "t", "table_info": {"columns": [{"name": "a"}], "rows": [["x", "y"]]}}},
            "row 0 has 2",
        ),
        ({"type": ["guessing"]}, "names no known type"),
        ({"table": []}, "at least one table"),
        ({"description": 3}, "description"),
    ],
)
def test_a_record_that_does_not_fit_is_told_which_field_and_why(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    path = _write(tmp_path / "tasks.jsonl", [{**QUESTION, **change}])
    with pytest.raises(EnvironmentFault, match=expected):
        load_records(path)


def test_every_bad_record_gets_one_line_of_its_own(tmp_path: Path) -> None:
    broken = {key: value for key, value in QUESTION.items() if key != "table"}
    path = tmp_path / "tasks.jsonl"
    path.write_text(f"{json.dumps(QUESTION)}\n{{not json\n[1]\n{json.dumps(broken)}\n", encoding="utf-8")
    with pytest.raises(EnvironmentFault) as caught:
        load_records(path)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].rsplit("line ")[1] for line in lines] == ["2", "3", "4"]


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_half_a_character_in_a_file_is_named_with_its_line(tmp_path: Path, suffix: str) -> None:
    lines = [json.dumps(QUESTION), json.dumps({**QUESTION, "description": "who is \ud800?"})]
    path = tmp_path / f"tasks.{suffix}"
    path.write_text("\n".join(lines) if suffix == "jsonl" else "[{},\n{}]".format(*lines), encoding="utf-8")
    with pytest.raises(EnvironmentFault, match=rf"tasks\.{suffix}, line 2: .*ud800 is half a character"):
        load_records(path)


def test_a_modification_needs_a_gold_hash_or_gold_sql() -> None:
    with pytest.raises(EnvironmentFault, match="answer_md5"):
        parse_record({key: value for key, value in CHANGE.items() if key not in ("answer_md5", "label")}, "here")
    assert parse_record({key: value for key, value in CHANGE.items() if key != "answer_md5"}, "here").is_modification


@pytest.mark.parametrize(
    ("name", "text"), [("none.jsonl", None), ("empty.jsonl", ""), ("a.json", "{}"), ("b.json", "[")]
)
def test_a_file_that_is_absent_empty_or_of_another_shape_is_refused(
    tmp_path: Path, name: str, text: str | None
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(EnvironmentFault, match=name):
        load_records(path)


def test_a_bad_task_file_is_refused_at_prepare_before_any_episode(tmp_path: Path) -> None:
    path = _write(tmp_path / "tasks.jsonl", [{**QUESTION, "table": {"table_name": "t"}}])
    settings = DbbenchSettings(source="files", train_file=str(path))
    with pytest.raises(EnvironmentFault, match="table.table_info"):
        SPEC.prepare(settings, "train", 1, 0)


def test_files_are_taken_in_file_order_and_never_beyond_their_end(tmp_path: Path) -> None:
    path = _write(tmp_path / "tasks.jsonl", [QUESTION, CHANGE])
    settings = DbbenchSettings(source="files", train_file=str(path))
    tasks = SPEC.prepare(settings, "train", 2, 0)
    assert [task.payload["type"] for task in tasks] == [["counting"], ["INSERT"]]
    with pytest.raises(EnvironmentFault, match="3 tasks asked for, 2 records there"):
        SPEC.prepare(settings, "train", 3, 0)
    with pytest.raises(EnvironmentFault, match="validation_file"):
        SPEC.prepare(settings, "validation", 1, 0)


def test_a_damaged_payload_is_refused_at_reset() -> None:
    task = SPEC.prepare(DbbenchSettings(), "train", 1, 0)[0]
    payload = {key: value for key, value in task.payload.items() if key != "table"}
    environment = SPEC.make(DbbenchSettings())
    with pytest.raises(EnvironmentFault, match="field 'table' is missing"):
        environment.reset(type(task)(task.environment, task.split, task.task_id, 0, payload, task.content_hash), 0)


def test_the_content_hash_follows_question_and_table_but_not_the_gold() -> None:
    record = parse_record(QUESTION, "here")
    assert content_hash(record) == content_hash(parse_record({**QUESTION, "label": ["5"]}, "here"))
    assert content_hash(record) != content_hash(parse_record({**QUESTION, "description": "how many?"}, "here"))
