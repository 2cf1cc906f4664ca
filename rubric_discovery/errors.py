"""The one exception of this room."""

from __future__ import annotations


class DiscoveryError(RuntimeError):
    """A step of discovery cannot be done. The message says what is wrong, where, and what to do."""
