"""The one exception of this room."""

from __future__ import annotations


class MethodError(ValueError):
    """A method was asked for something it cannot give: wrong settings, too few groups, a state of another method."""
