"""The gradient signal of a finished run: which tasks, which rows, the same bytes after a kill, refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stage_commands import Command, SingleSource, assert_refused, in_process

import stages.gradient
from rised.config import ConfigError
from rised.config.overlays import compose
from rised.config.source import plain_value
from rised.learner.settings import GradientSettings
from rised.methods.composition import Method
from rised.methods.settings import MethodSettings
from rised.records.digest import reproducible_digest
from rised.records.schemas import from_table
from rised.records.shards import RunReader
from rised.records.types import Gradient
from rised.rubrics.vocabulary import load_vocabulary
from stages.gradient import chosen_tasks, gradient_plans, measure_gradients, policy_term, source_environment
from stages.parts import Part, part_of_array
from stages.setup import load_run, read_tasks

pytestmark = pytest.mark.usefixtures("at_the_root")

SETTINGS = GradientSettings(tasks=3, projection=64)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return in_process(monkeypatch, capsys)


@pytest.fixture(scope="module")
def measured(single_source: SingleSource, tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A copy of the run with its gradient signal."""
    run = tmp_path_factory.mktemp("measured") / "run"
    shutil.copytree(single_source.run, run)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        config = load_run(single_source.config, "grpo_64", 0)
        measure_gradients(config, SETTINGS, read_tasks(single_source.tasks), run)
    return run


def rows(run: Path) -> list[Gradient]:
    return from_table(RunReader(run / "gradient_signal").scan("gradients"))


def arguments(single_source: SingleSource, run: Path, *more: object) -> list[object]:
    given = {"config": single_source.config, "method": "grpo_64", "seed": 0, "tasks": single_source.tasks, "run": run}
    return [*(part for name, value in given.items() for part in (f"--{name}", value)), *more]


def test_every_exported_checkpoint_has_a_row_per_signal_for_the_training_tasks_and_each_environment(
    measured: Path,
) -> None:
    found = rows(measured)
    batches = [("train", "dbbench"), ("validation", "alfworld"), ("validation", "dbbench")]
    expected = [(step, *batch, signal) for step in (2, 3) for batch in batches for signal in ("layer", "projection")]
    assert [(r.step, r.split, r.environment, r.signal) for r in found] == expected
    assert all(r.group_count == 3 and r.rollout_count == 12 for r in found)
    assert all((r.cosine is None) == (r.split == "train" or r.norm == 0) for r in found if sources(found)[r.step] > 0)
    assert all(r.norm == 0 for r in found if r.signal_group_count == 0)
    assert any(r.norm > 0 for r in found)
    assert {len(r.vector) for r in found if r.signal == "projection"} == {64}
    assert {r.vector for r in found if r.signal == "layer"} == {()}


def sources(found: list[Gradient]) -> dict[int, float]:
    """Norm of the training tasks' gradient by step."""
    return {r.step: r.norm for r in found if r.split == "train" and r.signal == "layer"}


def test_plans_take_training_tasks_of_the_source_and_held_out_ones_of_all_with_equal_draws_at_every_checkpoint(
    single_source: SingleSource,
) -> None:
    config, tasks = load_run(single_source.config, "grpo_64", 0), read_tasks(single_source.tasks)
    chosen = chosen_tasks(config, SETTINGS, tasks)
    splits = {(task.environment, task.task_id): task.split for task in tasks}
    first, second = (gradient_plans(config, SETTINGS, chosen, step) for step in (2, 3))
    assert [plan.seed for plan in first] == [plan.seed for plan in second]
    assert len({plan.seed for plan in first}) == len(first) == 3 * 3 * config.rollouts_per_group
    assert all(splits[plan.task.environment, plan.task.task_id] == plan.split for plan in first)
    assert all(plan.steering_text == "" for plan in first)
    assert {plan.task.environment for plan in first if plan.split == "train"} == {"dbbench"}


def test_measuring_again_measures_nothing_and_a_stop_between_checkpoints_costs_only_what_is_missing(
    single_source: SingleSource, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(measured, run)
    shutil.rmtree(run / "gradient_signal")
    config, tasks = load_run(single_source.config, "grpo_64", 0), read_tasks(single_source.tasks)
    played = []
    play = stages.gradient.play

    def stop_at_the_second(config, plans, policy, pool):
        played.append(plans[0].step)
        if played == [2, 3]:
            raise KeyboardInterrupt
        return play(config, plans, policy, pool)

    monkeypatch.setattr(stages.gradient, "play", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        measure_gradients(config, SETTINGS, tasks, run)
    assert not (run / "gradient_signal" / "DONE").exists()
    measure_gradients(config, SETTINGS, tasks, run)
    measure_gradients(config, SETTINGS, tasks, run)
    assert played == [2, 3, 3]
    assert reproducible_digest(run / "gradient_signal") == reproducible_digest(measured / "gradient_signal")


def test_parts_of_a_job_array_measure_what_one_call_measures(
    single_source: SingleSource, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(measured, run)
    shutil.rmtree(run / "gradient_signal")
    config, tasks = load_run(single_source.config, "grpo_64", 0), read_tasks(single_source.tasks)
    for index in range(3):  # one more than there are checkpoints: it has nothing to do
        measure_gradients(config, SETTINGS, tasks, run, Part(index, 3))
    assert not (run / "gradient_signal").exists()
    monkeypatch.setattr(stages.gradient, "play", None)
    measure_gradients(config, SETTINGS, tasks, run)
    assert reproducible_digest(run) == reproducible_digest(measured)


def test_other_settings_than_those_of_what_is_there_are_refused(
    single_source: SingleSource, measured: Path, command: Command
) -> None:
    outcome = command("gradient", *arguments(single_source, measured, "--set", "gradient.tasks=2"))
    assert_refused(outcome, "gradient", "start a new run in another folder")


def test_a_run_that_trained_on_several_environments_has_no_source(single_source: SingleSource) -> None:
    config = load_run(single_source.config, "grpo_64", 0, ["training_environments=null"])
    with pytest.raises(ConfigError, match="trains on alfworld, dbbench; .* name one"):
        source_environment(config)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("gradient=null", ["gradient is null"]),
        ("gradient.tasks=5", ["gradient.tasks is 5", "alfworld.validation_tasks is 4"]),
        ("training_environments=null", ["training_environments", "config.yaml"]),
    ],
)
def test_what_cannot_be_measured_is_said(
    single_source: SingleSource, tmp_path: Path, command: Command, override: str, words: list[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(single_source.run, run)
    assert_refused(command("gradient", *arguments(single_source, run, "--set", override)), *words)
    (run / "DONE").unlink()
    assert_refused(command("gradient", *arguments(single_source, run)), "start the train stage again")


def test_a_part_is_what_the_launcher_says() -> None:
    assert part_of_array({}) is None
    assert part_of_array({"STAGE_PART": "2", "STAGE_PARTS": "5"}) == Part(2, 5)
    assert sorted(step for index in range(4) for step in Part(index, 4).share(range(10))) == list(range(10))


@pytest.mark.parametrize(("name", "reason"), [("opsd", "has weight 0"), ("orsd", "follows from a teacher")])
def test_a_policy_gradient_that_is_none_or_a_teachers_is_refused(name: str, reason: str) -> None:
    document = plain_value(compose([Path("configs/methods") / f"{name}.yaml"]))["method"]
    method = Method.from_settings(MethodSettings.model_validate(document), load_vocabulary())
    with pytest.raises(ConfigError, match=f"method '{name}' cannot be measured: its policy gradient {reason}"):
        policy_term(method)
