"""Imports go downwards only, as the table of rooms says; the library knows no scheduler and the analysis no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ROOMS = ["records", "statistics", "config", "environments", "models", "rubrics", "rollouts", "methods", "learner"]
"""From the ground up."""
OURS = {"rised", "stages", "analysis", "slurm", "rubric_discovery"}
SCHEDULERS = {"snakemake", "submitit"}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything that a file imports, wherever the statement stands.

    ``from a.b import c`` gives ``a.b`` and ``a.b.c``: c may be a module.
    """
    package = list(path.relative_to(REPOSITORY).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def sources(folder: str) -> list[Path]:
    return sorted((REPOSITORY / folder).rglob("*.py"))


def offenders(folder: str, allowed: Callable[[str], bool]) -> list[str]:
    """Places that import what is not allowed."""
    return [
        f"{path.relative_to(REPOSITORY)}:{line} imports {name}"
        for path in sources(folder)
        for line, name in imports(path)
        if not allowed(name)
    ]


def room_of(name: str) -> str | None:
    """``models`` for ``rised.models.engine``; "" for ``rised`` itself; None for what is not the library's."""
    parts = name.split(".")
    return None if parts[0] != "rised" else parts[1] if len(parts) > 1 else ""


def test_the_reader_of_imports_sees_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "REPOSITORY", tmp_path)
    file = tmp_path / "rised" / "records" / "shards.py"
    file.parent.mkdir(parents=True)
    file.write_text("import os.path\nfrom ..learner import learner\ndef f():\n    from . import files\n")
    assert set(imports(file)) == {
        (1, "os.path"),
        (2, "rised.learner"),
        (2, "rised.learner.learner"),
        (4, "rised.records"),
        (4, "rised.records.files"),
    }


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_itself_and_what_lies_below(room: str) -> None:
    below = set(ROOMS[: ROOMS.index(room) + 1])
    assert sources(f"rised/{room}"), "the room exists"

    def allowed(name: str) -> bool:
        part = room_of(name)
        return part is None or part in below or (part == "" and name == "rised" and room != "records")

    assert offenders(f"rised/{room}", allowed) == []


def test_every_folder_of_the_library_is_a_room_of_the_table() -> None:
    folders = {path.parent.name for path in (REPOSITORY / "rised").glob("*/__init__.py")}
    assert folders == set(ROOMS)


def test_the_ground_floor_imports_nothing_of_ours() -> None:
    assert offenders("rised/records", lambda name: name.split(".")[0] not in OURS or room_of(name) == "records") == []


def test_the_library_knows_neither_the_scheduler_nor_the_stages() -> None:
    forbidden = SCHEDULERS | (OURS - {"rised"})
    assert offenders("rised", lambda name: name.split(".")[0] not in forbidden) == []


def test_stages_know_no_scheduler_and_no_analysis() -> None:
    forbidden = SCHEDULERS | {"analysis", "slurm", "rubric_discovery"}
    assert offenders("stages", lambda name: name.split(".")[0] not in forbidden) == []


def test_the_analysis_reads_records_vocabulary_and_profiles_only() -> None:
    rubrics = tuple(f"rised.rubrics.{name}" for name in ("base", "profiles", "vocabulary"))

    def allowed(name: str) -> bool:
        top = name.split(".")[0]
        if top in (OURS | SCHEDULERS | {"torch", "transformers"}) - {"rised", "analysis"}:
            return False
        return room_of(name) in (None, "records", "statistics", "config") or name.startswith(rubrics)

    assert sources("analysis")
    assert offenders("analysis", allowed) == []


def test_discovery_imports_the_library_only() -> None:
    forbidden = SCHEDULERS | (OURS - {"rised", "rubric_discovery"})
    assert sources("rubric_discovery")
    assert offenders("rubric_discovery", lambda name: name.split(".")[0] not in forbidden) == []


def test_slurm_imports_nothing_of_the_library_beyond_config() -> None:
    assert offenders("slurm", lambda name: room_of(name) in (None, "config")) == []


def test_settings_planners_the_analysis_and_stages_on_stored_runs_load_without_torch() -> None:
    """A configuration is checked, a grid is planned and shards are read with nothing heavy loaded."""
    light = ("settings.py", "grid.py", "experiment.py", "nano_policy.py", "plan.py", "prepare.py")
    light += ("retag.py", "select.py", "audit_judge.py", "compact.py", "publish.py", "verify.py", "track.py")
    files = [path for path in [*sources("rised"), *sources("stages")] if path.name in light]
    files += [REPOSITORY / "rubric_discovery" / "planning.py"]
    files += [path for path in sources("analysis") if path.name != "__main__.py"]
    modules = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in files]
    modules = [name.removesuffix(".__init__") for name in modules]
    assert len(modules) >= 20
    code = f"import importlib, sys\nfor m in {modules!r}: importlib.import_module(m)\n"
    code += "found = {'torch', 'transformers', 'textworld', 'spacy'} & set(sys.modules)\nassert not found, found"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
