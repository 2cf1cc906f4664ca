"""Every program tells how it is used, and does nothing else when it is asked for that."""

from __future__ import annotations

import argparse
import re
import runpy
import sys
from pathlib import Path

import pytest

from rised.config.paths import add_named_path, required

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


def test_every_program_takes_the_experiment_file_and_folders_by_name() -> None:
    """Positions are for verbs, Snakemake targets and lists of documents."""
    position = re.compile(r'add_argument\(\s*"(?!-)(\w+)"')
    found = {
        name
        for room in ROOMS
        for file in (REPOSITORY / room).rglob("*.py")
        for name in position.findall(file.read_text(encoding="utf-8"))
    }
    assert found <= {"what", "targets", "documents", "document", "command", "plan"}, found


def test_a_path_by_its_place_still_does_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_named_path(parser, "config", "experiment file")
    assert required(parser, parser.parse_args(["--config", "a.yaml"]), "config") == Path("a.yaml")
    assert capsys.readouterr().err == ""
    assert required(parser, parser.parse_args(["a.yaml"]), "config") == Path("a.yaml")
    assert "write --config a.yaml" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        required(parser, parser.parse_args([]), "config")
    assert "required: --config" in capsys.readouterr().err
