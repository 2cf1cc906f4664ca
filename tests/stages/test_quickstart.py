"""The quickstart as a process: whatever ends it, ends everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def started_by(results: Path) -> list[str]:
    """Command lines of living processes that name the results folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(results) in command:
            found.append(command)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_jobs_too(repository: Path, tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "smoke" / "logs" / "snakemake.log"
    arguments = ["-m", "stages.quickstart", "--experiment", "smoke", "--results", str(tmp_path), "--jobs", "1"]
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=repository,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,
    )
    try:
        end_with(process, number, log, tmp_path)
    finally:
        process.kill()


def _heed_interrupts() -> None:
    """A shell makes what it starts in the background ignore SIGINT, these tests among it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def end_with(process: subprocess.Popen[str], number: signal.Signals, log: Path, results: Path) -> None:
    deadline = time.monotonic() + 120
    while not any("stages.prepare" in command for command in started_by(results)):
        assert process.poll() is None and time.monotonic() < deadline, "prepare did not start"
        time.sleep(0.05)
    assert "Task panels" in log.read_text()
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "the same command goes on" in err
    assert started_by(results) == []
