"""Stage programs run as a user runs them: arguments in, exit code and messages out."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
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


def assert_refused(outcome: Outcome, *words: str) -> None:
    """One message that holds every word, no traceback, exit code 2."""
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("error: "), outcome.err
    assert "Traceback" not in outcome.err
    missing = [word for word in words if word not in outcome.err]
    assert not missing, f"{missing} not in: {outcome.err}"
