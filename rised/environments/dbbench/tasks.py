"""From settings to task rows: generated records, or the user's AgentBench files."""

from __future__ import annotations

from rised.environments.base import EnvironmentFault, Task
from rised.environments.dbbench.generator import generate
from rised.environments.dbbench.records import Record, content_hash, load_records
from rised.environments.dbbench.settings import DbbenchSettings

NAME = "dbbench"


def prepare_tasks(settings: DbbenchSettings, split: str, count: int, seed: int) -> list[Task]:
    """``count`` tasks of ``split``. Files: the first ``count`` records in file order, as the benchmark's index."""
    if settings.source == "generated":
        return [
            _task(record, split, index, task_seed, digest)
            for index, (record, digest, task_seed) in enumerate(generate(settings.mix, split, count, seed))
        ]
    files = {"train": settings.train_file, "validation": settings.validation_file}
    if split not in files:
        raise EnvironmentFault(f"DBBench has no split {split!r}; use train or validation")
    path = files[split]
    if path is None:
        raise EnvironmentFault(f"DBBench: no file for split {split!r}; set {split}_file in the environment's settings")
    records = load_records(path)
    if count > len(records):
        raise EnvironmentFault(f"{path}: {count} tasks asked for, {len(records)} records there; lower the count")
    return [_task(record, split, index, seed, content_hash(record)) for index, record in enumerate(records[:count])]


def _task(record: Record, split: str, index: int, seed: int, digest: str) -> Task:
    payload = record.model_dump(mode="json", exclude_defaults=True)
    return Task(NAME, split, f"{NAME}-{split}-{index:05d}-{digest[:8]}", seed, payload, digest)
