"""SIGUSR2 ends a run after its step, and the log of attempts tells orderly ends from torn ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rised.records.digest import reproducible_digest
from stages import attempts
from stages.attempts import STOPPED, Attempts, read_attempts


def start(tiny_experiment, repository: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stages.train", "--config", str(tiny_experiment.config), "--method", "rised"]
    command += ["--seed", "0", "--tasks", str(tiny_experiment.tasks), "--warm-start", str(tiny_experiment.warm_start)]
    return subprocess.Popen(
        [*command, "--out", str(out)],
        cwd=repository,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def await_file(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)


def test_usr2_ends_after_the_step_and_nothing_is_repeated(tiny_experiment, repository: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert start(tiny_experiment, repository, whole).wait(120) == 0
    run = tmp_path / "stopped"
    process = start(tiny_experiment, repository, run)
    await_file(run / attempts.FILE, process)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(120) == STOPPED
    assert b"stopped after step 1 as asked" in process.communicate()[0]
    assert start(tiny_experiment, repository, run).wait(120) == 0
    assert reproducible_digest(run) == reproducible_digest(whole)
    assert read_attempts(run) == Attempts(starts=2, repeated_steps=0)


def test_a_kill_in_a_step_counts_as_one_repeated(tiny_experiment, repository: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(tiny_experiment, repository, run)
    await_file(run / attempts.FILE, process)
    process.kill()
    process.wait()
    assert start(tiny_experiment, repository, run).wait(120) == 0
    assert read_attempts(run) == Attempts(starts=2, repeated_steps=1)


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / attempts.FILE).write_text('{"event": "started", "next_step": 0}\n{"event": "sta')
    assert read_attempts(tmp_path) == Attempts(starts=1, repeated_steps=0)
