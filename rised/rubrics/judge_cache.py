"""Replies of a judge model, kept by the content of what was asked, in a folder that many processes share.

Entries are in Parquet files that are written aside, renamed and never changed: a killed writer leaves at most a hidden
leftover, and no lock is needed, which network file systems would not keep [ours]. A batch adds one file; when there
are many small ones, :meth:`JudgeCache.tidy` puts them into one. What a reader finds missing it merely asks for.

Only the fingerprints of the keys (8 bytes each) are held in memory. What goes into a key is ``judge_llm``'s to say.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rised.records.checksum import check_checksum, with_checksum
from rised.records.errors import RecordError
from rised.records.files import TEMPORARY_PREFIX, write_bytes
from rised.rubrics.judge_client import Completion

log = logging.getLogger(__name__)
KEY_BYTES = 32
FLUSH_ROWS, FLUSH_S = 256, 60.0
"""New replies that are written at the latest after so many, or so long: what a killed process loses."""
ROWS_PER_GROUP = 1024
GROUPS_IN_MEMORY = 16
SMALL_BYTES, FULL_BYTES = 8 << 20, 16 << 20
"""Size on disk (replies shrink to about a tenth) of a file that can be put together, and of the whole."""
MERGE_AT = 64
"""Small files that are left alone."""
LEFTOVER_S = 86_400.0
"""Age at which a hidden file is nobody's any more."""
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(KEY_BYTES), nullable=False),
        pa.field("reply", pa.large_string(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("completion_tokens", pa.int64()),
    ],
    metadata={b"rised.judge_cache": b"1"},
)
_UNREADABLE = (OSError, pa.ArrowException, RecordError)


@dataclass(frozen=True, slots=True)
class _Part:
    """One file. ``fingerprints_N``: the first 8 bytes of each key, ascending as the rows are."""

    path: Path
    fingerprints_N: np.ndarray


class JudgeCache:
    """The replies of one judge. For one thread; any number of processes may have the same folder.

    What is found is what was there at the last :meth:`refresh`, so that a batch's hits do not depend on timing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts: dict[str, _Part] = {}
        self._foreign: set[str] = set()
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._new: dict[bytes, Completion] = {}
        self._flushed = time.monotonic()

    def refresh(self) -> None:
        """Take notice of what other processes wrote and put together."""
        names = self._names()
        for name in [name for name in self._parts if name not in names]:
            del self._parts[name]
        for name in sorted(names - self._parts.keys() - self._foreign):
            try:
                table = _read(self.folder / name, ["key"])
            except FileNotFoundError:
                continue  # put together with others meanwhile
            except _UNREADABLE as error:
                log.warning("the judge's cache passes over %s: %s", self.folder / name, error)
                self._foreign.add(name)
                continue
            self._parts[name] = _Part(self.folder / name, _fingerprints(table["key"]))

    def get(self, key: bytes) -> Completion | None:
        """The reply kept under a key."""
        try:
            return self._find(key)
        except _UNREADABLE:  # its file was put together with others
            self.refresh()
        with suppress(*_UNREADABLE):
            return self._find(key)
        return None

    def put(self, key: bytes, completion: Completion) -> None:
        """Keep a reply; it is on disk after the next :meth:`flush` at the latest."""
        self._new[key] = completion
        if len(self._new) >= FLUSH_ROWS or time.monotonic() - self._flushed >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what is new. A failure is logged: a run can do without its cache."""
        self._flushed = time.monotonic()
        if not self._new:
            return
        rows = [
            {
                "key": key,
                "reply": kept.text,
                "finish_reason": kept.finish_reason,
                "prompt_tokens": kept.prompt_tokens,
                "completion_tokens": kept.completion_tokens,
            }
            for key, kept in sorted(self._new.items())
        ]
        self._new = {}
        try:
            self._write(pa.Table.from_pylist(rows, schema=SCHEMA))
        except RecordError as error:
            log.warning("%d replies of the judge are not kept in its cache: %s", len(rows), error)

    def tidy(self) -> None:
        """Put small files together if there are many. Processes that do so at once leave duplicates, never a gap."""
        sizes: dict[Path, int] = {}
        with suppress(OSError):
            for entry in os.scandir(self.folder):
                status = entry.stat()
                if entry.name.startswith(TEMPORARY_PREFIX) and time.time() - status.st_mtime > LEFTOVER_S:
                    Path(entry.path).unlink(missing_ok=True)
                elif _is_part(entry.name) and entry.name not in self._foreign and status.st_size < SMALL_BYTES:
                    sizes[Path(entry.path)] = status.st_size
        if len(sizes) < MERGE_AT:
            return
        chosen, total = [], 0
        for path in sorted(sizes, key=lambda path: (sizes[path], path.name)):
            if total + sizes[path] > FULL_BYTES:
                break
            chosen.append(path)
            total += sizes[path]
        try:
            together = pa.concat_tables([_read(path) for path in chosen]).sort_by("key").combine_chunks()
            keys_N = np.array(together["key"].to_pylist(), dtype=object)
            first_N = np.concatenate([[True], keys_N[1:] != keys_N[:-1]])
            self._write(together.filter(pa.array(first_N)))
            for path in chosen:
                path.unlink(missing_ok=True)
        except _UNREADABLE as error:
            log.info("the judge's cache stays as it is, somebody else may be tidying: %s", error)

    def _names(self) -> set[str]:
        try:
            return {name for name in os.listdir(self.folder) if _is_part(name)}
        except OSError:
            return set()

    def _find(self, key: bytes) -> Completion | None:
        fingerprint = np.frombuffer(key, dtype=">u8", count=1).astype(np.uint64)[0]
        for part in self._parts.values():
            row = int(np.searchsorted(part.fingerprints_N, fingerprint))
            while row < len(part.fingerprints_N) and part.fingerprints_N[row] == fingerprint:
                found = self._row(part, row)
                if found["key"] == key:
                    return Completion(
                        found["reply"], found["finish_reason"], found["prompt_tokens"], found["completion_tokens"]
                    )
                row += 1
        return None

    def _row(self, part: _Part, row: int) -> dict[str, Any]:
        place = (part.path.name, row // ROWS_PER_GROUP)
        if place not in self._groups:
            with pq.ParquetFile(part.path) as file:
                self._groups[place] = file.read_row_group(place[1])
            while len(self._groups) > GROUPS_IN_MEMORY:
                self._groups.popitem(last=False)
        self._groups.move_to_end(place)
        return self._groups[place].slice(row % ROWS_PER_GROUP, 1).to_pylist()[0]

    def _write(self, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", row_group_size=ROWS_PER_GROUP)
        data = with_checksum(memoryview(sink.getvalue()))
        write_bytes(self.folder / f"part-{uuid.uuid4().hex}.parquet", data)


def _is_part(name: str) -> bool:
    return name.startswith("part-") and name.endswith(".parquet")


def _read(path: Path, columns: list[str] | None = None) -> pa.Table:
    """A part's columns. ArrowInvalid if it is none of this version, RecordError if its checksum differs."""
    check_checksum(path)
    with pq.ParquetFile(path) as file:
        found = file.schema_arrow
        if not found.equals(SCHEMA) or found.metadata.get(b"rised.judge_cache") != b"1":
            raise pa.ArrowInvalid("no part of a judge's cache of this version")
        return file.read(columns)


def _fingerprints(keys: pa.ChunkedArray) -> np.ndarray:
    """uint64 per key, in the keys' order."""
    joined = b"".join(keys.to_pylist())
    return np.frombuffer(joined, dtype=">u8").reshape(-1, KEY_BYTES // 8)[:, 0].astype(np.uint64)
