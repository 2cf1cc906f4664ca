"""Two runs that a judge model tags share its server, which is a job of its own for just as long as they need it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launched_stage import await_that, heed_interrupts
from scripted_judge_server import command

from rised.records.shards import RunReader
from slurm.one_host import OneHostCluster

SITE = """\
poll_s: 0.5
lost_after_s: 5
stages:
  train: {time_min: 10, cpus_per_task: 1, memory_gb: 2}
  judge_server: {time_min: 10, cpus_per_task: 1, memory_gb: 1, gpus_per_node: 2}
"""
MOST_S = 300


@pytest.fixture
def judged(tiny_experiment, tmp_path: Path) -> Path:
    """The tiny experiment with a judge model behind a real HTTP server, two replicas of one GPU each."""
    path = tmp_path / "tiny.yaml"
    path.write_text(
        f"extends: [{tiny_experiment.config}]\n"
        "updates: 2\n"
        "rubrics:\n"
        "  tag_training: when_needed\n"
        f"  judge: {{type: llm, model: test/judge, endpoint: {tmp_path}/services/test/endpoint.json}}\n"
        "judge_server:\n"
        f"  command: {json.dumps(command())}\n"
        "  replicas: 2\n  bind: 127.0.0.1\n  advertise: 127.0.0.1\n  health_every_s: 1\n"
    )
    return path


def launch(tiny_experiment, repository: Path, cluster: OneHostCluster, judged: Path, method: str, seed: int):
    folder = judged.parent / f"{method}-{seed}"
    folder.mkdir()
    site = judged.parent / "site.yaml"
    site.write_text(SITE)
    words = ["--site", site, "--stage", "train", "--name", f"tiny-{method}-{seed}", "--folder", folder / "job"]
    words += ["--resumes", "--experiment", judged, "--judge-of", method, "--output", folder / "run" / "DONE", "--"]
    words += [sys.executable, "-m", "stages.train", "--config", judged, "--tasks", tiny_experiment.tasks]
    words += ["--warm-start", tiny_experiment.warm_start, "--method", method, "--seed", seed, "--out", folder / "run"]
    with (folder / "launcher.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "slurm.launch", *map(str, words)],
            cwd=repository,
            env=os.environ | cluster.variables | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=heed_interrupts,
        )


def test_two_runs_share_the_judges_job_and_a_method_without_tags_needs_none(
    tiny_experiment, repository: Path, cluster: OneHostCluster, judged: Path
) -> None:
    runs = [("rised", 0), ("rised", 1), ("grpo_64", 0)]
    launchers = [launch(tiny_experiment, repository, cluster, judged, *run) for run in runs]
    logs = {run: judged.parent / "-".join(map(str, run)) / "launcher.log" for run in runs}
    for run, launcher in zip(runs, launchers, strict=True):
        assert launcher.wait(MOST_S) == 0, logs[run].read_text()
    texts = {run: log.read_text() for run, log in logs.items()}
    together = texts["rised", 0] + texts["rised", 1]
    assert together.count("judge_server-test: submitted job") == 1
    assert together.count("judge_server-test: answers") == 2
    assert together.count("nobody needs it any more") == 1
    assert "judge_server" not in texts["grpo_64", 0]
    for seed in (0, 1):
        reader = RunReader(judged.parent / f"rised-{seed}" / "run")
        judge = reader.header()["judge"]
        assert judge.startswith("llm:test/judge")
        assert reader.scan("tags", steps=[1], judge=judge).num_rows > 0
    assert not list(RunReader(judged.parent / "grpo_64-0" / "run").shards("tags"))

    def left() -> str:
        asked = ["squeue", "--noheader", "--states=PD,R,CG"]
        return subprocess.run(asked, env=os.environ | cluster.variables, capture_output=True, text=True).stdout

    await_that(lambda: left() == "", 180, left)
    assert not (judged.parent / "services" / "test" / "endpoint.json").exists()
