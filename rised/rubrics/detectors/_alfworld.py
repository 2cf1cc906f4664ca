"""How the ALFWorld detectors read a rollout: the log of each turn, the search, the failures.

Fields of a turn's log are described in ``rised.environments.alfworld.environment``. A missing log counts as empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rised.records.types import Rollout, TagState
from rised.rubrics.base import Verdict

HANDLING = frozenset({"take", "put", "move", "use", "heat", "cool", "clean", "slice"})
CHANGES = frozenset({"heat", "cool", "clean"})


def kind(name: str | None) -> str:
    """Type in a name: ``drawer 2`` is a ``drawer``."""
    return name.rsplit(" ", 1)[0] if name else ""


def demonstrates(turn: int) -> Verdict:
    """The rubric is shown at this turn."""
    return Verdict(TagState.DEMONSTRATES, turn)


def violates(turn: int) -> Verdict:
    """A negative rubric is exhibited, or a positive one's opposite is shown, at this turn."""
    return Verdict(TagState.VIOLATES, turn)


@dataclass(frozen=True, slots=True)
class Step:
    """One turn. ``before`` is the log of the turn before it (empty at the first), ``said`` the policy's own text."""

    turn: int
    info: dict[str, Any]
    before: dict[str, Any]
    said: str

    def get(self, key: str, default: Any = None) -> Any:
        """A field of this turn's log."""
        return self.info.get(key, default)

    @property
    def failed(self) -> bool:
        """The environment did nothing."""
        return bool(self.info.get("event") == "nothing")

    @property
    def named(self) -> list[str]:
        """Entities that the action names."""
        return list(self.info.get("named", ()))

    @property
    def state(self) -> str:
        """Digest of the state after the turn."""
        return str(self.info.get("state", ""))

    @property
    def held_before(self) -> str | None:
        """What the agent carried when it acted."""
        return self.before.get("holding")

    @property
    def looked_into(self) -> str | None:
        """The receptacle whose contents this turn showed, if any."""
        place: str | None = self.info.get("location")
        shown = self.info.get("event") in ("goto", "open") or (
            self.info.get("event") == "examine" and self.info.get("receptacle") == place
        )
        return place if shown and not self.info.get("closed", False) else None


def steps_of(rollout: Rollout) -> list[Step]:
    """The turns with their logs."""
    before: dict[str, Any] = {}
    steps = []
    for index, turn in enumerate(rollout.turns):
        steps.append(Step(index, turn.info, before, " ".join(turn.action_raw.lower().split())))
        before = turn.info
    return steps


def task_of(rollout: Rollout) -> dict[str, Any]:
    """Goal and room, logged with the first turn."""
    task: dict[str, Any] = rollout.turns[0].info.get("task", {}) if rollout.turns else {}
    return task


def search_of(steps: list[Step]) -> list[Step]:
    """The turns until the goal's object is first seen, that one included."""
    for step in steps:
        if step.get("target_visible") or step.get("ready", "search") != "search":
            return steps[: step.turn + 1]
    return steps


def state_before(step: Step, task: dict[str, Any]) -> str:
    """Digest of the state in which the action was taken."""
    return str(step.before.get("state", task.get("start", "")))


def is_goal_object(name: str | None, task: dict[str, Any]) -> bool:
    """Whether an object is of the goal's type."""
    return bool(name) and kind(name) == task.get("object")


def placements(steps: list[Step], task: dict[str, Any]) -> list[Step]:
    """Turns that put a goal object into or onto a goal receptacle."""
    return [
        step
        for step in steps
        if step.get("event") == "put"
        and is_goal_object(step.get("object"), task)
        and kind(step.get("receptacle")) == task.get("receptacle")
    ]


def is_unready_placement(step: Step, task: dict[str, Any]) -> bool:
    """Puts, or tries to put, a goal object in its place before the state change that the goal asks for."""
    return bool(
        task.get("appliance")
        and step.get("verb") in ("put", "move")
        and any(is_goal_object(name, task) for name in step.named)
        and any(kind(name) == task.get("receptacle") for name in step.named)
        and is_goal_object(step.held_before, task)
        and not step.before.get("changed", False)
    )


def is_light_without_object(step: Step, task: dict[str, Any]) -> bool:
    """Switches the goal's lamp on while the object to look at is not in hand."""
    return bool(
        task.get("toggle")
        and step.get("event") == "use"
        and kind(step.get("object")) == task.get("toggle")
        and not is_goal_object(step.held_before, task)
    )
