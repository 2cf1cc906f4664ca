"""A small deterministic environment for tests: guess a number from "higher"/"lower" (registered on import).

Tasks can misbehave on demand, each in the way that a real engine does: the worker is killed, hangs, or raises.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rised.config import Settings, strict
from rised.environments.base import EnvironmentFault, EnvironmentSpec, StepResult, Task, register


class CountdownSettings(Settings):
    """``diary``: folder in which tasks leave marks, so that they can misbehave once."""

    diary: str = strict("", description="Folder for marks of misbehaviour.")
    limit: int = strict(100, description="Numbers are below this.", gt=1)
    broken: str = strict("", description="What keeps the environment from being built: `refused`, `absent` or a bug.")


class Countdown:
    """Guess the number; the payload may ask for trouble at a turn (``trouble``: kind, turn, times).

    ``say``: text by turn that the observation of that turn ends in (0: the first observation).
    """

    def __init__(self, settings: CountdownSettings) -> None:
        if settings.broken == "refused":
            raise EnvironmentFault("no engine here: install it")
        if settings.broken == "absent":
            Path("/nonexistent/engine").read_bytes()
        if settings.broken:
            raise AssertionError("a bug")
        self.settings = settings
        self.number = self.turn = 0
        self.task: Task | None = None

    def system_prompt(self) -> str:
        return "Guess the number. Reply with digits."

    def reset(self, task: Task, seed: int) -> str:
        print("engine banner on standard output")
        os.write(1, b"and another one\n")
        self.task, self.turn = task, 0
        self.number = random.Random(f"{task.task_id}/{seed}").randrange(self.settings.limit)
        self._trouble()
        return f"task {task.task_id}: a number below {self.settings.limit}{self._said()}"

    def step(self, action: str) -> StepResult:
        self.turn += 1
        self._trouble()
        digits = "".join(c for c in action if c.isdigit())[:4]
        guess = int(digits) if digits else None
        info = {"turn": self.turn}
        if guess is None:
            return StepResult(f"say digits{self._said()}", False, action, False, info=info)
        if guess == self.number:
            return StepResult("right", True, str(guess), True, 1.0, True, "environment_done", info)
        return StepResult("higher" if guess < self.number else "lower", False, str(guess), True, info=info)

    def expert(self, seed: int, noise: float) -> Iterator[str]:
        yield str(self.number)

    def close(self) -> None: ...

    def _said(self) -> str:
        assert self.task is not None
        return str(self.task.payload.get("say", {}).get(str(self.turn), ""))

    def _trouble(self) -> None:
        assert self.task is not None
        trouble: dict[str, Any] = self.task.payload.get("trouble", {})
        if not trouble or trouble["turn"] != self.turn:
            return
        marks = Path(self.settings.diary) / self.task.task_id
        marks.mkdir(exist_ok=True)
        if len(list(marks.iterdir())) >= trouble["times"]:
            return
        (marks / f"{len(list(marks.iterdir()))}").touch()
        if trouble["kind"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif trouble["kind"] == "hang":
            time.sleep(600)
        elif trouble["kind"] == "unserialisable":
            self.settings.__dict__["limit"] = object()
        else:
            raise EnvironmentFault(f"engine broke in task {self.task.task_id}")


def task(index: int, trouble: dict[str, Any] | None = None) -> Task:
    """Task ``index``, optionally with trouble."""
    payload = {"trouble": trouble} if trouble else {}
    return Task("countdown", "train", f"number-{index}", index, payload, f"hash-{index}")


register(
    EnvironmentSpec(
        name="countdown",
        settings_type=CountdownSettings,
        make=Countdown,
        prepare=lambda settings, split, count, seed: [task(index) for index in range(count)],
        max_turns=8,
    )
)
