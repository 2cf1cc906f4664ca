"""A run whose judge is a language model: what it stores, what its header says, and how it stops and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripted_judge_server import ScriptedServer

from rised.records.compaction import compact
from rised.records.shards import RunReader
from rised.rubrics.base import RubricError
from stages.setup import load_run, read_tasks
from stages.train import train

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
    assert replies.num_rows == 12 and replies["reply"][0].as_py() == TEXT["text"]
    assert replies["status"].to_pylist() == ["parse_error", *["ok"] * 11]
    tags = reader.scan("tags", steps=[1], judge=judge).to_pylist()
    assert {tag["status"] for tag in tags if tag["rollout_id"] == replies["rollout_id"][0].as_py()} == {"parse_error"}
    metrics = {row["name"]: row["value"] for row in reader.metrics().to_pylist() if row["step"] == 1}
    assert metrics["judge/calls"] == 12 and metrics["judge/rollouts/parse_error"] == 1
    assert 0 < metrics["tags/errors"] < metrics["tags/count"]
    published, full = (
        {entry.kind for entry in compact(tmp_path, tmp_path / name, full_rollouts=name == "full")}
        for name in ("published", "full")
    )
    assert full - published == {"judge_replies"}, "raw texts are published only with the rollouts' own"
    assert "judge/tag" in reader.scan("timings", steps=[2])["name"].to_pylist()
