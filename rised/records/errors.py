"""The one exception of this room."""

from __future__ import annotations


class RecordError(RuntimeError):
    """A file or a record cannot be written or read. The message names the file, what is wrong and what to do."""
