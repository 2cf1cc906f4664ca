"""Other selectors and other judges' tags on stored candidates: as in training, resumed, compacted, refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from scripted_judge_server import ScriptedServer
from stage_commands import Command, assert_refused, in_process

from analysis.figures import selector_overlap as figure
from analysis.figures.style import LIGHT, png_bytes
from analysis.formatting import to_latex, to_markdown
from analysis.frames import Frames
from analysis.runs import find_experiment
from analysis.tables import selector_overlap as table
from rised.methods.errors import MethodError
from rised.methods.registry import piece_settings
from rised.methods.settings import load_selectors
from rised.records.compaction import compact
from rised.records.digest import reproducible_digest
from rised.records.errors import RecordError
from rised.records.schemas import from_table
from rised.records.shards import RunReader
from rised.records.types import Reselection, Selection
from rised.rubrics.settings import RuleJudgeSettings
from stages.publish import publish
from stages.retag import retag_by
from stages.select import reselect
from stages.setup import load_run, read_tasks
from stages.train import train

pytestmark = pytest.mark.usefixtures("at_the_root")

FIELDS = ("step", "group_id", "environment", "selected", "order", "similarity", "redundancy", "score")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return in_process(monkeypatch, capsys)


@pytest.fixture(scope="module")
def trained(tiny_experiment: Any, tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A finished run that chose 2 of 3 groups by their profiles in each of 3 updates."""
    out = tmp_path_factory.mktemp("trained") / "tiny" / "rised" / "seed-0"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        tasks = read_tasks(tiny_experiment.tasks)
        train(load_run(tiny_experiment.config, "rised", 0), tasks, tiny_experiment.warm_start, out)
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "tiny" / "rised" / "seed-0"))


def rows(run: Path, selector: str = "", tags: str = "own") -> list[Reselection]:
    found: list[Reselection] = from_table(RunReader(run / "reselected").scan("reselections"))
    return [row for row in found if not selector or (row.selector, row.tags) == (selector, tags)]


def as_selection(row: Selection | Reselection) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in FIELDS)


def test_a_runs_own_selector_chooses_from_stored_rollouts_what_it_chose_in_training(
    tiny_experiment: Any, run: Path
) -> None:
    config = load_run(tiny_experiment.config, "rised", 0)
    before = reproducible_digest(run)
    reselect(config, run, {"as_trained": config.method.selector, **load_selectors(["random"])})
    stored: list[Selection] = from_table(RunReader(run).scan("selections"))
    assert len(stored) == 9 and sum(row.selected for row in stored) == 6
    assert [as_selection(row) for row in rows(run, "as_trained")] == [as_selection(row) for row in stored]
    assert {row.judge for row in rows(run, "as_trained")} == {RunReader(run).header()["judge"]}
    assert {(row.tags, row.judge) for row in rows(run) if row.selector == "random"} == {("", "")}
    assert {path: value for path, value in reproducible_digest(run).items() if "reselected" not in path} == before


def test_a_compacted_run_gives_the_same_selections_as_the_full_one(
    tiny_experiment: Any, run: Path, tmp_path: Path
) -> None:
    config = load_run(tiny_experiment.config, "rised", 0)
    small = tmp_path / "small"
    compact(run, small)
    for folder in (run, small):
        reselect(config, folder, load_selectors())
    full, compacted = (RunReader(folder / "reselected").scan("reselections") for folder in (run, small))
    assert full.equals(compacted) and full.num_rows == 9 * 9


