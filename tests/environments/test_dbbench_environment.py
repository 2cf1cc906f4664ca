"""DBBench episodes: what is shown, what ends them, what is rewarded, and what the log says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rised.environments.base import Environment, EnvironmentFault, Task
from rised.environments.dbbench import SPEC, DbbenchSettings
from rised.environments.dbbench.judging import table_hash
from rised.environments.discovery import get

TABLE = {
    "table_name": "staff",
    "table_info": {
        "columns": [{"name": "name"}, {"name": "home city"}, {"name": "age"}],
        "rows": [["anna", "paris", "30"], ["ben", "oslo", "41"], ["carl", "paris", "25"]],
    },
}
QUESTION = {
    "description": "which name have home city 'paris' and age above 20?",
    "label": ["anna", "carl"],
    "table": TABLE,
    "type": ["comparison"],
    "sql": {"query": "SELECT name FROM staff WHERE `home city` = 'paris' AND age > 20"},
    "add_description": "The name of this table is staff, and the headers of this table are name,home city,age.",
}
AFTER = [["anna", "rome", "30"], ["ben", "oslo", "41"], ["carl", "paris", "25"]]
CHANGE = {
    "description": "set home city to 'rome' for the name 'anna'.",
    "label": ["UPDATE staff SET `home city` = 'rome' WHERE name = 'anna'"],
    "answer_md5": f"[('{table_hash(AFTER)}',)]",
    "table": TABLE,
    "type": ["UPDATE"],
}


def _start(record: dict[str, Any], **settings: Any) -> tuple[Environment, str]:
    environment = SPEC.make(DbbenchSettings(**settings))
    task = Task("dbbench", "train", "t", 0, record, "h")
    return environment, environment.reset(task, 0)


def test_the_registry_finds_dbbench_with_the_benchmarks_turn_limit() -> None:
    assert get("dbbench") is SPEC and SPEC.max_turns == 20


def test_the_compact_style_shows_names_as_sql_needs_them_and_answers_briefly() -> None:
    environment, first = _start(QUESTION)
    assert environment.system_prompt() == "database"
    assert first == "table staff, columns name, `home city`, age. " + QUESTION["description"]
    result = environment.step("sql: SELECT name FROM staff WHERE `home city` = 'paris' AND age > 20")
    assert (result.observation, result.done, result.action_valid) == ("result: anna; carl", False, True)
    assert environment.step("sql: SELECT town FROM staff").observation == "error: no such column: town"
    assert environment.step("sql: SELECT * FROM staff WHERE age = 7").observation == "result: empty"
    assert environment.step("sql: UPDATE staff SET age = 1 WHERE age = 7").observation == "ok"
    last = environment.step("answer: carl; anna")
    assert (last.done, last.reward, last.success, last.stop) == (True, 1.0, True, "environment_done")


def test_the_full_style_follows_the_benchmarks_protocol() -> None:
    environment, first = _start(QUESTION, prompt_style="full")
    assert "Action: Operation" in environment.system_prompt() and "Final Answer" in environment.system_prompt()
    assert first.startswith("Additional table information about the question: The name of this table is staff")
    assert first.endswith("Question: " + QUESTION["description"])
    sql = "Action: Operation\n```sql\nSELECT name\nFROM staff WHERE age < 40\n```"
    assert environment.step(sql).observation == "[('anna',), ('carl',)]"
    assert environment.step('Action: Answer\nFinal Answer: ["anna", "carl"]').reward == 1.0


def test_an_unreadable_reply_ends_a_full_episode_as_a_format_failure_and_never_a_compact_one() -> None:
    environment, _ = _start(QUESTION, prompt_style="full")
    result = environment.step("SELECT 1")
    assert (result.done, result.reward, result.success, result.stop) == (True, 0.0, False, "invalid_format")
    environment, _ = _start(QUESTION)
    result = environment.step("SELECT 1")
    assert (result.observation, result.done, result.reward, result.action_valid) == (
        "invalid action",
        False,
        None,
        False,
    )


def test_the_reply_format_decides_whether_a_small_slip_is_forgiven() -> None:
    slip = "Action:Operation\n```SQL\nSELECT 1\n```"
    published, _ = _start(QUESTION, prompt_style="full")
    assert published.step(slip).stop == "invalid_format"
    lenient, _ = _start(QUESTION, prompt_style="full", reply_format="lenient")
    assert lenient.step(slip).observation == "[(1,)]"


def test_database_replies_are_cut_at_their_limits() -> None:
    environment, _ = _start(QUESTION, prompt_style="full")
    wide = "Action: Operation\n```sql\nSELECT hex(zeroblob(2000))\n```"
    observation = environment.step(wide).observation
    assert observation.endswith("[TRUNCATED]") and len(observation) == 800 + len("[TRUNCATED]")
    environment, _ = _start(QUESTION)
    assert len(environment.step("sql: SELECT hex(zeroblob(2000))").observation) == 160
    many = "sql: WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 9) SELECT n FROM r"
    assert environment.step(many).observation == "result: 1; 2; 3; 4; 5; 6; ..."


def test_a_modification_is_judged_by_the_table_and_not_by_the_answer() -> None:
    environment, _ = _start(CHANGE)
    result = environment.step("sql: UPDATE staff SET `home city` = 'rome' WHERE name = 'anna'")
    assert (result.observation, result.info["gold_state"], result.info["changed"]) == ("ok", True, 1)
    assert environment.step("answer: anything").reward == 1.0
    environment, _ = _start(CHANGE)
    assert environment.step("answer: done").reward == 0.0
    environment, _ = _start(CHANGE)
    environment.step("sql: DROP TABLE staff")
    assert environment.step("answer: done").reward == 0.0


def test_a_modification_without_recorded_hash_is_judged_by_its_gold_statement() -> None:
    environment, _ = _start({key: value for key, value in CHANGE.items() if key != "answer_md5"})
    assert environment.step("sql: UPDATE staff SET `home city` = 'rome' WHERE name = 'ben'").info["gold_state"] is False
    environment.step("sql: UPDATE staff SET `home city` = 'oslo' WHERE name = 'ben'")
    environment.step("sql: UPDATE staff SET `home city` = 'rome' WHERE name = 'anna'")
    assert environment.step("answer: done").reward == 1.0


def test_a_failing_gold_statement_is_a_fault_that_names_task_error_and_mend() -> None:
    record = {key: value for key, value in CHANGE.items() if key != "answer_md5"}
    with pytest.raises(EnvironmentFault, match=r"task 't'.*no such column: town.*answer_md5"):
        _start({**record, "label": ["UPDATE staff SET name = town"]})


def test_a_gold_hash_cut_at_1024_bytes_is_accepted_for_large_tables_and_marked() -> None:
    rows = [[str(index), "v", "w"] for index in range(200)]
    table = {"table_name": "staff", "table_info": {"columns": TABLE["table_info"]["columns"], "rows": rows}}
    cut = table_hash([*rows, ["200", "v", "w"]], 1024)
    record = {**CHANGE, "type": ["INSERT"], "table": table, "answer_md5": f"[('{cut}',)]"}
    environment, _ = _start(record)
    environment.step("sql: INSERT INTO staff VALUES ('200', 'v', 'w')")
    result = environment.step("answer: done")
    assert result.reward == 1.0 and result.info["hash_cut_form"] is True


def test_every_episode_starts_from_a_fresh_database() -> None:
    environment, _ = _start(CHANGE)
    environment.step("sql: DELETE FROM staff")
    environment.reset(Task("dbbench", "train", "t", 0, QUESTION, "h"), 0)
    assert environment.step("sql: SELECT COUNT(*) FROM staff").observation == "result: 3"


def test_the_log_is_small_json_and_names_what_the_statement_used() -> None:
    environment, _ = _start(QUESTION)
    replies = ["sql: SELECT AVG(age), town FROM staff WHERE `home city` = 'paris' LIMIT 2", "nothing", "answer: 3"]
    logs = [environment.step(reply).info for reply in replies]
    assert all(len(json.dumps(log)) < 1500 for log in logs)
    first, second, third = logs
    assert first["reply"] == "operation" and first["statement"] == "SELECT" and first["tables"] == ["staff"]
    assert first["columns"] == ["age", "town", "home city"] and first["unknown_names"] == ["town"]
    assert first["aggregates"] == ["AVG"] and first["has_filter"] and first["has_limit"] and not first["has_star"]
    assert first["error_class"] == "no_such_column" and first["rows"] == 0
    assert first["schema"] == {"staff": ["name", "home city", "age"]}
    assert first["task_values"] == ["paris"] and first["task_numbers"] == ["20"]
    assert second["reply"] == "invalid" and "schema" not in second
    assert third["answer"] == ["3"] and third["correct"] is False and third["answer_matches_result"] is None


def test_the_log_keeps_long_statements_whole_up_to_a_limit() -> None:
    environment, _ = _start(QUESTION)
    long = "SELECT name FROM staff WHERE " + "age > 1 AND " * 60 + "`home city` = 'paris'"
    assert environment.step(f"sql: {long}").info["sql"] == long
    assert len(environment.step("sql: SELECT " + "1, " * 5_000 + "1").info["sql"]) == 8_000


def test_apostrophes_inside_words_are_no_quotes_in_the_log() -> None:
    environment, _ = _start(
        {**QUESTION, "description": "was anna's 2nd visit to ben's in 'new york' or \"oslo\" in 1999?"}
    )
    info = environment.step("answer: 1").info
    assert (info["task_values"], info["task_numbers"]) == (["new york", "oslo"], ["1999"])


def test_a_step_outside_an_episode_says_what_to_do() -> None:
    environment = SPEC.make(DbbenchSettings())
    with pytest.raises(EnvironmentFault, match="call reset"):
        environment.step("answer: 1")
    environment, _ = _start(QUESTION)
    environment.step("answer: 1")
    with pytest.raises(EnvironmentFault, match="over"):
        environment.step("answer: 1")


def solved(path: Path, style: str, count: int) -> int:
    """How many of the first records the expert solves."""
    settings = DbbenchSettings(prompt_style=style, source="files", validation_file=str(path))  # type: ignore[arg-type]
    environment = SPEC.make(settings)
    found = 0
    for task in SPEC.prepare(settings, "validation", count, 0):
        environment.reset(task, 0)
        rewards = [environment.step(reply).reward for reply in environment.expert(0, 0.0)]
        found += rewards[-1] == 1.0
    return found


@pytest.mark.parametrize("style", ["full", "compact"])
def test_the_expert_solves_the_excerpt_of_the_benchmarks_records(excerpts_dir: Path, style: str) -> None:
    assert solved(excerpts_dir / "dbbench_standard.jsonl", style, 8) == 8


@pytest.mark.parametrize("style", ["full", "compact"])
def test_the_expert_solves_the_benchmarks_own_records_where_their_gold_works(shared_dir: Path, style: str) -> None:
    assert solved(shared_dir / "data" / "dbbench_standard.jsonl", style, 300) >= 295
