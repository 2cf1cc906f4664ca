"""Task panels: AppWorld's own task ids. No text of a task is stored, only its id and a hash of its files."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from rised.environments.appworld.settings import AppworldSettings
from rised.environments.appworld.world import acquire_host, release_host
from rised.environments.base import EnvironmentFault, Task

NAME = "appworld"


def prepare_tasks(settings: AppworldSettings, split: str, count: int, seed: int) -> list[Task]:
    """``count`` tasks of ``split``, drawn by ``seed`` if there are more, in the data set's order."""
    dataset, difficulties = settings.dataset(split)
    host = acquire_host(settings)
    try:
        found = host.list_tasks(dataset, difficulties)
        root = host.installation.root
    finally:
        release_host(host)
    if not 0 < count <= len(found):
        levels = "any" if difficulties is None else " or ".join(map(str, difficulties))
        raise EnvironmentFault(
            f"appworld: {count} {split} tasks asked for, data set {dataset!r} in {root} has {len(found)} of {levels} "
            f"difficulty; set environments.appworld.{split}_tasks to no more"
        )
    chosen = sorted(random.Random(f"appworld-tasks/{split}/{seed}").sample(range(len(found)), count))
    return [
        Task(
            environment=NAME,
            split=split,
            task_id=found[index]["id"],
            seed=seed,
            payload={"task": found[index]["id"], "difficulty": found[index]["difficulty"]},
            content_hash=task_hash(root, found[index]["id"]),
        )
        for index in chosen
    ]


def task_hash(root: Path, task_id: str) -> str:
    """SHA-256 (hex) over the names and contents of the task's files, its ground truth included."""
    folder = root / "data" / "tasks" / task_id
    if not folder.is_dir():
        raise EnvironmentFault(
            f"appworld task {task_id!r} is not in {root} (no folder data/tasks/{task_id}): "
            "prepare the tasks again, or set APPWORLD_ROOT to the data they were prepared from"
        )
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
