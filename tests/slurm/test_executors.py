"""The same launcher without Slurm: processes of this machine, or the launcher's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launched_stage import COUNTING, await_that


def launch(repository: Path, site: Path, folder: Path, executor: str, *arguments: object) -> subprocess.Popen[str]:
    out = folder / "out.txt"
    command = [sys.executable, "-m", "slurm.launch", "--executor", executor, "--site", str(site), "--stage", "count"]
    command += ["--name", "count", "--folder", str(folder / "job"), "--output", str(out), "--"]
    command += [sys.executable, str(COUNTING), "--out", str(out), *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=repository, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("executor", ["local", "debug"])
def test_a_stage_runs_and_its_output_is_there(repository: Path, site: Path, tmp_path: Path, executor: str) -> None:
    process = launch(repository, site, tmp_path, executor, "--steps", 3)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, printed
    assert "step 3" in printed
    assert (tmp_path / "out.txt").read_text() == "3 steps\n"


@pytest.mark.parametrize("executor", ["local", "debug"])
def test_a_failure_is_told_with_the_stages_last_words(
    repository: Path, site: Path, tmp_path: Path, executor: str
) -> None:
    process = launch(repository, site, tmp_path, executor, "--steps", 5, "--fail-at", 2)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "the third egg is rotten" in printed and "error: count: " in printed


def test_an_interrupt_of_the_local_executor_leaves_no_process(repository: Path, site: Path, tmp_path: Path) -> None:
    process = launch(repository, site, tmp_path, "local", "--steps", 600)
    await_that(lambda: (tmp_path / "out.txt.steps").exists())
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130

    def left() -> list[str]:
        asked = subprocess.run(["pgrep", "--full", str(tmp_path)], capture_output=True, text=True, check=False)
        return [pid for pid in asked.stdout.split() if int(pid) != os.getpid()]

    await_that(lambda: left() == [], 30)
