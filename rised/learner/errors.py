"""The one exception of this room."""

from __future__ import annotations


class LearnerError(RuntimeError):
    """An update cannot be made, or a saved state cannot be read or written."""
