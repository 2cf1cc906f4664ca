"""Runs with rubric bundles: what they store, what the policy and the verifier are asked, and how they resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_judge_server import ScriptedServer

import stages.workers
from analysis.frames import Frames
from analysis.runs import find_experiment
from analysis.tables import orsd_bundles
from rised.config import ConfigError
from rised.methods.training_rewards.orsd import OrsdReward
from rised.models.writing import WritingRequest, Written
from rised.records.compaction import compact
from rised.records.digest import reproducible_digest
from rised.records.shards import RunReader
from stages.judge_need import asks_judge, judge_need
from stages.ranks import Layout, Ranks
from stages.setup import load_experiment, load_run, read_tasks
from stages.train import train
from stages.workers import WorkerGroup

LIST = "\n".join(f"{n}. Check the {word} first." for n, word in enumerate("table column value order limit".split(), 1))
LAPTOP = "method.teacher={type: rubric_bundle, writer: {type: vocabulary}, verifier: {type: tags}}"
RANDOM = "method.teacher.choice=random"
"""The tiny policy fails everywhere, and equal rewards leave nothing to align with."""
SHORT = ["method.teacher.writer.max_new_tokens=24", "method.teacher.writer.transcript_characters=1000"]


@pytest.fixture
def run(tiny_experiment: Any, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunReader]:
    """Trains a method of ORSD's family on the tiny experiment, two updates."""
    monkeypatch.chdir(repository)

    def go(out: Path, *overrides: str, method: str = "orsd") -> RunReader:
        settings = [f"methods=[{method}]", "updates=2", "validation.every=2", *overrides]
        config = load_run(tiny_experiment.config, method, 0, settings)
        train(config, read_tasks(tiny_experiment.tasks), tiny_experiment.warm_start, out)
        return RunReader(out)

    return go


def metrics(reader: RunReader, step: int) -> dict[str, float | None]:
    return {row["name"]: row["value"] for row in reader.metrics().to_pylist() if row["step"] == step}


def with_judge(server: ScriptedServer) -> list[str]:
    judge = {"type": "llm", "model": "test/judge", "endpoint": server.url, "max_attempts": 1, "reasks": 0}
    return [f"rubrics.judge={json.dumps(judge)}", "rubrics.tag_training=when_needed", *SHORT]


def test_a_run_with_vocabulary_bundles_stores_every_group_and_is_reproducible(
    run: Callable[..., RunReader], tmp_path: Path
) -> None:
    folder = tmp_path / "tiny" / "orsd"
    reader = run(folder / "seed-0", LAPTOP, RANDOM)
    rows = reader.scan("rubric_bundles", steps=[1]).to_pylist()
    selected = {r["group_id"] for r in reader.scan("selections", steps=[1]).to_pylist() if r["selected"]}
    assert {row["group_id"] for row in rows} == selected and len(selected) == 2
    found = metrics(reader, 1)
    groups = {name: value for name, value in found.items() if name.startswith("bundles/groups/")}
    assert sum(value or 0 for value in groups.values()) == 2 and len(groups) == 6
    assert found["bundles/skipped_groups"] == 2 - sum(row["chosen"] for row in rows)
    assert "method/corrected_token_share" in found and "training_reward/dbbench" in found
    assert "bundles/study" in reader.scan("timings", steps=[1])["name"].to_pylist()
    assert reproducible_digest(run(tmp_path / "again", LAPTOP, RANDOM).path) == reproducible_digest(reader.path)
    tables = [table.printed for table in orsd_bundles.build(Frames(find_experiment(tmp_path / "tiny")))]
    assert [t.name for t in tables] == ["orsd_bundles", "orsd_bundle_example"]
    assert tables[0].groups[0].rows[0][0].text == "ORSD" and tables[0].groups[0].rows[0][1].text == "4"
    compact(reader.path, tmp_path / "published")
    kept = RunReader(tmp_path / "published")
    assert set(reader.columns("rubric_bundles")) - set(kept.columns("rubric_bundles")) == {
        *("criteria", "reason", "reply", "verifier_reply")
    }, "what models wrote may quote an environment"
    assert kept.scan("rubric_bundles", ["alignment"]) == reader.scan("rubric_bundles", ["alignment"])


