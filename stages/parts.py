"""Which part of a job array this process is, as the launcher says by STAGE_PART and STAGE_PARTS."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Part:
    """Part ``index`` of ``count``, from 0."""

    index: int
    count: int

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This part's items; every item belongs to exactly one part."""
        return list(items[self.index :: self.count])


def part_of_array(variables: Mapping[str, str] = os.environ) -> Part | None:
    """None outside of an array, and in the call that puts its parts together."""
    index = variables.get("STAGE_PART")
    return None if index is None else Part(int(index), int(variables["STAGE_PARTS"]))
