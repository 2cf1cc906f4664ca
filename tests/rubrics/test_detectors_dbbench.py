"""DBBench's detectors on scripted episodes that are played in the real environment: shown, violated, and left alone."""

from __future__ import annotations

from typing import Any

import pytest

from rised.environments.base import Task
from rised.environments.dbbench import SPEC, DbbenchSettings
from rised.environments.dbbench.judging import table_hash
from rised.records.types import Rollout, StopReason, TagState, TagStatus, Turn
from rised.rubrics.base import Verdict
from rised.rubrics.judge_rules import RuleJudge, load_detectors
from rised.rubrics.vocabulary import Polarity, Vocabulary

TABLE = {
    "table_name": "staff",
    "table_info": {
        "columns": [{"name": "name"}, {"name": "city"}, {"name": "age"}],
        "rows": [["anna", "paris", "30"], ["ben", "oslo", "41"], ["carl", "paris", "25"], ["dora", "rome", "52"]],
    },
}
CHANGED = [["anna", "paris", "30"], ["ben", "lima", "41"], ["carl", "paris", "25"], ["dora", "rome", "52"]]
TASKS: dict[str, dict[str, Any]] = {
    "count": {
        "type": ["counting"],
        "description": "how many staff have city 'paris' and age above 26?",
        "label": ["1"],
    },
    "list": {"type": ["other"], "description": "which name have city 'paris'?", "label": ["anna", "carl"]},
    "rank": {"type": ["ranking"], "description": "which name has the highest age?", "label": ["dora"]},
    "change": {
        "type": ["UPDATE"],
        "description": "set city to 'lima' for the name 'ben'.",
        "label": ["UPDATE staff SET city = 'lima' WHERE name = 'ben'"],
        "answer_md5": f"[('{table_hash(CHANGED)}',)]",
    },
}
COUNT = "sql: SELECT COUNT(*) FROM staff WHERE city = 'paris' AND age > 26"
LIST = "sql: SELECT name FROM staff WHERE city = 'paris'"
RANK = "sql: SELECT name FROM staff ORDER BY age DESC LIMIT 1"
CHANGE = "sql: UPDATE staff SET city = 'lima' WHERE name = 'ben'"
CHECK = "sql: SELECT * FROM staff WHERE name = 'ben'"
MADRID = "sql: SELECT COUNT(*) FROM staff WHERE city = 'madrid'"
MISSPELT = "sql: SELECT name FROM staff WHERE city = 'pari'"
PREVIEW = "sql: SELECT * FROM staff LIMIT 3"
WRONG = "sql: SELECT COUNT(*) FROM staff WHERE town = 'paris'"
BROKEN = "sql: SELECT COUNT( FROM staff WHERE"
OTHER = "sql: UPDATE staff SET city = 'lima' WHERE name = 'anna'"


def play(name: str, *replies: str, stop: StopReason = StopReason.ENVIRONMENT_DONE) -> Rollout:
    """A synthetic rollout: the replies played in the compact style on the task."""
    environment = SPEC.make(DbbenchSettings())
    record = {"table": TABLE, **TASKS[name]}
    observation = environment.reset(Task("dbbench", "train", name, 0, record, "h"), 0)
    turns = []
    reward, success = 0.0, False
    for reply in replies:
        result = environment.step(reply)
        turns.append(Turn(observation, reply, result.action_mapped, result.action_valid, 0, 0, False, result.info))
        observation = result.observation
        if result.done:
            reward, success = float(result.reward or 0), bool(result.success)
    environment.close()
    return Rollout(
        rollout_id=name, run="synthetic", step=0, weight_version=0, split="train", environment="dbbench", task_id=name,
        group_id="g", rollout_index=0, seed=0, system_prompt="database", steering_rubrics=(), steering_text="",
        steering_text_hash="", turns=tuple(turns), final_observation=observation, token_ids=(), policy_mask=(),
        logprobs=(), reward=reward, reward_valid=True, success=success, stop_reason=stop,
    )  # fmt: skip


def judge(rubric: str, rollout: Rollout) -> Verdict:
    return load_detectors()["dbbench"][rubric](rollout)


D, V, A = TagState.DEMONSTRATES, TagState.VIOLATES, TagState.ABSENT
LONG_STOP = "turn limit"

CASES: list[tuple[str, str, tuple[str, ...], TagState, int | None]] = [
    ("explores_database_schema", "count", ("sql: DESCRIBE staff", COUNT, "answer: 1"), D, 0),
    ("explores_database_schema", "count", (PREVIEW, COUNT, "answer: 1"), D, 0),
    ("explores_database_schema", "count", (COUNT, "answer: 1"), A, None),
    ("explores_database_schema", "count", (COUNT, PREVIEW), A, None),
    ("previews_data_before_aggregation", "count", (PREVIEW, COUNT, "answer: 1"), D, 0),
    ("previews_data_before_aggregation", "count", (COUNT, PREVIEW, "answer: 1"), A, None),
    ("previews_data_before_aggregation", "list", (PREVIEW, LIST, "answer: anna; carl"), A, None),
    ("verifies_modification_result", "change", (CHANGE, CHECK, "answer: done"), D, 1),
    ("verifies_modification_result", "change", (PREVIEW, CHANGE, "answer: done"), A, None),
    ("verifies_modification_result", "count", (COUNT, PREVIEW, "answer: 1"), A, None),
    ("revises_plan_after_failure", "count", (WRONG, COUNT, "answer: 1"), D, 1),
    ("revises_plan_after_failure", "list", (MISSPELT, LIST, "answer: x"), D, 1),
    ("revises_plan_after_failure", "count", (WRONG, WRONG, "answer: 1"), A, None),
    ("repeats_failed_action", "count", (WRONG, WRONG, COUNT, "answer: 1"), V, 1),
    ("repeats_failed_action", "count", ("hello", "hello"), V, 1),
    ("repeats_failed_action", "count", (WRONG, COUNT, COUNT, "answer: 1"), A, None),
    ("repeats_failed_action", "change", ("sql: SELECT x FROM staff", CHANGE, "sql: SELECT x FROM staff"), A, None),
    ("corrects_query_after_error", "count", (BROKEN, COUNT, "answer: 1"), D, 1),
    ("corrects_query_after_error", "count", (BROKEN, "answer: 1"), A, None),
    ("recovers_from_invalid_action", "count", ("hello", COUNT, "answer: 1"), D, 1),
    ("recovers_from_invalid_action", "count", ("hello", "hello"), A, None),
    ("recovers_from_invalid_action", "count", (WRONG, COUNT), A, None),
    ("abandons_task_after_error", "count", (WRONG, "answer: 1"), V, 1),
    ("abandons_task_after_error", "change", (PREVIEW, "sql: UPDATE staff SET x = 1", "answer: done"), V, 2),
    ("abandons_task_after_error", "count", (COUNT, WRONG, "answer: 1"), A, None),
    ("abandons_task_after_error", "count", (WRONG, COUNT, "answer: 1"), A, None),
    ("ignores_task_constraint", "count", ("sql: SELECT COUNT(*) FROM staff WHERE city = 'paris'", "answer: 2"), V, 0),
    ("ignores_task_constraint", "count", (COUNT, "answer: 1"), A, None),
    ("ignores_task_constraint", "change", ("sql: UPDATE staff SET city = 'lima'", "answer: done"), V, 0),
    ("ignores_task_constraint", "count", ("sql: SELECT COUNT(*) FROM staff", COUNT), A, None),
    ("uses_exact_values_from_task", "count", (COUNT, "answer: 1"), D, 0),
    ("uses_exact_values_from_task", "count", (MADRID, "answer: 0"), V, 0),
    ("uses_exact_values_from_task", "rank", (RANK, "answer: dora"), A, None),
    ("refers_to_unobserved_entity", "list", ("sql: SELECT name FROM staff WHERE city = 'madrid'", "answer: x"), V, 0),
    ("refers_to_unobserved_entity", "list", (PREVIEW, "sql: SELECT age FROM staff WHERE name = 'ben'"), A, None),
    ("hallucinates_observation", "count", (COUNT + "\nresult: 7", "answer: 7"), V, 0),
    ("hallucinates_observation", "list", (LIST, "answer: zoe"), V, 1),
    ("hallucinates_observation", "list", (LIST, "answer: anna; carl"), A, None),
    ("hallucinates_observation", "count", (LIST, "answer: 2"), A, None),
    ("filters_in_query", "list", (LIST, "answer: anna; carl"), D, 0),
    ("filters_in_query", "list", ("sql: SELECT name FROM staff", "answer: anna; carl"), V, 1),
    ("filters_in_query", "rank", (RANK, "answer: dora"), A, None),
    ("uses_aggregate_function", "count", (COUNT, "answer: 1"), D, 0),
    ("uses_aggregate_function", "rank", (RANK, "answer: dora"), D, 0),
    ("uses_aggregate_function", "count", (LIST, "answer: 1"), V, 1),
    ("uses_aggregate_function", "list", (LIST, "answer: anna; carl"), A, None),
    ("names_columns_from_schema", "count", (COUNT, "answer: 1"), D, 0),
    ("names_columns_from_schema", "count", (COUNT, WRONG, "answer: 1"), A, None),
    ("names_columns_from_schema", "count", ("answer: 1",), A, None),
    ("uses_nonexistent_column_or_table", "count", (WRONG, COUNT), V, 0),
    ("uses_nonexistent_column_or_table", "count", ("sql: SELECT age FROM people",), V, 0),
    ("uses_nonexistent_column_or_table", "count", ("sql: SELECT COUNT(*) AS c FROM staff ORDER BY c",), A, None),
    ("writes_invalid_sql", "count", (COUNT, BROKEN), V, 1),
    ("writes_invalid_sql", "count", (WRONG, COUNT), A, None),
    ("issues_multiple_statements", "change", (CHANGE + "; SELECT * FROM staff",), V, 0),
    ("issues_multiple_statements", "change", (CHANGE + ";", "answer: done"), A, None),
    ("modifies_table_in_read_task", "count", (COUNT, OTHER, "answer: 1"), V, 1),
    ("modifies_table_in_read_task", "change", (CHANGE, "answer: done"), A, None),
    ("modifies_table_in_read_task", "count", ("sql: UPDATE staff SET town = 'x'", COUNT), A, None),
    ("uses_valid_action_format", "count", (COUNT, "answer: 1"), D, 1),
    ("uses_valid_action_format", "count", (COUNT, "1"), A, None),
    ("malformed_action", "count", (COUNT, "1"), V, 1),
    ("malformed_action", "count", (COUNT, "answer: 1"), A, None),
    ("answer_matches_query_result", "list", (LIST, "answer: carl; anna"), D, 1),
    ("answer_matches_query_result", "list", (LIST, "answer: anna"), V, 1),
    ("answer_matches_query_result", "list", ("answer: anna; carl",), A, None),
    ("answer_matches_query_result", "change", (CHANGE, "answer: done"), A, None),
    ("answers_without_query", "count", ("answer: 1",), V, 0),
    ("answers_without_query", "count", (WRONG, "answer: 1"), V, 1),
    ("answers_without_query", "count", (COUNT, "answer: 1"), A, None),
    ("commits_too_early", "change", (PREVIEW, "answer: done"), V, 1),
    ("commits_too_early", "count", (PREVIEW, "answer: 1"), V, 1),
    ("commits_too_early", "change", (CHANGE, "answer: done"), A, None),
    ("commits_too_early", "count", (COUNT, "answer: 1"), A, None),
    ("claims_false_completion", "change", (OTHER, "answer: done"), V, 1),
    ("claims_false_completion", "count", (COUNT, "answer: done"), V, 1),
    ("claims_false_completion", "change", (CHANGE, "answer: done"), A, None),
    ("claims_false_completion", "change", (OTHER,), A, None),
    ("exhausts_turn_budget", "count", (COUNT, COUNT, LONG_STOP), V, 1),
    ("exhausts_turn_budget", "count", (COUNT, "answer: 1"), A, None),
    ("finishes_without_detour", "count", (COUNT, "answer: 1"), D, 1),
    ("finishes_without_detour", "count", (PREVIEW, COUNT, "answer: 1"), A, None),
    ("finishes_without_detour", "count", (COUNT, "answer: 2"), A, None),
]  # fmt: skip


@pytest.mark.parametrize(("rubric", "task", "replies", "state", "turn"), CASES)
def test_a_detector_tags_the_scripted_episode_and_points_at_the_turn(
    rubric: str, task: str, replies: tuple[str, ...], state: TagState, turn: int | None
) -> None:
    stop = StopReason.TURN_LIMIT if replies[-1] == LONG_STOP else StopReason.ENVIRONMENT_DONE
    rollout = play(task, *(reply for reply in replies if reply != LONG_STOP), stop=stop)
    assert judge(rubric, rollout) == Verdict(state, turn)


def test_every_detector_has_a_case_that_shows_it_and_one_that_does_not(vocabulary: Vocabulary) -> None:
    detectors = load_detectors()["dbbench"]
    assert len(detectors) >= 12
    for rubric in detectors:
        shown = V if vocabulary.polarity(rubric) is Polarity.NEGATIVE else D
        states = {state for name, _, _, state, _ in CASES if name == rubric}
        assert shown in states and len(states) > 1, rubric


def test_a_negative_rubric_is_never_demonstrated_and_no_tag_fails(vocabulary: Vocabulary) -> None:
    rollouts = [play(task, *(r for r in replies if r != LONG_STOP)) for _, task, replies, _, _ in CASES]
    tags = RuleJudge(vocabulary, {"dbbench": load_detectors()["dbbench"]}).tag(rollouts)
    assert all(tag.status is TagStatus.OK for tag in tags)
    for tag in tags:
        if vocabulary.polarity(tag.rubric_id) is Polarity.NEGATIVE:
            assert tag.state is not TagState.DEMONSTRATES


def test_the_experts_clean_solutions_violate_nothing(vocabulary: Vocabulary) -> None:
    settings = DbbenchSettings()
    environment = SPEC.make(settings)
    judged = RuleJudge(vocabulary, {"dbbench": load_detectors()["dbbench"]})
    for task in SPEC.prepare(settings, "train", 60, 5):
        observation = environment.reset(task, 0)
        turns = []
        for reply in environment.expert(0, 0.0):
            result = environment.step(reply)
            turns.append(Turn(observation, reply, result.action_mapped, True, 0, 0, False, result.info))
            observation = result.observation
        rollout = play("count", COUNT, "answer: 1")
        fields = {name: getattr(rollout, name) for name in rollout.__dataclass_fields__}
        expert = Rollout(**{**fields, "turns": tuple(turns), "final_observation": observation})
        violated = [tag.rubric_id for tag in judged.tag([expert]) if tag.state is TagState.VIOLATES]
        assert violated == [], task.payload["description"]


def test_a_rollout_without_turns_shows_nothing() -> None:
    empty = play("count")
    assert all(detect(empty).state is A for detect in load_detectors()["dbbench"].values())
