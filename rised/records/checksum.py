"""A SHA-256 inside each Parquet file, over everything else in it.

It is written just before the footer, where Parquet readers find nothing that the footer names and so skip it. Parquet's
own page checksums cover neither the footer nor the page headers: of 400 flipped bits 3 gave other values unnoticed.
Files without it (written before, or by other programs) are read unchecked.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO

from rised.records.errors import RecordError

MARK = b"rised.sha256="
_END = 8
"""Bytes after the footer: its length, then the magic word."""
_CHUNK = 1 << 20


def with_checksum(data: bytes | memoryview) -> bytes:
    """The bytes of a Parquet file with its checksum in it; equal files stay equal."""
    view = memoryview(data).cast("B")
    footer = len(view) - _END - int.from_bytes(view[-_END : -_END + 4], "little")
    return b"".join((view[:footer], MARK, hashlib.sha256(view).digest(), view[footer:]))


def add_checksum(path: Path) -> None:
    """Put the checksum into a Parquet file that was just written; it is not held in memory."""
    with path.open("rb+") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        start = _footer_start(file)
        file.seek(start)
        footer = file.read()
        file.seek(start)
        file.write(MARK + digest + footer)


def check_checksum(path: Path) -> bool:
    """Whether the file has a checksum. :class:`RecordError` if it does not agree with the content; OSError passes."""
    with path.open("rb") as file:
        start = _footer_start(file) - len(MARK) - hashlib.sha256().digest_size
        if start < 0:
            return False
        file.seek(start)
        if file.read(len(MARK)) != MARK:
            return False
        stored = file.read(hashlib.sha256().digest_size)
        footer = file.read()
        file.seek(0)
        digest, left = hashlib.sha256(), start
        while left and (chunk := file.read(min(left, _CHUNK))):
            digest.update(chunk)
            left -= len(chunk)
        digest.update(footer)
    if digest.digest() != stored:
        raise RecordError(
            f"{path} is damaged: its content does not have the SHA-256 written in it. "
            "Restore it from a copy, or remove it and run the stage that writes it again."
        )
    return True


def _footer_start(file: IO[bytes]) -> int:
    """Where the footer begins; below 0 in a file that is no Parquet file."""
    size = file.seek(0, os.SEEK_END)
    if size < _END:
        return -1
    file.seek(size - _END)
    return size - _END - int.from_bytes(file.read(4), "little")
