"""Every program tells how it is used, and does nothing else when it is asked for that."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ROOMS = ("stages", "rubric_discovery", "analysis", "slurm", "benchmarks")
INTERNAL = {"benchmarks.trl_arms"}
"""Started by other programs alone, in an environment of its own."""


def programs() -> list[str]:
    """Modules of the rooms that run as programs."""
    found = []
    for room in ROOMS:
        for file in sorted((REPOSITORY / room).rglob("*.py")):
            if 'if __name__ == "__main__":' in file.read_text(encoding="utf-8"):
                parts = file.relative_to(REPOSITORY).with_suffix("").parts
                found.append(".".join(parts).removesuffix(".__main__"))
    return [name for name in found if name not in INTERNAL]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", programs())
def test_help_says_how_a_program_is_used_and_writes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert "usage: " in printed and len(printed.splitlines()) > 5
    assert not list(tmp_path.iterdir())
