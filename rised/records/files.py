"""Files that are there whole or not at all.

A file is written under a name that begins with a dot (readers of Parquet folders skip those) in its final folder,
synced, and renamed. Free space is checked first, because libraries report a full disk in misleading ways. What the
bytes mean is decided above (``shards``, ``manifests``).
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rised.records.errors import RecordError
from rised.records.faults import kill_point

TEMPORARY_PREFIX = ".tmp-"
SPARE_BYTES = 1 << 20
"""Space that must stay free beside the file itself (directory blocks, the manifest that follows)."""

_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file on disk: its size in bytes and the SHA-256 of its content."""

    path: Path
    byte_count: int
    sha256: str


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write in ``folder``'s file system."""
    return shutil.disk_usage(folder).free


def sync_folder(folder: Path) -> None:
    """Make renames and removals in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents durably: a committed file must not vanish with the folder's own entry."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def write_bytes(path: Path, data: bytes | memoryview) -> WrittenFile:
    """Write ``data`` to ``path`` atomically, replacing what is there.

    Raises :class:`RecordError` if the disk is full or the folder cannot be written; then ``path`` is as before and
    no temporary file is left.
    """
    view = memoryview(data).cast("B")
    temporary = path.parent / f"{TEMPORARY_PREFIX}{path.name}"
    try:
        make_folder(path.parent)
        free = free_bytes(path.parent)
        if free < len(view) + SPARE_BYTES:
            raise RecordError(_full_message(path, len(view), free))
        kill_point(f"create {path.name}")
        _write_temporary(temporary, view, path.name)
        kill_point(f"rename {path.name}")
        os.replace(temporary, path)
        kill_point(f"renamed {path.name}")
        sync_folder(path.parent)
    except OSError as error:
        _remove_quietly(temporary)
        if error.errno in _FULL:
            raise RecordError(_full_message(path, len(view), free_bytes(path.parent))) from error
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}. Check the path and that you may write there."
        ) from error
    return WrittenFile(path, len(view), hashlib.sha256(view).hexdigest())


def write_file(path: Path, write: Callable[[Path], None], byte_count: int) -> WrittenFile:
    """Let ``write`` make a file under a temporary name, then rename it to ``path``; errors as in :func:`write_bytes`.

    ``byte_count``: the most that it may take, checked against the free space before.
    """
    temporary = path.parent / f"{TEMPORARY_PREFIX}{path.name}"
    try:
        make_folder(path.parent)
        free = free_bytes(path.parent)
        if free < byte_count + SPARE_BYTES:
            raise RecordError(_full_message(path, byte_count, free))
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = temporary.stat().st_size
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        if error.errno in _FULL:
            raise RecordError(_full_message(path, byte_count, free_bytes(path.parent))) from error
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}. Check the path and that you may write there."
        ) from error
    finally:
        _remove_quietly(temporary)
    return WrittenFile(path, size, digest)


def link_file(source: Path, target: Path, byte_count: int) -> None:
    """Let ``target`` be the same file as ``source``, or a copy of it where the file system knows no such links.

    Errors as in :func:`write_bytes`. ``byte_count``: of a copy. Neither may be changed afterwards.
    """
    make_folder(target.parent)
    kill_point(f"link {target.name}")
    try:
        os.link(source, target)
        sync_folder(target.parent)
    except OSError:
        write_file(target, lambda path: _copy(source, path), byte_count)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _write_temporary(temporary: Path, view: memoryview, name: str) -> None:
    with temporary.open("wb") as file:
        half = len(view) // 2
        file.write(view[:half])
        file.flush()
        kill_point(f"half of {name}")
        file.write(view[half:])
        file.flush()
        os.fsync(file.fileno())


def _full_message(path: Path, needed: int, free: int) -> str:
    return (
        f"no space left for {path}: {needed:,} bytes needed ({free:,} bytes free, {SPARE_BYTES:,} must stay free). "
        "Nothing was left half-written; free some space and start the same command again: it continues after the last "
        "committed step."
    )


def _remove_quietly(path: Path) -> None:
    """Best effort while another error is on its way; ``RunDirectory.recover`` removes what stays."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass
