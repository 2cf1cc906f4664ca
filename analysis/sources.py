"""From which records and which published numbers a table or figure was made, noted while it is built.

The reader of runs that the analysis uses notes the kinds of records that are read, ``published`` the files of
``data/paper``. A module's command writes the list beside its files as ``<module>.sources.json``; the report shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis import AnalysisError
from rised.records.shards import RunReader

SUFFIX = ".sources.json"


@dataclass(slots=True)
class Sources:
    """What one module read. ``title``: of the table or figure; ``runs``: how many the experiment has; ``records``:
    kind -> rows read, in the order of the first read; ``published``: file stems of ``data/paper``; ``files``: what was
    written, by name."""

    module: str
    title: str = ""
    experiment: str = ""
    runs: int = 0
    records: dict[str, int] = field(default_factory=dict)
    published: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> Path:
        path = folder / f"{self.module}{SUFFIX}"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path


_ACTIVE: ContextVar[Sources | None] = ContextVar("sources", default=None)


@contextmanager
def noted(module: str) -> Iterator[Sources]:
    """Note what is read inside the block."""
    sources = Sources(module)
    token = _ACTIVE.set(sources)
    try:
        yield sources
    finally:
        _ACTIVE.reset(token)


def note_records(kind: str, rows: int) -> None:
    active = _ACTIVE.get()
    if active is not None and rows:
        active.records[kind] = active.records.get(kind, 0) + rows


def note_published(stem: str) -> None:
    active = _ACTIVE.get()
    if active is not None and stem not in active.published:
        active.published.append(stem)


class NotedReader(RunReader):
    """A reader that notes what is read through it."""

    def scan(self, kind: str, *arguments: Any, **named: Any) -> pa.Table:
        table = super().scan(kind, *arguments, **named)
        note_records(kind, table.num_rows)
        return table


def read_sources(folders: Sequence[Path]) -> list[Sources]:
    """The lists that the modules' commands left in these folders, by module; none of a folder that is not there.

    Raises AnalysisError for a file that is no such list.
    """
    found = []
    for path in sorted(path for folder in folders for path in folder.glob(f"*{SUFFIX}")):
        try:
            found.append(Sources(**json.loads(path.read_text(encoding="utf-8"))))
        except (TypeError, ValueError) as error:
            raise AnalysisError(f"{path} is no list of sources ({error}): make the table or figure again") from None
    return found
