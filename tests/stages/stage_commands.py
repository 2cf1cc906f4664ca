"""Stage programs run as a user runs them: arguments in, exit code and messages out."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from stages.cli import run_stage


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class SingleSource:
    """Paths of an experiment that trains on one environment of two, and of its finished run."""

    config: Path
    tasks: Path
    warm_start: Path
    run: Path


Command = Callable[..., Outcome]


def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``python -m stages.NAME ARGUMENTS`` without the start of a process: the same main, the same exit."""

    def run(stage: str, *arguments: object) -> Outcome:
        module = importlib.import_module(f"stages.{stage}")
        monkeypatch.setattr(sys, "argv", [f"stages.{stage}", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            run_stage(module.main)
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


def in_subprocess(repository: Path, arguments: Sequence[object], **environment: str) -> Outcome:
    """Runs ``python ARGUMENTS`` in the repository."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=repository,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


class StageProcess:
    """``python -m stages.NAME ARGUMENTS`` as a fork of this process, which has torch imported.

    ``variables`` go over the environment. What it prints is read with :meth:`output`.
    """

    def __init__(self, stage: str, arguments: Sequence[object], folder: Path, **variables: object) -> None:
        self.returncode: int | None = None
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(stage, arguments, folder, variables)

    def _run(self, stage: str, arguments: Sequence[object], folder: Path, variables: Mapping[str, object]) -> None:
        code = 1
        try:
            os.chdir(folder)
            os.environ.update({name: str(value) for name, value in variables.items()})
            for stream in (1, 2):
                os.dup2(self._printed.fileno(), stream)
            sys.stdout, sys.stderr = (open(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
            sys.argv = [f"stages.{stage}", *map(str, arguments)]
            run_stage(importlib.import_module(f"stages.{stage}").main)
            code = 0
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG)) != (0, 0):
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self, most_s: float) -> int:
        """The exit code; a process that has not ended after ``most_s`` seconds is killed and fails the test."""
        deadline = time.monotonic() + most_s
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.send_signal(signal.SIGKILL)
                raise AssertionError(f"stages did not end within {most_s:g} s: {self.output()[-3000:]}")
            time.sleep(0.01)
        return self.returncode or 0

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def output(self) -> str:
        self._printed.seek(0)
        return self._printed.read().decode()


def assert_refused(outcome: Outcome, *words: str) -> None:
    """One message that holds every word, no traceback, exit code 2."""
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("error: "), outcome.err
    assert "Traceback" not in outcome.err
    missing = [word for word in words if word not in outcome.err]
    assert not missing, f"{missing} not in: {outcome.err}"
