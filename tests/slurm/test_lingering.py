"""A judge's server that lingers is there for the next stage that asks it, and ends itself when none comes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launched_stage import Stage, await_that
from scripted_judge_server import command

SITE = """\
poll_s: 0.5
lost_after_s: 3
service_linger_s: 20
stages:
  count: {time_min: 5, cpus_per_task: 1, memory_gb: 0.2}
  judge_server: {time_min: 5, cpus_per_task: 1, memory_gb: 0.5}
"""


@pytest.fixture
def judge(stage: Stage) -> Path:
    """A judge file whose server is a scripted one, started by the real serving stage."""
    path = stage.folder / "judge.yaml"
    path.write_text(
        f"rubrics: {{judge: {{type: llm, model: test/judge, endpoint: {stage.folder}/services/test/endpoint.json}}}}\n"
        f"judge_server:\n  command: {json.dumps(command())}\n"
        "  use_gpus: false\n  bind: 127.0.0.1\n  advertise: 127.0.0.1\n  health_every_s: 1\n"
    )
    return path


def asking(stage: Stage, judge: Path, name: str, *options: str) -> Stage:
    """A stage of its own folder that asks the judge."""
    folder = stage.folder / name
    folder.mkdir()
    site = folder / "site.yaml"
    site.write_text(SITE)
    options = ("--judge", str(judge), *options)
    return dataclasses.replace(stage, folder=folder, site=site, name=name, options=options)


def launch(stage: Stage) -> subprocess.Popen[bytes]:
    return stage.launch("--steps", 3, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def server_jobs(stage: Stage) -> list[str]:
    asked = stage.slurm("squeue", "--noheader", "--states=PD,R,S,CF,CG", "--format=%A %j")
    return [line.split()[0] for line in asked.splitlines() if line.split()[1].startswith("judge_server-test")]


def test_the_next_stage_finds_the_server_of_the_one_before_and_the_last_one_ends_it(stage: Stage, judge: Path) -> None:
    first, second = asking(stage, judge, "first", "--lingers"), asking(stage, judge, "second")
    assert launch(first).wait(240) == 0, first.log.read_text()
    (job,) = server_jobs(stage)
    assert launch(second).wait(240) == 0, second.log.read_text()
    logs = first.log.read_text() + second.log.read_text()
    assert logs.count("judge_server-test: submitted job") == 1 and f"answers (job {job})" in second.log.read_text()
    assert logs.count("nobody needs it any more") == 1
    await_that(lambda: server_jobs(stage) == [], 180)


def test_a_server_that_lingers_in_vain_ends_itself(stage: Stage, judge: Path) -> None:
    only = asking(stage, judge, "only", "--lingers")
    assert launch(only).wait(240) == 0, only.log.read_text()
    assert len(server_jobs(stage)) == 1
    await_that(lambda: server_jobs(stage) == [], 180)
    assert not (stage.folder / "services" / "test" / "endpoint.json").exists()


def test_a_stage_that_fails_takes_its_server_with_it(stage: Stage, judge: Path) -> None:
    failing = asking(stage, judge, "failing", "--lingers")
    launcher = failing.launch("--steps", 3, "--fail-at", 1, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert launcher.wait(240) == 2
    assert "nobody needs it any more" in failing.log.read_text()
    await_that(lambda: server_jobs(stage) == [], 180)
