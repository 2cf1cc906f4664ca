"""A run whose judge is a language model: what it stores, what its header says, and how it stops and goes on."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from scripted_judge_server import ScriptedServer
from test_ranks import Job

from rised.records.compaction import compact
from rised.records.digest import reproducible_digest
from rised.records.shards import RunReader
from rised.rubrics.base import RubricError
from rised.rubrics.judge_llm import JudgeSession
from stages.setup import load_run, read_tasks
from stages.train import train
from stages.workers import WorkerGroup

TEXT = {"kind": "text", "text": "I would rather not."}


def test_a_run_with_a_judge_model_stores_replies_and_costs_and_goes_on_after_an_outage(
    tiny_experiment: Any, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    tasks = read_tasks(tiny_experiment.tasks)
    with ScriptedServer() as server:

        def run(*overrides: str) -> None:
            judge = (
                f"rubrics.judge={{type: llm, model: test/judge, endpoint: {server.url}, reasks: 0, max_attempts: 1}}"
            )
            settings = [judge, "updates=2", "rubrics.judge.concurrency=1", "rubrics.judge.wait_for_server_s=0.2"]
            config = load_run(tiny_experiment.config, "rised", 0, [*settings, *overrides])
            train(config, tasks, tiny_experiment.warm_start, tmp_path)

        server.script(TEXT, *[{"kind": "ok"}] * 11, *[{"kind": "status", "status": 400}] * 12)
        with pytest.raises(RubricError, match="left 12 of 12 rollouts without an answer"):
            run()
        reader = RunReader(tmp_path)
        assert reader.steps() == [0, 1] and not reader.done
        server.script()
        run("rubrics.judge.deadline_s=30")
    (judge,) = {shard.judge for shard in reader.shards("judge_replies")}
    assert judge == reader.header()["judge"] and judge.startswith("llm:test/judge@main:")
    replies = reader.scan("judge_replies", steps=[1])
    (unreadable,) = [row for row in replies.to_pylist() if row["status"] == "parse_error"]
    assert replies.num_rows == 12 and unreadable["reply"] == TEXT["text"]
    tags = reader.scan("tags", steps=[1], judge=judge).to_pylist()
    assert {tag["status"] for tag in tags if tag["rollout_id"] == unreadable["rollout_id"]} == {"parse_error"}
    metrics = {row["name"]: row["value"] for row in reader.metrics().to_pylist() if row["step"] == 1}
    assert metrics["judge/calls"] == 12 and metrics["judge/rollouts/parse_error"] == 1
    assert 0 < metrics["tags/errors"] < metrics["tags/count"]
    published, full = (
        {entry.kind for entry in compact(tmp_path, tmp_path / name, full_rollouts=name == "full")}
        for name in ("published", "full")
    )
    assert full - published == {"judge_replies"}, "raw texts are published only with the rollouts' own"
    assert "judge/tag" in reader.scan("timings", steps=[2])["name"].to_pylist()


def settings(server: ScriptedServer, **fields: Any) -> list[str]:
    judge = {"type": "llm", "model": "test/judge", "endpoint": server.url, "concurrency": 3} | fields
    return [f"rubrics.judge={json.dumps(judge)}", "validation.tags=true"]


@pytest.mark.parametrize("lag", [0, 1])
def test_a_run_that_streams_ends_in_the_bytes_of_one_that_tags_after_the_batch(
    tiny_experiment: Any, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag: int
) -> None:
    monkeypatch.chdir(repository)
    tasks, digests = read_tasks(tiny_experiment.tasks), []
    with ScriptedServer() as server:
        for streaming in (True, False):
            server.script(*[{"kind": "ok", "after_s": seconds} for seconds in (0.2, 0, 0.1, 0) * 9])
            overrides = [*settings(server, streaming=streaming), "updates=2", f"pipeline.lag={lag}"]
            overrides += ["method.policy_loss.truncated_importance=2.0"]
            config = load_run(tiny_experiment.config, "rised", 0, overrides)
            train(config, tasks, tiny_experiment.warm_start, tmp_path / str(streaming))
            digests.append(reproducible_digest(tmp_path / str(streaming)))
            digests[-1].pop("config.yaml")
    assert digests[0] == digests[1] and any(path.startswith("validation_tags/") for path in digests[0])
    timings = [
        {row["name"]: row["value"] for row in RunReader(tmp_path / name).scan("timings", steps=[1]).to_pylist()}
        for name in ("True", "False")
    ]
    assert timings[0]["judge/tag_after_batch"] > 0 and "judge/tag_after_batch" not in timings[1]
    for parts in timings:
        total = sum(value for name, value in parts.items() if name.startswith("time/") and name != "time/step")
        assert total == pytest.approx(parts["time/step"]) and parts["time/rollout_wait"] > 0


def test_with_a_lag_the_next_episodes_do_not_wait_for_the_last_tags(
    tiny_experiment: Any, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tag of a step comes before the next step's episodes are begun: the judge holds its replies back until then."""
    monkeypatch.chdir(repository)
    begun, waited = threading.Event(), []
    begin, finish, judge = WorkerGroup.begin_collect, WorkerGroup.finish_tags, JudgeSession.judge

    def note_begin(self, plans, settings, judged):
        begin(self, plans, settings, judged)
        if plans[0].step == 2:
            begun.set()

    async def hold_back(self, rollout):
        if rollout.step == 1:
            assert await asyncio.to_thread(begun.wait, 60), "the second step's episodes wait for the first step's tags"
        return await judge(self, rollout)

    def note_tags(self, rollouts):
        waited.append(rollouts[0].step)
        return finish(self, rollouts)

    monkeypatch.setattr(WorkerGroup, "begin_collect", note_begin)
    monkeypatch.setattr(WorkerGroup, "finish_tags", note_tags)
    monkeypatch.setattr(JudgeSession, "judge", hold_back)
    with ScriptedServer() as server:
        server.script()
        overrides = [*settings(server), "validation.tags=false", "validation.every=9", "updates=2", "pipeline.lag=1"]
        overrides += ["method.policy_loss.truncated_importance=2.0"]
        config = load_run(tiny_experiment.config, "rised", 0, overrides)
        train(config, read_tasks(tiny_experiment.tasks), tiny_experiment.warm_start, tmp_path)
    assert waited == [1, 2] and RunReader(tmp_path).steps() == [0, 1, 2]


