"""Our generated DBBench tasks and the expert that solves them."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from rised.environments.base import EnvironmentFault, StepResult, Task
from rised.environments.dbbench import SPEC, DbbenchSettings
from rised.environments.dbbench.generator import split_of
from rised.environments.dbbench.questions import RECIPES
from rised.environments.dbbench.records import TYPES, Record, content_hash
from rised.environments.dbbench.settings import DifficultyMix

COUNT = 240


@pytest.fixture(scope="module")
def train() -> list[Task]:
    return SPEC.prepare(DbbenchSettings(), "train", COUNT, 1)


def _replay(task: Task, noise: float, seed: int = 0, style: str = "compact") -> list[StepResult]:
    environment = SPEC.make(DbbenchSettings(prompt_style=style))  # type: ignore[arg-type]
    environment.reset(task, 0)
    results = []
    for reply in environment.expert(seed, noise):
        results.append(environment.step(reply))
        if results[-1].done:
            break
    environment.close()
    return results


def test_the_expert_without_noise_solves_every_generated_task(train: list[Task]) -> None:
    kinds = Counter()
    for task in train:
        results = _replay(task, 0.0)
        assert results[-1].done and results[-1].reward == 1.0 and results[-1].success, task.payload["description"]
        kinds[task.payload["type"][0]] += 1
    generated = set(TYPES) - {"SELECT", "DELETE"}
    assert set(kinds) == generated


def test_the_expert_recovers_from_its_detours_within_the_turn_limit(train: list[Task]) -> None:
    detours = Counter()
    for index, task in enumerate(train[:120]):
        results = _replay(task, 1.0, seed=index)
        assert results[-1].reward == 1.0 and len(results) <= DbbenchSettings().max_turns
        for result in results:
            detours["invalid"] += result.info["reply"] == "invalid"
            detours["error"] += result.info.get("error_class") == "no_such_column"
            detours["preview"] += bool(result.info.get("has_star") and result.info["has_limit"])
    assert min(detours.values()) > 50


def test_the_full_style_replays_to_reward_one_as_well(train: list[Task]) -> None:
    for index, task in enumerate(train[:60]):
        assert _replay(task, 0.3, seed=index, style="full")[-1].reward == 1.0


def test_equal_seeds_give_equal_tasks_and_equal_experts(train: list[Task]) -> None:
    assert SPEC.prepare(DbbenchSettings(), "train", 30, 1) == train[:30]
    assert SPEC.prepare(DbbenchSettings(), "train", 30, 2) != train[:30]
    assert [r.observation for r in _replay(train[0], 0.5, 3)] == [r.observation for r in _replay(train[0], 0.5, 3)]


def test_a_task_belongs_to_the_split_that_its_content_names_whatever_the_seeds_are(train: list[Task]) -> None:
    panels = {"train": train, "validation": SPEC.prepare(DbbenchSettings(), "validation", 40, 1)}
    panels["sft"] = SPEC.prepare(DbbenchSettings(mix=DifficultyMix(rows_min=8, rows_max=24)), "sft", 40, 7)
    shares = {"validation": range(0, 64), "sft": range(64, 160), "train": range(160, 256)}
    for split, panel in panels.items():
        assert {task.split for task in panel} == {split}
        assert all(int(task.content_hash[:2], 16) in shares[split] for task in panel)
    assert SPEC.overlap(panels["validation"], train)["tasks"] == 0
    assert SPEC.overlap(train[:3], train)["schemas"] == 3


def test_the_content_hash_decides_the_split(train: list[Task]) -> None:
    """No two seeds draw one task for both splits: different seeds alone would only make it unlikely."""
    validation = SPEC.prepare(DbbenchSettings(), "validation", 60, 1)
    for task in train + validation:
        assert task.content_hash == content_hash(Record.model_validate(task.payload))
        assert (int(task.content_hash[:2], 16) < 64) == (task.split == "validation")
    bounds = {"3f": "validation", "40": "sft", "9f": "sft", "a0": "train", "ff": "train"}
    assert {first: split_of(first + "0" * 62) for first in bounds} == bounds


def test_generated_records_say_that_they_are_synthetic_and_survive_json(train: list[Task]) -> None:
    for task in train:
        assert task.payload["synthetic"] is True
        assert json.loads(json.dumps(task.payload)) == task.payload


def test_the_mix_decides_levels_names_and_look_ups() -> None:
    plain = DifficultyMix(easy=1, medium=0, hard=0, two_word_names=0, look_first=0)
    tasks = SPEC.prepare(DbbenchSettings(mix=plain), "train", 40, 3)
    assert {task.payload["level"] for task in tasks} == {"easy"}
    assert not any("`" in json.dumps(task.payload.get("sql", task.payload["label"])) for task in tasks)
    look = DifficultyMix(look_first=1)
    for task in SPEC.prepare(DbbenchSettings(mix=look), "train", 25, 3):
        first = _replay(task, 0.0)[0]
        assert set(first.info["cells"]) <= {"0", "null"}, "the question's spelling must find nothing"


def test_careless_readings_of_a_question_do_not_give_its_answer(train: list[Task]) -> None:
    """A query that drops the conditions altogether must not earn the reward by luck in a filtered aggregate."""
    tried = 0
    for task in train:
        query = task.payload.get("sql", {}).get("query", "")
        if not query.startswith(("SELECT COUNT(*)", "SELECT SUM", "SELECT ROUND")) or task.payload["level"] != "medium":
            continue
        environment = SPEC.make(DbbenchSettings())
        environment.reset(task, 0)
        careless = environment.step("sql: " + query.partition(" WHERE ")[0])
        assert environment.step("answer: " + careless.observation.removeprefix("result: ")).reward == 0.0
        tried += 1
    assert tried > 10


def test_impossible_requests_are_refused_clearly() -> None:
    with pytest.raises(EnvironmentFault, match="no generated split 'test'; there are validation, sft, train"):
        SPEC.prepare(DbbenchSettings(), "test", 1, 0)
    with pytest.raises(ValueError, match="rows_max"):
        DifficultyMix(rows_min=20, rows_max=10)
    with pytest.raises(ValueError, match="all 0"):
        DifficultyMix(easy=0, medium=0, hard=0)
    with pytest.raises(ValueError, match="train_file"):
        DbbenchSettings(source="files")


def test_every_level_has_recipes_of_questions_and_changes() -> None:
    assert set(RECIPES) == {"easy", "medium", "hard"}
    for recipes in RECIPES.values():
        names = " ".join(recipe.__name__ for recipe in recipes)
        assert "update" in names and "insert" in names and ("count" in names)
