"""What may be removed of a run directory, and its removal: leftovers of uncommitted steps, old step folders.

Symbolic links are neither followed nor removed. Which steps are old is decided in ``commit``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from rised.records.faults import kill_point
from rised.records.files import TEMPORARY_PREFIX
from rised.records.layout import MANIFESTS, STEP_FOLDERS, parse_step


def leftovers(run: Path, last: int | None) -> Iterator[Path]:
    """Temporaries, and step folders after ``last``, the last committed step (None: there is none)."""
    yield from sorted(run.glob(f"{TEMPORARY_PREFIX}*"))
    yield from sorted((run / MANIFESTS).glob(f"{TEMPORARY_PREFIX}*"))
    for top in STEP_FOLDERS:
        folder = run / top
        if folder.is_symlink() or not folder.is_dir():
            continue
        for step_folder in sorted([*folder.glob("step-*"), *folder.glob("judge-*/step-*")]):
            number = parse_step(step_folder.name)
            if number is None or not step_folder.is_dir() or step_folder.is_symlink():
                continue
            if last is None or number > last:
                yield step_folder
            else:
                yield from sorted(step_folder.rglob(f"{TEMPORARY_PREFIX}*"))


def numbered(run: Path, top: str) -> list[tuple[int, Path]]:
    """The step folders below a folder of the run, in order."""
    folder = run / top
    if folder.is_symlink() or not folder.is_dir():
        return []
    found = [(parse_step(path.name), path) for path in sorted(folder.iterdir()) if not path.is_symlink()]
    return sorted((number, path) for number, path in found if number is not None)


def remove(run: Path, path: Path) -> str:
    """Remove a file or folder; a judge's or kind's folder that is left empty goes too. Returns the path in the run."""
    kill_point(f"remove {path.name}")
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    parent = path.parent
    while parent != run and not any(parent.iterdir()):
        parent.rmdir()
        parent = parent.parent
    kill_point(f"removed {path.name}")
    return path.relative_to(run).as_posix()
