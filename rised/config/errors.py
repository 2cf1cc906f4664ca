"""The one exception of this room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Problem(NamedTuple):
    """One fault of a configuration: where it was written, the dotted key ('' for the whole), what to do."""

    where: str
    key: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


class ConfigError(ValueError):
    """A configuration cannot be used. The message lists every problem found, one a line."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems: tuple[Problem, ...] = () if isinstance(problems, str) else tuple(problems)
        super().__init__(problems if isinstance(problems, str) else "\n".join(map(str, problems)))
