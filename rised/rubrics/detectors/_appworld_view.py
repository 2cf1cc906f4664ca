"""An AppWorld rollout as its detectors look at it: one view a turn, read from the environment's own log.

Registers nothing. The keys of the log are documented in ``rised/environments/appworld/environment.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rised.records.types import Rollout

HELPERS = frozenset({"api_docs", "supervisor"})
"""Apps that inform the policy; a task is about the others."""
_ACCOUNT = frozenset({"login", "logout"})
_NEVER_RUN = frozenset({"SyntaxError", "NotAllowed"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an API that exists. ``turn`` is the view it was made in."""

    turn: int
    log: dict[str, Any]

    @property
    def name(self) -> tuple[str, str]:
        return str(self.log["app"]), str(self.log["api"])

    @property
    def app(self) -> str:
        return str(self.log["app"])

    @property
    def succeeded(self) -> bool:
        return bool(self.log["status"] == 200)

    @property
    def is_data(self) -> bool:
        """A call of an app that the task may be about, other than logging in and out."""
        return self.app not in HELPERS and self.log["api"] not in _ACCOUNT

    @property
    def is_change(self) -> bool:
        """A call that changed data of the task's apps."""
        return self.is_data and self.succeeded and self.log["method"] != "get"

    @property
    def is_reading(self) -> bool:
        """A call that read data of the task's apps."""
        return self.is_data and self.succeeded and self.log["method"] == "get"

    @property
    def completes(self) -> bool:
        return self.name == ("supervisor", "complete_task") and self.succeeded

    @property
    def documented(self) -> tuple[str, str] | None:
        """The API whose documentation was looked up."""
        if self.name != ("api_docs", "show_api_doc") or not self.succeeded:
            return None
        return str(self.log["about_app"]).strip().lower(), str(self.log["about_api"]).strip().lower()


@dataclass(frozen=True, slots=True)
class View:
    """One turn: its log, the raw reply, its calls and what came back."""

    index: int
    info: dict[str, Any]
    raw: str
    calls: tuple[Call, ...]
    result: str

    @property
    def is_invalid(self) -> bool:
        """Nothing could be read from the reply."""
        return bool(self.info["reply"] == "invalid")

    @property
    def ran(self) -> bool:
        """Code that ended without an error."""
        return not self.is_invalid and self.info["error_type"] is None

    @property
    def failed(self) -> bool:
        return not self.is_invalid and self.info["error_type"] is not None

    @property
    def was_refused(self) -> bool:
        """The environment executed nothing of the reply."""
        return self.is_invalid or self.info["error_type"] in _NEVER_RUN

    @property
    def changes(self) -> bool:
        return any(call.is_change for call in self.calls)

    @property
    def code(self) -> str:
        """The code, or the reply itself where there is none, without blanks at line ends."""
        text = self.raw if self.is_invalid else str(self.info["code"])
        return "\n".join(line.rstrip() for line in text.strip().splitlines())


@dataclass(frozen=True, slots=True)
class Episode:
    """The views of a rollout, all its calls in order, and what the task is."""

    views: tuple[View, ...]
    calls: tuple[Call, ...]
    rollout: Rollout

    @property
    def end(self) -> View | None:
        """The turn in which the task was declared complete."""
        last = self.views[-1]
        return last if last.info["completed"] else None

    @property
    def claims_success(self) -> bool:
        """The last declaration was one of success."""
        claims = [call.log["claims"] for call in self.calls if call.completes]
        return bool(claims) and claims[-1] == "success"

    @property
    def values(self) -> list[str]:
        """Values that the task quotes."""
        return [str(value) for value in self.views[0].info["task_values"]]

    def before_completion(self) -> list[Call]:
        """The calls before the first declaration; all of them if there is none."""
        for position, call in enumerate(self.calls):
            if call.completes:
                return list(self.calls[:position])
        return list(self.calls)


def read(rollout: Rollout) -> Episode:
    """The episode of a rollout. KeyError when the log is not AppWorld's."""
    views = []
    for index, turn in enumerate(rollout.turns):
        last = index + 1 == len(rollout.turns)
        result = rollout.final_observation if last else rollout.turns[index + 1].observation
        calls = tuple(Call(index, log) for log in turn.info.get("calls", ()))
        views.append(View(index, turn.info, turn.action_raw, calls, result))
    return Episode(tuple(views), tuple(call for view in views for call in view.calls), rollout)