def test_what_is_committed_stays_and_other_selectors_begin_anew(
    tiny_experiment: Any, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_run(tiny_experiment.config, "rised", 0)
    reselect(config, run, load_selectors(["random", "herding"]))
    whole = reproducible_digest(run / "reselected")
    folder = run / "reselected"
    (folder / "manifests" / "step-000003.json").unlink()
    (folder / "DONE").unlink()
    capsys.readouterr()
    reselect(config, run, load_selectors(["random", "herding"]))
    assert capsys.readouterr().out.splitlines() == ["update 3: 2 selections"]
    assert reproducible_digest(folder) == whole
    reselect(config, run, load_selectors(["profile"]))
    assert "chosen anew" in capsys.readouterr().out and {row.selector for row in rows(run)} == {"profile"}


def test_another_judges_tags_select_beside_the_runs_own_and_their_overlap_is_shown(
    tiny_experiment: Any, run: Path, tmp_path: Path, command: Command
) -> None:
    config = load_run(tiny_experiment.config, "rised", 0)
    retag_by(config, run, "rules", RuleJudgeSettings())
    words = ["--config", tiny_experiment.config, "--method", "rised", "--seed", 0, "--run", run]
    with ScriptedServer() as server:
        options = [f"rubrics.judge.endpoint={server.url}", "rubrics.judge.cache=null"]
        sets = [word for option in options for word in ("--set", option)]
        assert command("retag", *words, "--judge", "qwen3_8b", *sets).code == 0
        asked = len(server.requests())
        assert command("retag", *words, "--judge", "qwen3_8b", *sets).code == 0
        assert asked == len(server.requests()) == 36, "what is committed is not tagged again"
    done = command("select", *words, "--selectors", "profile", "random", "--judges", "rules", "qwen3_8b")
    assert done.code == 0, done
    by_rules, own = rows(run, "profile", "rules"), rows(run, "profile")
    assert [as_selection(row) for row in by_rules] == [as_selection(row) for row in own], "the same judge"
    other = rows(run, "profile", "qwen3_8b")
    assert {row.judge.split(":")[1] for row in other} == {"Qwen/Qwen3-8B@main"} and len(other) == 9
    publish(tmp_path / "tiny", tmp_path / "dataset")
    for root in (tmp_path / "tiny", tmp_path / "dataset"):
        frames = Frames(find_experiment(root))
        selectors, judges = table.build(frames)
        assert [row[0].text for row in selectors.printed.groups[0].rows] == ["profile"]
        assert [group.head for group in judges.printed.groups] == [
            "By the run's own tags and by qwen3_8b",
            "By the run's own tags and by rules",
            "By qwen3_8b and by rules",
        ]
        assert judges.printed.groups[1].rows[0][2].text == "100% (56%)"
        assert all(to_markdown(built.printed) and to_latex(built.printed) for built in (selectors, judges))
        drawn = figure.build(frames)
        assert len(drawn.frame) == 2 * 4 and png_bytes(drawn.draw(LIGHT), 40)[:4] == b"\x89PNG"


def test_updates_without_tags_are_passed_over_by_selectors_that_read_them(tiny_experiment: Any, run: Path) -> None:
    config = load_run(tiny_experiment.config, "rised", 0)
    retag_by(config, run, "rules", RuleJudgeSettings())
    judged = run / "retags" / "rules"
    (shard,) = RunReader(judged).shards("tags", [2])
    kept = RunReader.scan

    def without_step_2(self, kind, *arguments, **options):  # type: ignore[no-untyped-def]
        found = kept(self, kind, *arguments, **options)
        return found.slice(0, 0) if self.path == judged and options.get("steps") == [2] else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunReader, "scan", without_step_2)
        reselect(config, run, load_selectors(["profile"]), ["rules"])
    found = RunReader(run / "reselected").scan("reselections")
    steps = {name: set(found.filter(pc.equal(found["tags"], name))["step"].to_pylist()) for name in ("own", "rules")}
    assert steps == {"own": {1, 2, 3}, "rules": {1, 3}} and shard.row_count


def test_what_cannot_be_chosen_or_tagged_again_is_refused(
    tiny_experiment: Any, run: Path, tmp_path: Path, command: Command
) -> None:
    words = ["--config", tiny_experiment.config, "--method", "rised", "--seed", 0]
    assert_refused(command("select", *words, "--run", run, "--selectors", "herdin"), "no selector 'herdin'", "herding")
    assert_refused(command("select", *words, "--run", run, "--judges", "qwen3_8b"), "has not tagged this run", "retag")
    assert_refused(command("select", *words, "--run", run, "--judges", "own"), "'own'", "always there")
    config = load_run(tiny_experiment.config, "rised", 0)
    with pytest.raises(MethodError, match="selector `all` trains on every candidate, but 2 of 3"):
        reselect(config, run, {"everything": piece_settings("selector", {"type": "all"})})
    small = tmp_path / "small"
    compact(run, small)
    with pytest.raises(RecordError, match="compacted without texts: the judge rules reads what was said"):
        retag_by(config, small, "rules", RuleJudgeSettings())
    assert_refused(command("retag", *words, "--run", run, "--judge", "qwen3_7b"), "there is no judge file", "qwen3_8b")
    retag_by(config, run, "rules", RuleJudgeSettings())
    header = run / "retags" / "rules" / "manifest.json"
    header.write_text(header.read_text().replace('"judge": "rules', '"judge": "rules-of-yesterday'))
    assert_refused(
        command("retag", *words, "--run", run, "--judge", "rules"), "rules-of-yesterday", "Remove the folder"
    )
    (run / "DONE").unlink()
    assert_refused(command("select", *words, "--run", run), "start the train stage again")


def test_a_run_that_was_compacted_with_its_texts_can_be_tagged_again(
    tiny_experiment: Any, run: Path, tmp_path: Path
) -> None:
    config = load_run(tiny_experiment.config, "rised", 0)
    whole = tmp_path / "whole"
    compact(run, whole, full_rollouts=True)
    for folder in (run, whole):
        retag_by(config, folder, "rules", RuleJudgeSettings())
    first, second = (RunReader(folder / "retags" / "rules") for folder in (run, whole))
    assert first.steps() == second.steps() == [1, 2, 3] and first.scan("tags").equals(second.scan("tags"))


def test_tags_of_the_same_judge_again_are_the_runs_own(tiny_experiment: Any, run: Path) -> None:
    before = reproducible_digest(run)
    retag_by(load_run(tiny_experiment.config, "rised", 0), run, "rules", RuleJudgeSettings())
    again = RunReader(run / "retags" / "rules")
    assert again.done and again.scan("tags").equals(RunReader(run).scan("tags"))
    assert not again.shards("validation_tags"), "the run's validation is not tagged either"
    assert {path: value for path, value in reproducible_digest(run).items() if "retags" not in path} == before
