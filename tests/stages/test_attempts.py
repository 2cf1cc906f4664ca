"""SIGUSR2 ends a run after its step, and the log of attempts tells orderly ends from torn ones."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from stage_commands import StageProcess

from rised.records.digest import reproducible_digest
from stages import attempts
from stages.attempts import STOPPED, Attempts, read_attempts


def start(tiny_experiment, repository: Path, out: Path) -> StageProcess:
    words = ["--config", tiny_experiment.config, "--method", "rised", "--seed", "0", "--tasks", tiny_experiment.tasks]
    return StageProcess("train", [*words, "--warm-start", tiny_experiment.warm_start, "--out", out], repository)


def await_file(path: Path, process: StageProcess) -> None:
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
    assert "stopped after step 1 as asked" in process.output()
    assert start(tiny_experiment, repository, run).wait(120) == 0
    assert reproducible_digest(run) == reproducible_digest(whole)
    assert read_attempts(run) == Attempts(starts=2, repeated_steps=0)


def test_a_kill_in_a_step_counts_as_one_repeated(tiny_experiment, repository: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(tiny_experiment, repository, run)
    await_file(run / attempts.FILE, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait(120) == -signal.SIGKILL
    assert start(tiny_experiment, repository, run).wait(120) == 0
    assert read_attempts(run) == Attempts(starts=2, repeated_steps=1)


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / attempts.FILE).write_text('{"event": "started", "next_step": 0}\n{"event": "sta')
    assert read_attempts(tmp_path) == Attempts(starts=1, repeated_steps=0)
