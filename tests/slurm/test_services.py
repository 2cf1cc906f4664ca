"""A server as a job of its own: started before, shared by, and ended after the stages that need it."""

from __future__ import annotations

import dataclasses
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest
from launched_stage import HERE, Stage, await_that, end

PROGRAM = HERE / "answering_stage.py"


def service_folder(stage: Stage) -> Path:
    return stage.folder / "services" / "judge"


def needing(stage: Stage, name: str, *server: str) -> Stage:
    """A stage of its own folder that needs the server of ``stage``'s folder."""
    folder = stage.folder / name
    folder.mkdir()
    endpoint = service_folder(stage) / "endpoint.json"
    command = shlex.join([sys.executable, str(PROGRAM), "--endpoint", str(endpoint), *server])
    options = ("--needs", "server", str(service_folder(stage)), command)
    return dataclasses.replace(stage, folder=folder, name=name, program=PROGRAM.name, options=options)


def launch(stage: Stage, *arguments: object):
    return stage.launch("--endpoint", stage.options[2] + "/endpoint.json", *arguments)


def server_jobs(stage: Stage) -> list[str]:
    asked = stage.slurm("squeue", "--noheader", "--states=PD,R,S,CF,CG", "--format=%A %j")
    return [line.split()[0] for line in asked.splitlines() if line.split()[1].startswith("server-judge")]


@pytest.fixture(autouse=True)
def no_server_is_left(stage: Stage):
    yield
    await_that(lambda: server_jobs(stage) == [], 180)


def test_a_server_starts_before_and_ends_after_the_stage(stage: Stage) -> None:
    client = needing(stage, "one")
    assert launch(client, "--steps", 3).wait(240) == 0
    log = client.log.read_text()
    assert log.index("server-judge: answers") < log.index("one: submitted job") < log.index("nobody needs it any more")
    assert client.out.read_text() == "3 answers\n"


def test_two_stages_share_one_server_and_the_last_one_ends_it(stage: Stage) -> None:
    first, second = needing(stage, "first"), needing(stage, "second")
    running = [launch(first, "--steps", 5), launch(second, "--steps", 40)]
    assert running[0].wait(240) == 0
    assert len(server_jobs(stage)) == 1, "the second one still needs it"
    assert running[1].wait(240) == 0
    logs = first.log.read_text() + second.log.read_text()
    assert logs.count("server-judge: submitted job") == 1
    assert logs.count("nobody needs it any more") == 1


def test_the_server_ends_when_the_stage_fails(stage: Stage) -> None:
    client = needing(stage, "one")
    assert launch(client, "--steps", 9, "--fail-at", 2).wait(240) == 2
    log = client.log.read_text()
    assert "the client fell asleep" in log and "nobody needs it any more" in log


def test_the_server_ends_when_the_stage_is_interrupted(stage: Stage) -> None:
    client = needing(stage, "one")
    launcher = launch(client, "--steps", 600)
    client.await_steps(2)
    assert end(launcher, signal.SIGINT) == 130


def test_a_server_that_cannot_start_is_one_message_and_nothing_is_submitted(stage: Stage) -> None:
    client = needing(stage, "one", "--broken")
    assert launch(client, "--steps", 3).wait(240) == 2
    log = client.log.read_text()
    assert "the server has no model" in log and "log: " in log
    assert "one: submitted job" not in log


def test_a_server_that_is_lost_is_brought_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    client = needing(stage, "one")
    launcher = launch(client, "--steps", 150)
    client.await_steps(2)
    before = server_jobs(stage)
    stage.slurm("scancel", before[0])
    assert launcher.wait(240) == 0, client.log.read_text()
    log = client.log.read_text()
    assert "the server is gone" in log and log.count("server-judge: submitted job") == 2
    assert client.out.read_text() == "150 answers\n"


def test_a_requeued_server_serves_again_elsewhere(stage: Stage) -> None:
    client = needing(stage, "one")
    launcher = launch(client, "--steps", 120)
    client.await_steps(2)
    stage.slurm("scontrol", "requeue", server_jobs(stage)[0])
    assert launcher.wait(240) == 0, client.log.read_text()
    assert client.log.read_text().count("server-judge: submitted job") == 1
    assert (service_folder(stage) / "attempts.jsonl").read_text().count('"started"') == 2
    assert client.out.read_text() == "120 answers\n"


def test_a_server_outlives_a_killed_launcher_as_long_as_the_stages_job_and_no_longer(stage: Stage) -> None:
    client = needing(stage, "one")
    launcher = launch(client, "--steps", 60)
    client.await_steps(2)
    end(launcher, signal.SIGKILL)
    (hold,) = (service_folder(stage) / "holders").glob("one-*.json")
    age(hold)
    await_that(client.out.exists, 180)
    assert client.out.read_text() == "60 answers\n", "the job's server was there to its last step"
    await_that(lambda: server_jobs(stage) == [], 180)
    text = "".join(log.read_text() for log in service_folder(stage).glob("*/*_log.out"))
    assert "nobody needs it any more" in text


def age(hold: Path) -> None:
    """As if its launcher had renewed it long ago."""
    import os

    old = time.time() - 1000
    os.utime(hold, (old, old))


def test_a_change_of_the_servers_file_while_it_serves_disturbs_nobody(stage: Stage) -> None:
    """The file says how a server would be started now; the one that runs goes on."""
    client = needing(stage, "one")
    launcher = launch(client, "--steps", 60)
    client.await_steps(2)
    PROGRAM.touch()
    assert launcher.wait(240) == 0, client.log.read_text()
    assert client.log.read_text().count("server-judge: submitted job") == 1


def test_stages_of_one_name_in_two_results_folders_hold_the_server_both(stage: Stage) -> None:
    first, second = needing(stage, "first"), needing(stage, "second")
    second.name = first.name
    running = [launch(first, "--steps", 5), launch(second, "--steps", 40)]
    assert running[0].wait(240) == 0
    assert len(server_jobs(stage)) == 1
    assert running[1].wait(240) == 0
    assert "the server is gone" not in second.log.read_text()


def test_a_hang_up_while_the_server_starts_leaves_it(stage: Stage) -> None:
    client = needing(stage, "one", "--slow", "8")
    launcher = launch(client, "--steps", 3)
    await_that(lambda: client.log.exists() and "waiting for job" in client.log.read_text())
    assert end(launcher, signal.SIGHUP) == 129
    assert len(server_jobs(stage)) == 1
    assert launch(client, "--steps", 3).wait(240) == 0
    assert client.log.read_text().count("server-judge: submitted job") == 1


def test_a_result_is_taken_over_without_a_server(stage: Stage) -> None:
    client = needing(stage, "one")
    launcher = launch(client, "--steps", 10)
    client.await_steps(2)
    end(launcher, signal.SIGKILL)
    await_that(lambda: client.out.exists() and client.jobs() == [])
    assert launch(client, "--steps", 10).wait(240) == 0
    log = client.log.read_text()
    assert "finished while nobody watched" in log and log.count("server-judge: submitted job") == 1


def test_a_server_with_other_settings_is_not_shared(stage: Stage) -> None:
    first = needing(stage, "first")
    running = launch(first, "--steps", 100)
    first.await_steps(1)
    second = needing(stage, "second", "--steps", "1")
    assert launch(second, "--steps", 1).wait(240) == 2
    assert "serves with another command or settings" in second.log.read_text()
    assert end(running, signal.SIGINT) == 130
