"""The audit of a judge on a finished run: rules agree with themselves, others do not, and the tables say so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
from scripted_judge_server import ScriptedServer
from stage_commands import Command, SingleSource, assert_refused, in_process

from analysis import AnalysisError
from analysis.figures import audit as figure
from analysis.figures.style import LIGHT, png_bytes
from analysis.formatting import to_latex, to_markdown
from analysis.frames import Frames
from analysis.runs import Experiment, Run, find_experiment
from analysis.tables import audit as table
from rised.records.digest import reproducible_digest
from rised.records.shards import RunReader
from rised.rubrics.settings import RuleJudgeSettings
from stages.audit_judge import audit_judge, spread
from stages.publish import publish
from stages.setup import load_run

pytestmark = pytest.mark.usefixtures("at_the_root")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return in_process(monkeypatch, capsys)


@pytest.fixture
def run(single_source: SingleSource, tmp_path: Path) -> Path:
    folder = tmp_path / "single_source" / "grpo_64" / "seed-0"
    return Path(shutil.copytree(single_source.run, folder))


def test_updates_are_spread_evenly_and_the_last_is_among_them() -> None:
    assert spread(range(1, 61), 5) == [13, 25, 36, 48, 60]
    assert spread([1, 2, 3], 5) == [1, 2, 3] and spread([1, 2, 3], 1) == [3] and spread([], 2) == []


def test_the_rules_agree_with_themselves_and_the_run_stays_as_it_was(single_source: SingleSource, run: Path) -> None:
    before = reproducible_digest(run)
    audit_judge(load_run(single_source.config, "grpo_64", 0), run, "rules", RuleJudgeSettings(), 2)
    reader = RunReader(run / "audit" / "rules")
    assert reader.done and reader.steps() == spread([1, 2, 3], 2)
    tags = reader.scan("judge_audits").to_pandas()
    assert (tags["false_positives"] == 0).all() and (tags["false_negatives"] == 0).all()
    assert set(tags["kappa"].dropna()) == {1.0} and tags["rollouts"].tolist()[0] == 16
    selections = reader.scan("selection_audits").to_pandas()
    assert (selections["overlap"] == 1.0).all() and set(selections["rubrics"]) == {"covered", "all"}
    assert {path: value for path, value in reproducible_digest(run).items() if "audit" not in path} == before


def test_another_judge_is_tagged_once_and_compared_in_tables_and_a_figure(
    single_source: SingleSource, run: Path, command: Command
) -> None:
    config = load_run(single_source.config, "grpo_64", 0)
    with pytest.raises(AnalysisError, match="no judge was compared with the detectors"):
        table.build(Frames(find_experiment(run.parent.parent)))
    audit_judge(config, run, "rules", RuleJudgeSettings(), 5)
    with ScriptedServer() as server:
        server.script(*[{"kind": "ok"}] * 8, *[{"kind": "text", "text": "no"}] * 2)

        def audit(*more: str):  # type: ignore[no-untyped-def]
            keys = {"endpoint": server.url, "reasks": 0, "cache": "null"}
            options = [*(f"rubrics.judge.{key}={value}" for key, value in keys.items()), *more]
            sets = [word for option in options for word in ("--set", option)]
            words = ["--config", single_source.config, "--method", "grpo_64", "--seed", 0, "--run", run]
            return command("audit_judge", *words, "--judge", "qwen3_8b", *sets)

        assert audit("rubrics.judge.concurrency=1").code == 0
        asked = len(server.requests())
        assert audit("rubrics.judge.concurrency=1").code == 0
        assert len(server.requests()) == asked == 24, "what is committed is not tagged again"
    reader = RunReader(run / "audit" / "qwen3_8b")
    assert reader.scan("judge_replies").num_rows == 24
    rows = reader.scan("judge_audits").to_pandas()
    assert set(rows["errors"]) == {2} and set(rows["rollouts"]) == {24} and set(rows["model"]) == {"Qwen/Qwen3-8B"}
    frames = Frames(find_experiment(run.parent.parent))
    by_environment, by_rubric, selections = table.build(frames)
    assert [group.head for group in by_environment.printed.groups] == ["qwen3_8b (Qwen/Qwen3-8B)", "rules (rules)"]
    assert by_environment.printed.groups[0].rows[0][2].text == "8.3%"
    assert by_environment.printed.groups[1].rows[0][3].text == "1.00"
    assert any("agrees by construction" in note for note in by_environment.printed.notes)
    assert len(selections.frame) == 2 * 2 * 3 and selections.printed.groups[1].rows[0][2].text == "100%"
    for built in (by_environment, by_rubric, selections):
        assert to_markdown(built.printed) and to_latex(built.printed)
    drawn = figure.build(frames)
    assert set(drawn.frame["audited"]) == {"rules", "qwen3_8b"} and png_bytes(drawn.draw(LIGHT), 40)[:4] == b"\x89PNG"


def test_several_runs_are_added_up_and_an_unfinished_audit_is_named(single_source: SingleSource, run: Path) -> None:
    audit_judge(load_run(single_source.config, "grpo_64", 0), run, "rules", RuleJudgeSettings(), 5)
    other = Path(shutil.copytree(run, run.parent / "seed-1"))
    runs = [Run("single_source", "grpo_64", seed, path) for seed, path in enumerate((run, other))]
    frames = Frames(Experiment("single_source", run.parent.parent, runs))
    (row,) = table.build(frames)[0].frame.to_dict("records")
    assert (row["rollouts"], row["precision"], row["kappa"]) == (48, 1.0, 1.0) and pd.isna(row["kappa_low"])
    (other / "audit" / "rules" / "DONE").unlink()
    notes = table.build(Frames(frames.experiment))[0].printed.notes
    assert "GRPO-64 seed 1: the audit of rules is unfinished" in notes


def test_audits_are_published_with_their_runs(single_source: SingleSource, run: Path, tmp_path: Path) -> None:
    audit_judge(load_run(single_source.config, "grpo_64", 0), run, "rules", RuleJudgeSettings(), 5)
    publish(run.parent.parent.parent, tmp_path / "dataset")
    before, after = (
        table.build(Frames(find_experiment(root)))[0].frame for root in (run.parent.parent, tmp_path / "dataset")
    )
    assert before.equals(after)


def test_what_cannot_be_audited_is_refused(single_source: SingleSource, run: Path, command: Command) -> None:
    def audit(*more: object, judge: str = "rules"):  # type: ignore[no-untyped-def]
        words = ["--config", single_source.config, "--method", "grpo_64", "--seed", 0, "--run", run, "--judge", judge]
        return command("audit_judge", *words, *more)

    assert_refused(audit(judge="qwen3_7b"), "there is no judge file", "qwen3_8b")
    assert_refused(audit("--set", "learner.learning_rate=0.5"), "learner.learning_rate")
    (run / "DONE").unlink()
    assert_refused(audit(), "start the train stage again")