def test_training_and_bundles_see_the_training_reward_and_records_keep_the_raw_one(
    run: Callable[..., RunReader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DBBench has no formula of its own, and the tiny policy fails: the reward is put in place of it."""
    monkeypatch.setattr(OrsdReward, "reward", lambda self, rollout: float(rollout.rollout_index))
    reader = run(tmp_path / "orsd", LAPTOP, "updates=1")
    found = metrics(reader, 1)
    assert found["training_reward/dbbench"] == 1.5 and found["rollout/reward/dbbench"] == 0.0
    assert set(reader.scan("rollouts", steps=[1])["reward"].to_pylist()) == {0.0}
    assert found["bundles/groups/constant_rewards"] == 0, "bundles are aligned with what training sees"
    assert found["method/selected_groups_zero_variance"] == 0


def test_equal_rewards_leave_the_update_to_grpo_and_are_counted(run: Callable[..., RunReader], tmp_path: Path) -> None:
    reader = run(tmp_path / "orsd", LAPTOP)
    found = metrics(reader, 1)
    assert found["bundles/groups/constant_rewards"] == 2, "the tiny policy fails everywhere"
    assert (found["bundles/credit_share"], found["method/corrected_token_share"]) == (0.0, 0.0)
    assert found["bundles/chosen_alignment"] is None and found["rl/absolute_gap"] is None
    assert {r["status"] for r in reader.scan("rubric_bundles").to_pylist()} == {"not_asked"}


def test_what_the_policy_cannot_write_is_counted_and_the_verifier_is_not_asked(
    run: Callable[..., RunReader], tmp_path: Path
) -> None:
    with ScriptedServer() as server:
        reader = run(tmp_path / "tiny" / "orsd" / "seed-0", RANDOM, *with_judge(server))
        assert not server.requests()
    rows = reader.scan("rubric_bundles").to_pylist()
    assert len(rows) == 2 * 2 * 4 and {row["status"] for row in rows} <= {"cut", "unreadable"}
    assert {row["group_state"] for row in rows} == {"no_bundle"} and any(row["reply"] for row in rows)
    assert metrics(reader, 2)["bundles/groups/no_bundle"] == 2
    (counts, _) = orsd_bundles.build(Frames(find_experiment(tmp_path)))
    assert any(note.startswith("ORSD: of 16 bundles ") for note in counts.printed.notes)
    assert reader.header()["prompt_hashes"].keys() >= {"bundle_writer", "bundle_verifier", "dbbench"}


def test_written_bundles_are_verified_kept_and_correct_the_tokens_of_their_group(
    run: Callable[..., RunReader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[WritingRequest] = []

    def write(engine: object, rendering: object, request: WritingRequest) -> list[Written]:
        """Stands in for a policy that can write; everything else is the run's own."""
        asked.append(request)
        return [Written(LIST, True) for _ in request.seeds]

    monkeypatch.setattr(stages.workers, "write", write)
    with ScriptedServer() as server:
        reader = run(tmp_path / "orsd", RANDOM, *with_judge(server))
        schemas = {r["body"]["response_format"]["json_schema"]["name"] for r in server.requests()}
    assert schemas == {"bundle_scores"}, "no tag was asked for"
    rows = reader.scan("rubric_bundles", steps=[2]).to_pylist()
    assert {row["status"] for row in rows} == {"ok"} and sum(row["chosen"] for row in rows) == 2
    assert rows[0]["scores"] == [[0.0] * 5, [0.25] * 5, [0.5] * 5, [0.75] * 5]
    assert rows[0]["verifier"].startswith("verifier:test/judge@main:bundle_verifier_v1-")
    found = metrics(reader, 2)
    assert (found["method/corrected_token_share"], found["rl/corrected_share"]) == (1.0, 1.0)
    assert (found["rl/absolute_gap"] or 0) > 0 and found["verifier/calls"] == 2, "four equal bundles are one question"
    assert len(asked) == 4 and len({seed for request in asked for seed in request.seeds}) == 16
    assert "verifier/seconds" in reader.scan("timings", steps=[2])["name"].to_pylist()


def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(
    run: Callable[..., RunReader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole", LAPTOP, RANDOM)
    run(tmp_path / "parts", LAPTOP, RANDOM, "updates=1")
    parts = run(tmp_path / "parts", LAPTOP, RANDOM)
    whole_digest, parts_digest = reproducible_digest(whole.path), reproducible_digest(parts.path)
    bundles = {name for name in whole_digest if name.startswith("rubric_bundles")}
    assert len(bundles) == 2 and {name: parts_digest[name] for name in bundles} == {n: whole_digest[n] for n in bundles}


def test_processes_share_the_writing_and_write_what_one_alone_would(
    tiny_experiment: Any, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    config = load_experiment(tiny_experiment.config)
    requests = [WritingRequest("You write.", f"SELECT {i}", (i, i + 50), 12, 0.7, 0.9) for i in range(5)]
    alone = WorkerGroup(config, Ranks(0, Layout())).write(requests)
    shares = [WorkerGroup(config, Ranks(rank, Layout(2)))._write(requests) for rank in range(2)]
    assert [sorted(share) for share in shares] == [[0, 2, 4], [1, 3]]
    assert [(shares[0] | shares[1])[place] for place in range(5)] == alone
    only_plays = Layout(2, 1, rollout_nodes=1)
    assert [len(WorkerGroup(config, Ranks(rank, only_plays))._write(requests)) for rank in range(2)] == [0, 5]


def test_a_verifier_without_a_model_to_ask_is_refused_before_anything_runs(
    run: Callable[..., RunReader], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="`judge` asks the model under rubrics.judge, which is of type 'rules'"):
        run(tmp_path / "orsd")


def test_the_judges_server_is_held_for_methods_that_ask_it_and_for_no_others(repository: Path) -> None:
    from rised.config.overlays import compose

    paper = repository / "configs/experiments/paper_orsd_webshop_qwen3_1p7b.yaml"
    needs = {m: judge_need(paper, m) is not None for m in ("orsd", "orsd_random_rubric", "grpo_64", "gigpo", "sdar")}
    assert needs == {"orsd": True, "orsd_random_rubric": False, "grpo_64": False, "gigpo": False, "sdar": False}
    laptop = compose([repository / "configs/experiments/laptop_orsd.yaml"])
    assert asks_judge(laptop, "orsd") and not asks_judge(laptop, "orsd_offline_rubric")
