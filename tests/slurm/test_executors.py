"""The same launcher without Slurm: processes of this machine, or the launcher's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launched_stage import HERE, await_that, heed_interrupts


def ignore_interrupts() -> None:
    """As a shell has what it starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def launch(
    repository: Path,
    site: Path,
    folder: Path,
    executor: str,
    *arguments: object,
    prepare: Callable[[], None] = heed_interrupts,
) -> subprocess.Popen[str]:
    out = folder / "out.txt"
    command = [sys.executable, "-m", "slurm.launch", "--executor", executor, "--site", str(site), "--stage", "count"]
    command += ["--name", "count", "--folder", str(folder / "job"), "--output", str(out), "--"]
    command += [sys.executable, str(HERE / "counting_stage.py"), "--out", str(out), *map(str, arguments)]
    return subprocess.Popen(
        command,
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=prepare,
    )


@pytest.mark.parametrize("executor", ["local", "debug"])
def test_a_stage_runs_and_its_output_is_there(repository: Path, site: Path, tmp_path: Path, executor: str) -> None:
    process = launch(repository, site, tmp_path, executor, "--steps", 3)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 0, printed
    assert "step 3" in printed
    assert (tmp_path / "out.txt").read_text() == "3 steps\n"


@pytest.mark.parametrize("executor", ["local", "debug"])
def test_a_failure_is_told_with_the_stages_last_words(
    repository: Path, site: Path, tmp_path: Path, executor: str
) -> None:
    process = launch(repository, site, tmp_path, executor, "--steps", 5, "--fail-at", 2)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 2
    assert "the third egg is rotten" in printed and "error: count: " in printed


@pytest.mark.parametrize("executor", ["local", "debug"])
def test_a_stage_that_says_why_it_failed_is_followed_by_no_traceback(
    repository: Path, site: Path, tmp_path: Path, executor: str
) -> None:
    process = launch(repository, site, tmp_path, executor, "--steps", "many")
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 2
    assert "invalid int value: 'many'" in printed and "ended with code 2" in printed
    assert "Traceback" not in printed


def test_files_that_cannot_be_used_are_told_in_one_line(repository: Path, site: Path, tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file, no folder")
    process = launch(repository, site, tmp_path, "local", "--steps", 1)
    printed, _ = process.communicate(timeout=240)
    assert (process.returncode, printed) == (2, f"error: File exists: {tmp_path}/job\n")
    (tmp_path / "job").unlink()
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.json").write_text('{"job": ')
    process = launch(repository, site, tmp_path, "local", "--steps", 1)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 2 and printed.startswith(f"error: {tmp_path}/job/job.json is no JSON"), printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(("prepare", "number"), [(heed_interrupts, signal.SIGINT), (ignore_interrupts, signal.SIGTERM)])
def test_the_end_of_the_local_executor_leaves_no_process(
    repository: Path, site: Path, tmp_path: Path, prepare: Callable[[], None], number: signal.Signals
) -> None:
    process = launch(repository, site, tmp_path, "local", "--steps", 600, prepare=prepare)
    await_that(lambda: (tmp_path / "out.txt.steps").exists())
    process.send_signal(number)
    assert process.wait(240) == 130
    await_that(lambda: processes_of(tmp_path) == [], 180)


def processes_of(folder: Path) -> list[int]:
    """Living processes that name the folder."""
    asked = subprocess.run(["pgrep", "--full", str(folder)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in asked.stdout.split() if int(pid) != os.getpid()]


def job_id(folder: Path) -> int:
    return int(json.loads((folder / "job" / "job.json").read_text())["job"])


def test_a_local_job_that_was_killed_is_reported(repository: Path, site: Path, tmp_path: Path) -> None:
    """At the next looks at it: what the site says about jobs that a scheduler has forgotten does not concern it."""
    site.write_text(site.read_text().replace("lost_after_s: 3", "lost_after_s: 100000"))
    process = launch(repository, site, tmp_path, "local", "--steps", 600)
    await_that(lambda: (tmp_path / "out.txt.steps").exists())
    os.kill(job_id(tmp_path), signal.SIGKILL)
    for pid in processes_of(tmp_path):
        if pid != process.pid:
            os.kill(pid, signal.SIGKILL)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 2
    assert "without a result" in printed


def test_a_local_job_whose_first_process_alone_was_killed_goes_on_and_can_be_ended(
    repository: Path, site: Path, tmp_path: Path
) -> None:
    process = launch(repository, site, tmp_path, "local", "--steps", 60)
    await_that(lambda: (tmp_path / "out.txt.steps").exists())
    os.kill(job_id(tmp_path), signal.SIGKILL)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 0, printed
    assert (tmp_path / "out.txt").read_text() == "60 steps\n"
    process = launch(repository, site, tmp_path, "local", "--steps", 600)
    await_that(lambda: len((tmp_path / "out.txt.steps").read_text().split()) > 61)
    os.kill(job_id(tmp_path), signal.SIGKILL)
    process.send_signal(signal.SIGINT)
    assert process.wait(240) == 130
    await_that(lambda: processes_of(tmp_path) == [], 180)


def test_a_local_job_found_again_can_be_cancelled(repository: Path, site: Path, tmp_path: Path) -> None:
    first = launch(repository, site, tmp_path, "local", "--steps", 600)
    await_that(lambda: (tmp_path / "out.txt.steps").exists())
    first.kill()
    first.wait()
    second = launch(repository, site, tmp_path, "local", "--steps", 600)
    assert second.stdout is not None
    assert "attached to job" in second.stdout.readline()
    second.send_signal(signal.SIGINT)
    assert second.wait(240) == 130
    await_that(lambda: processes_of(tmp_path) == [], 180)


def test_another_process_of_the_jobs_number_is_not_taken_for_it(repository: Path, site: Path, tmp_path: Path) -> None:
    """After a reboot numbers come again: the record must not make a stranger the job, nor end him."""
    first = launch(repository, site, tmp_path, "local", "--steps", 600)
    await_that(lambda: (tmp_path / "out.txt.steps").exists())
    job = job_id(tmp_path)
    first.kill()
    first.wait()
    os.kill(job, signal.SIGKILL)
    for pid in processes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)
    stranger = subprocess.Popen(["sleep", "60"])
    record = tmp_path / "job" / "job.json"
    record.write_text(record.read_text().replace(f'"job": "{job}"', f'"job": "{stranger.pid}"'))
    done = int((tmp_path / "out.txt.steps").read_text().split()[-1])
    second = launch(repository, site, tmp_path, "local", "--steps", done + 5)
    printed, _ = second.communicate(timeout=240)
    assert second.returncode == 0, printed
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