def test_processes_have_their_own_episodes_judged_and_a_second_run_finds_every_reply(
    tiny_experiment: Any, repository: Path, tmp_path: Path
) -> None:
    with ScriptedServer() as server:
        counts = []
        for name, size in (("pair", 2), ("alone", 1)):
            server.script()
            words = [word for text in settings(server, cache=str(tmp_path / "cache")) for word in ("--set", text)]
            job = Job(tiny_experiment, repository, tmp_path / name, size, 1, *words, "--set", "updates=1")
            assert job.end() == [0] * size
            counts.append(len(server.requests()))
    pair, alone = (RunReader(tmp_path / name) for name in ("pair", "alone"))
    tables = [run.scan("tags", steps=[1], judge=run.header()["judge"]).to_pylist() for run in (pair, alone)]
    verdicts = [[{**row, "cached": None} for row in rows] for rows in tables]
    assert verdicts[0] == verdicts[1] and all(row["cached"] for row in tables[1])
    assert counts[0] > 0
    metrics = {row["name"]: row["value"] for row in alone.scan("metrics", steps=[1]).to_pylist()}
    assert (metrics["judge/calls"], metrics["judge/cached"]) == (0, 12)


def test_a_refused_key_ends_every_process_with_the_servers_words(
    tiny_experiment: Any, repository: Path, tmp_path: Path
) -> None:
    with ScriptedServer() as server:
        server.script(*[{"kind": "status", "status": 401}] * 12)
        words = [word for text in settings(server) for word in ("--set", text)]
        job = Job(tiny_experiment, repository, tmp_path / "run", 2, 1, *words, "--set", "validation.tags=false")
        codes = job.end()
    assert codes[0] == 2 and codes[1] != 0
    assert "answered 401" in job.outputs[0]


def test_a_judge_that_fails_while_a_step_is_validated_ends_the_next_step_whose_episodes_it_judges(
    tiny_experiment: Any, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    with ScriptedServer() as server:
        server.script(*[{"kind": "ok"}] * 12, *[{"kind": "status", "status": 401}] * 12)
        overrides = [*settings(server), "validation.tags=false", "validation.every=1", "pipeline.lag=1"]
        overrides += ["method.policy_loss.truncated_importance=2.0"]
        config = load_run(tiny_experiment.config, "rised", 0, overrides)
        with pytest.raises(RubricError, match="answered 401"):
            train(config, read_tasks(tiny_experiment.tasks), tiny_experiment.warm_start, tmp_path)
    assert RunReader(tmp_path).steps() == [0, 1]
