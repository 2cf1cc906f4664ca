"""From rollouts to a frozen vocabulary, from recorded replies (written by hand) and by the scripted stand-in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from discovery_work import MakeWork, run_steps

from rised.config.loader import read_plain
from rised.records.commit import RunDirectory
from rised.records.schemas import from_table, to_table
from rised.records.shards import read_shard
from rised.rubrics.base import RubricError
from rised.rubrics.vocabulary import load_vocabulary
from rubric_discovery import screen
from rubric_discovery.errors import DiscoveryError
from rubric_discovery.records import Candidate, Member, Observation, Pair, Reply, Screened, read_rows
from rubric_discovery.strong_model import RecordedModel, ScriptedModel
from rubric_discovery.work import Work, perform


def screened(work: Work) -> dict[str, Screened]:
    return {row.rubric_id: row for row in read_rows(work.path("screen.parquet"), Screened)}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_recorded_replies_end_in_a_frozen_vocabulary_with_provenance(make_work: MakeWork) -> None:
    work = make_work()
    record = run_steps(work)
    vocabulary = load_vocabulary(work.path("vocabulary.yaml"))
    assert record["counts"] == {"rubrics": 8, "skills": 2, "version": 1}
    assert record["vocabulary_hash"] == vocabulary.hash == vocabulary.frozen_hash
    assert vocabulary.environments == ("alfworld", "dbbench", "webshop")
    rejected = vocabulary["sends_rejected_action"]
    assert rejected.environments == ("alfworld", "webshop"), "merged across environments"
    assert rejected.provenance == "discovered" and rejected.source is not None
    assert rejected.source.model.startswith("recorded:replies-")
    assert rejected.source.merged_from == ("alfworld:000:4", "webshop:000:1")
    assert rejected.source.kappa == 1.0 and len(rejected.source.observations) == 3
    assert "No discovery." in work.path("vocabulary.yaml").read_text().splitlines()[1]
    for step in ("sample", "propose", "normalise", "merge", "screen", "group", "freeze"):
        record = read_plain(work.path(f"{step}.yaml"))
        assert record["settings_hash"] and record["outputs"] and record["inputs"]


def test_every_screen_drops_what_it_is_there_for_and_says_why(make_work: MakeWork) -> None:
    work = make_work()
    run_steps(work, "sample", "propose", "normalise", "merge", "screen")
    dropped = {name: row.dropped_by for name, row in screened(work).items() if row.dropped_by}
    assert dropped == {
        "acts_without_hesitation": "agreement",
        "buys_an_item": "common",
        "opens_item_s000000835": "leak",
        "puts_treated_object_in_place": "outcome",
    }
    table = work.path("screen.md").read_text()
    assert "dropped (common): shown by 100.0% of 8 rollouts" in table
    assert all(row.reason for row in screened(work).values() if row.dropped_by)
    assert len(table.splitlines()) == 2 + 12, "one line a candidate"


def test_a_behaviour_without_evidence_goes_no_further(make_work: MakeWork) -> None:
    work = make_work()
    run_steps(work, "sample", "propose", "normalise")
    observations = read_rows(work.path("observations.parquet"), Observation)
    invented = [row for row in observations if row.status != "ok"]
    assert {row.behaviour for row in invented} == {"Checks its inventory first.", "Knows the schema."}
    used = {name for row in read_rows(work.path("candidates.parquet"), Candidate) for name in row.observation_ids}
    assert used == {row.observation_id for row in observations if row.status == "ok"}


def test_pairs_are_of_one_task_and_hold_a_success_and_a_failure(make_work: MakeWork) -> None:
    work = make_work()
    run_steps(work, "sample")
    rollouts = {r.rollout_id: r for r in from_table(read_shard(work.path("sampled.parquet"), "rollouts"))}
    pairs = read_rows(work.path("pairs.parquet"), Pair)
    assert len(pairs) == 6 and len({pair.task_id for pair in pairs}) == 6
    for pair in pairs:
        success, failure = rollouts[pair.success_id], rollouts[pair.failure_id]
        assert success.success and not failure.success and success.task_id == failure.task_id == pair.task_id


def test_the_same_discovery_gives_the_same_bytes(make_work: MakeWork) -> None:
    one, two = make_work(folder="one"), make_work(folder="two")
    run_steps(one)
    run_steps(two)
    names = sorted(path.name for path in one.folder.iterdir() if path.is_file())
    assert names == sorted(path.name for path in two.folder.iterdir() if path.is_file())
    assert [name for name in names if one.path(name).read_bytes() != two.path(name).read_bytes()] == []


def test_what_is_done_is_not_done_again_and_a_changed_threshold_asks_nobody_twice(
    make_work: MakeWork, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = make_work()
    run_steps(work)
    capsys.readouterr()
    run_steps(work)
    assert capsys.readouterr().out.count("done already") == 6, "freeze alone looks for edits each time"

    def nobody(self: object) -> None:
        raise AssertionError("a reply that is there was asked for again")

    monkeypatch.setattr(RecordedModel, "opened", lambda self: AskedNobody())
    stricter = make_work("screen.max_prevalence=0.6")
    run_steps(stricter, "sample", "propose", "normalise", "merge", "screen")
    assert screened(stricter)["treats_object_before_placing"].dropped_by == "common"


class AskedNobody:
    async def __aenter__(self):  # type: ignore[no-untyped-def]
        async def complete(*_: object) -> None:
            raise AssertionError("a reply that is there was asked for again")

        return complete

    async def __aexit__(self, *_: object) -> None:
        pass


def test_a_killed_step_goes_on_with_the_replies_it_has(make_work: MakeWork, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, work = make_work(folder="whole"), make_work()
    run_steps(whole, "sample", "propose", "normalise", "merge", "screen")
    run_steps(work, "sample", "propose", "normalise", "merge")
    asked: list[str] = []
    original = RecordedModel.opened

    def stopping(limit: int):  # type: ignore[no-untyped-def]
        @asynccontextmanager
        async def opened(self: RecordedModel):  # type: ignore[no-untyped-def]
            async with original(self) as complete:

                async def counted(request, messages, attempt):  # type: ignore[no-untyped-def]
                    if len(asked) == limit:
                        raise KeyboardInterrupt
                    asked.append(request.subject)
                    return await complete(request, messages, attempt)

                yield counted

        return opened

    monkeypatch.setattr(RecordedModel, "opened", stopping(7))
    with pytest.raises(KeyboardInterrupt):
        perform(screen.STEP, work)
    assert not work.path("screen.yaml").exists()
    journal = work.path(".screen_replies.jsonl")
    journal.write_text(journal.read_text()[:-20])  # the line that was being written
    monkeypatch.setattr(RecordedModel, "opened", stopping(1000))
    perform(screen.STEP, work)
    assert len(asked) == 48 + 1 and not journal.exists(), "only the reply that was cut is asked for again"
    assert work.path("screen.parquet").read_bytes() == whole.path("screen.parquet").read_bytes()


def test_an_edit_by_hand_is_a_diff_that_the_next_freeze_keeps(make_work: MakeWork, tmp_path: Path) -> None:
    work = make_work()
    run_steps(work)
    path = work.path("vocabulary.yaml")
    first = load_vocabulary(path)
    edit(path, "Gives a value in the answer that no query has returned.", "Names a value that no query has returned.")
    with pytest.raises(RubricError, match="was changed after it was frozen.*rubric_discovery.freeze"):
        load_vocabulary(path)
    record = run_steps(work, "freeze")
    frozen = load_vocabulary(path)
    assert (frozen.version, record["edited"]) == (2, ["invents_values_in_answer"])
    assert frozen["invents_values_in_answer"].definition == "Names a value that no query has returned."
    assert frozen["invents_values_in_answer"].source.edited == ("definition",)  # type: ignore[union-attr]
    changed = read_plain(work.path("edits.yaml"))["rubrics"]["changed"]["invents_values_in_answer"]["definition"]
    assert changed["is"] == "Names a value that no query has returned." and changed["was"].startswith("Gives a value")
    assert run_steps(work, "freeze")["counts"]["version"] == 2, "nothing changed, so no new version"
    replies = Path("data/discovery/replies.yaml").read_text()
    assert replies.count(', "treats_object_before_placing"') == 1, "in the skills"
    fewer = tmp_path / "replies.yaml"
    fewer.write_text(replies.replace(', "treats_object_before_placing"', ""))
    record = run_steps(make_work("screen.max_prevalence=0.6", f"strong_model.file={fewer}"))
    third = load_vocabulary(path)
    assert record["counts"]["version"] == 3 and "treats_object_before_placing" not in third
    assert third["invents_values_in_answer"].definition == frozen["invents_values_in_answer"].definition
    assert first.hash != frozen.hash != third.hash


def test_an_entry_added_and_one_removed_by_hand_stay_so(make_work: MakeWork) -> None:
    work = make_work()
    run_steps(work)
    path = work.path("vocabulary.yaml")
    document = read_plain(path)
    document["rubrics"] = [r for r in document["rubrics"] if r["id"] != "repeats_rejected_action"]
    added = dict(document["rubrics"][0]) | {"id": "reads_the_task_again", "provenance": "ours"}
    added |= {"definition": "Repeats the task in its own words before it acts."}
    added.pop("source")
    document["rubrics"].append(added)
    path.write_text(json.dumps(document))
    run_steps(work, "freeze")
    for _ in range(2):
        frozen = load_vocabulary(path)
        assert "repeats_rejected_action" not in frozen and frozen["reads_the_task_again"].source.model == "by hand"  # type: ignore[union-attr]
        assert frozen["reads_the_task_again"].provenance == "ours"
        run_steps(work, "freeze")


def test_an_edit_that_makes_no_vocabulary_is_refused_and_nothing_is_written(make_work: MakeWork) -> None:
    work = make_work()
    run_steps(work)
    path = work.path("vocabulary.yaml")
    path.write_text(path.read_text().replace("  skill: task_grounding\n", "  skill: nowhere\n"))
    edited = path.read_bytes()
    with pytest.raises(RubricError, match="skill 'nowhere' is not defined"):
        run_steps(work, "freeze")
    assert path.read_bytes() == edited
    shutil.rmtree(work.path("drafts"))
    path.write_text(path.read_text().replace("nowhere", "task_grounding"))
    with pytest.raises(DiscoveryError, match="is gone, the draft that"):
        run_steps(work, "freeze")


def test_the_scripted_stand_in_runs_all_steps_on_runs_and_says_what_it_is(make_work: MakeWork, tmp_path: Path) -> None:
    rollouts = from_table(read_shard("data/discovery/rollouts.parquet", "rollouts"))
    runs = []
    for name in ("one", "two"):
        with RunDirectory(tmp_path / name) as run:
            run.recover()
            run.write_header({"config_hash": "", "vocabulary_hash": ""})
            run.write_config("{}")
            with run.step(1, {"rollouts": len(rollouts)}) as record:
                record.write("rollouts", to_table([replace(r, run=name, step=1) for r in rollouts]))
                record.commit()
        runs.append(tmp_path / name)
    plain = make_work("screen.min_tagged=6", "merge.embedding=tfidf", config="quickstart")
    work = Work(plain.settings, plain.folder, tuple(runs))
    record = run_steps(work)
    assert record["counts"]["rubrics"] >= 4
    sampled = from_table(read_shard(work.path("sampled.parquet"), "rollouts"))
    assert len(sampled) == 48 and len({r.rollout_id for r in sampled}) == 48, "runs share ids, the sample does not"
    text = work.path("vocabulary.yaml").read_text()
    assert "scripted:" in text.splitlines()[1] and ScriptedModel(work.settings.strong_model).model_id in text  # type: ignore[arg-type]
    where = {row.rubric_id: row.merged_id for row in read_rows(work.path("members.parquet"), Member)}
    assert where["sends_rejected_action"] == "sends_rejected_action"
    replies = read_rows(work.path("propose_replies.parquet"), Reply)
    assert {reply.model.partition(":")[0] for reply in replies} == {"scripted"}


def test_a_step_is_a_program_with_one_message_for_what_is_wrong(tmp_path: Path, repository: Path) -> None:
    words = ["-m", "rubric_discovery.merge", "--config", "configs/discovery/recorded.yaml", "--out", tmp_path]
    done = subprocess.run([sys.executable, *map(str, words)], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "run `python -m rubric_discovery.normalise` with the same --out first" in done.stderr
