"""A DBBench rollout as its detectors look at it: one view a turn, read from the environment's own log.

Registers nothing. The keys of the log are documented in ``rised/environments/dbbench/environment.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rised.records.types import Rollout

MODIFYING = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "DROP", "ALTER", "CREATE", "TRUNCATE", "MERGE"})
_NOTHING = frozenset({"0", "0.0", "null", ""})


@dataclass(frozen=True, slots=True)
class View:
    """One turn: its log, the raw reply, what stood before it and what came back."""

    index: int
    info: dict[str, Any]
    raw: str
    seen: str
    """Task and observations up to this reply, lower-cased."""
    result: str

    @property
    def is_operation(self) -> bool:
        return bool(self.info["reply"] == "operation")

    @property
    def is_answer(self) -> bool:
        return bool(self.info["reply"] == "answer")

    @property
    def is_invalid(self) -> bool:
        return bool(self.info["reply"] == "invalid")

    @property
    def failed(self) -> bool:
        """An operation that the database refused."""
        return self.is_operation and self.info["error"] is not None

    @property
    def ran(self) -> bool:
        return self.is_operation and self.info["error"] is None

    @property
    def is_query(self) -> bool:
        """A SELECT on the data that ran."""
        return self.ran and self.info["statement"] == "SELECT" and not self.info["catalogue"]

    @property
    def is_preview(self) -> bool:
        """A look at whole rows without a condition."""
        return self.is_query and self.info["has_star"] and not self.info["has_filter"]

    @property
    def is_modification(self) -> bool:
        return self.ran and self.info["statement"] in MODIFYING

    @property
    def found_nothing(self) -> bool:
        """A query that ran and gave no row, or only zeros and NULLs."""
        return self.is_query and all(cell in _NOTHING for cell in self.info["cells"])

    @property
    def sql(self) -> str:
        """The statement, blanks and case evened out; empty when the turn is no operation."""
        return " ".join(self.info.get("sql", "").split()).rstrip("; ").lower()


@dataclass(frozen=True, slots=True)
class Episode:
    """The views of a rollout and what the task is."""

    views: tuple[View, ...]
    rollout: Rollout

    @property
    def operations(self) -> list[View]:
        return [view for view in self.views if view.is_operation]

    @property
    def answer(self) -> View | None:
        return next((view for view in self.views if view.is_answer), None)

    @property
    def asks_for_change(self) -> bool:
        return bool(self.views) and bool(self.views[0].info["modification_task"])

    @property
    def task_type(self) -> str:
        return str(self.views[0].info["task_type"]) if self.views else ""

    @property
    def values(self) -> list[str]:
        """Values that the task quotes, lower-cased."""
        return [str(value).lower() for value in self.views[0].info["task_values"]] if self.views else []

    @property
    def numbers(self) -> list[str]:
        return [str(value) for value in self.views[0].info["task_numbers"]] if self.views else []

    @property
    def decisive(self) -> View | None:
        """The last operation that ran and could settle the task: a change where one is asked for, else a query."""
        wanted = [view for view in self.operations if (view.is_modification if self.asks_for_change else view.is_query)]
        return wanted[-1] if wanted else None


def read(rollout: Rollout) -> Episode:
    """The episode of a rollout. KeyError when the log is not DBBench's."""
    views = []
    seen = ""
    for index, turn in enumerate(rollout.turns):
        seen = f"{seen}\n{turn.observation.lower()}"
        last = index + 1 == len(rollout.turns)
        result = rollout.final_observation if last else rollout.turns[index + 1].observation
        views.append(View(index, turn.info, turn.action_raw, seen, result))
    return Episode(tuple(views), rollout)
