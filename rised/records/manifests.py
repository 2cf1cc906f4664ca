"""A step's manifest: which shards and state files belong to it, with sizes and hashes.

Renaming this one file into place is what makes a step visible, so that readers see all of a step or nothing.
Hashes of timings stand apart under ``timings``: everything else in a manifest is byte-reproducible.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rised.records.errors import RecordError
from rised.records.files import sha256_of
from rised.records.layout import MANIFESTS, TIMINGS, parse_step, step_name

FORMAT = "rised.manifest"
VERSION = 1


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a step, its path relative to the run directory."""

    path: str
    byte_count: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ShardEntry(FileEntry):
    """A Parquet shard of a step. ``judge`` is the exact judge id of tags, else None."""

    kind: str
    row_count: int
    judge: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of one step. ``expected`` is the number of rows that the step's plan stated; ``extra`` is the caller's."""

    step: int
    shards: tuple[ShardEntry, ...]
    state: tuple[FileEntry, ...] = ()
    expected: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Shards and state files."""
        return (*self.shards, *self.state)

    def shards_of(self, kind: str) -> list[ShardEntry]:
        return [shard for shard in self.shards if shard.kind == kind]

    def to_bytes(self) -> bytes:
        """Canonical JSON text; equal manifests give equal bytes."""
        timed = [asdict(shard) for shard in self.shards if shard.kind == TIMINGS]
        return json_bytes(
            {
                "format": FORMAT,
                "version": VERSION,
                "step": self.step,
                "shards": sorted((asdict(s) for s in self.shards if s.kind != TIMINGS), key=lambda s: s["path"]),
                "state": sorted((asdict(entry) for entry in self.state), key=lambda s: s["path"]),
                "expected": dict(self.expected),
                "extra": dict(self.extra),
                TIMINGS: sorted(timed, key=lambda s: s["path"]),
            },
            f"the manifest of step {self.step}",
        )


def json_bytes(value: Any, what: str) -> bytes:
    """Indented JSON with sorted keys and a final line break."""
    try:
        return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise RecordError(f"{what} cannot be stored as JSON: {error}") from None


def read_json(path: Path, format_name: str, version: int) -> dict[str, Any]:
    """Read a JSON file of ours and check its format and version."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} is not readable JSON ({error}); restore it or remove the step it names") from None
    found = (document.get("format"), document.get("version")) if isinstance(document, dict) else (None, None)
    if found != (format_name, version):
        raise RecordError(
            f"{path} has format {found[0]!r} version {found[1]!r}, this code reads {format_name!r} version {version}. "
            "Read it with the version of the code that wrote it."
        )
    return document


def manifest_path(run_dir: Path, step: int) -> Path:
    return run_dir / MANIFESTS / f"{step_name(step)}.json"


def read_manifest(path: Path) -> Manifest:
    """Manifest of a committed step; :class:`RecordError` if it is absent, damaged or of another version."""
    document = read_json(path, FORMAT, VERSION)
    try:
        return Manifest(
            step=document["step"],
            shards=tuple(ShardEntry(**entry) for entry in document["shards"] + document[TIMINGS]),
            state=tuple(FileEntry(**entry) for entry in document["state"]),
            expected=document["expected"],
            extra=document["extra"],
        )
    except (KeyError, TypeError) as error:
        raise RecordError(f"{path} lacks a field of a manifest: {error}") from None


def committed_steps(run_dir: Path) -> list[int]:
    """Steps that have a manifest, in ascending order."""
    folder = run_dir / MANIFESTS
    if not folder.is_dir():
        return []
    steps = (parse_step(path.name) for path in folder.iterdir() if path.suffix == ".json")
    return sorted(step for step in steps if step is not None)


def check_size(run_dir: Path, entry: FileEntry, owner: str) -> Path:
    """Path of a file that ``owner`` names, after checking that it is there with the size it had."""
    path = run_dir / entry.path
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise RecordError(f"{path} is missing, but {owner} names it. Restore it from a copy of the run.") from None
    if size != entry.byte_count:
        raise RecordError(
            f"{path} has {size:,} bytes, {owner} says {entry.byte_count:,}: it was truncated or overwritten. "
            "Restore it from a copy of the run."
        )
    return path


def verify(run_dir: Path, entry: FileEntry, owner: str) -> None:
    """Check that a file is there, with the size and hash that ``owner`` recorded."""
    path = check_size(run_dir, entry, owner)
    if sha256_of(path) != entry.sha256:
        raise RecordError(
            f"{path} does not have the content that {owner} recorded (SHA-256 differs). "
            "Restore it from a copy of the run."
        )
