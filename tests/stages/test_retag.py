"""A second pass of the judge: which rollouts, the same tags from a judge by rules, resumed, refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stage_commands import Command, SingleSource, assert_refused, in_process

from rised.records.digest import reproducible_digest
from rised.records.shards import RunReader
from rised.rubrics.judge_rules import RuleJudge
from stages.retag import retag, steps_to_tag
from stages.setup import load_run

pytestmark = pytest.mark.usefixtures("at_the_root")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return in_process(monkeypatch, capsys)


@pytest.fixture
def run(single_source: SingleSource, tmp_path: Path) -> Path:
    return Path(shutil.copytree(single_source.run, tmp_path / "run"))


def test_validations_after_the_baseline_and_the_updates_before_them_are_tagged_again(
    single_source: SingleSource, run: Path
) -> None:
    before = reproducible_digest(run)
    retag(load_run(single_source.config, "grpo_64", 0), run)
    first, second = RunReader(run), RunReader(run / "second_tags")
    assert second.done and second.steps() == [1, 2, 3]
    assert not second.shards("validation_tags", [1]), "the baseline's similarity enters no table"
    for kind, steps in (("tags", [1, 2, 3]), ("validation_tags", [2, 3])):
        assert second.scan(kind).equals(first.scan(kind, steps=steps)), "a judge by rules agrees with itself"
        assert second.scan(kind).num_rows > 0
    assert {path: value for path, value in reproducible_digest(run).items() if "second_tags" not in path} == before


def test_only_the_window_before_each_evaluation_is_tagged_again(single_source: SingleSource) -> None:
    reader = RunReader(single_source.run)
    assert steps_to_tag(reader, 1) == {2: ("rollouts", "validation"), 3: ("rollouts", "validation")}
    assert steps_to_tag(reader, 2)[1] == ("rollouts",)


def test_a_stop_between_two_steps_changes_nothing_and_costs_no_tag_twice(
    single_source: SingleSource, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_run(single_source.config, "grpo_64", 0)
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    retag(config, whole)
    calls = []
    tag = RuleJudge.tag

    def stop_at_the_third(self, rollouts):
        calls.append(rollouts[0].step)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return tag(self, rollouts)

    monkeypatch.setattr(RuleJudge, "tag", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        retag(config, run)
    retag(config, run)
    retag(config, run)
    assert calls == [1, 2, 2, 2, 2, 3, 3], "the step that was not committed is tagged again, no other"
    assert reproducible_digest(run / "second_tags") == reproducible_digest(whole / "second_tags")


def test_runs_that_cannot_be_tagged_twice_are_refused(single_source: SingleSource, run: Path, command: Command) -> None:
    def tag(*more: object):  # type: ignore[no-untyped-def]
        return command(
            "retag", "--config", single_source.config, "--method", "grpo_64", "--seed", 0, "--run", run, *more
        )

    assert_refused(tag("--set", "validation.tags=false"), "validation.tags is false")
    assert_refused(tag("--set", "learner.learning_rate=0.5"), "learner.learning_rate")
    (run / "DONE").unlink()
    assert_refused(tag(), "start the train stage again")
