"""Which episodes each step has, by which weights they are played, and when: the two ways of ``pipeline.lag``.

Without a lag a step's episodes are played when the step asks for them, with the weights of the update before. With a
lag of L the episodes of step n + L are begun once those of step n are all played and update n - 1 is made: they are
played with version n - 1, after those of the steps between, while step n is tagged, selected and learned from. Weights
wait for the end of what is played with older ones. So no episode mixes weights, and what is played follows from the
configuration, never from who was faster.

A steering rule is asked after each step; what it says after step n holds for step n + 1 + L.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rised.environments.base import Task
from rised.experiment import RunConfig
from rised.rollouts.plans import EpisodePlan
from rised.rubrics.base import Judge
from rised.rubrics.vocabulary import Vocabulary
from stages.loop import begun, training_plans
from stages.tagging import InFlight, Phase, TaggedBatch, begin_play, finish_play, play_and_tag
from stages.workers import WorkerGroup

More = Callable[[int], bool]
"""Whether a step will be made, as far as one can tell."""


def played_file(updates: int) -> str:
    """State file of a run with a lag: the weights of so many updates before the state's own."""
    return "played.safetensors" if updates == 1 else f"played-{updates}.safetensors"


class Schedule:
    """The episodes of the steps to come; JSON state. ``step``: the next one to learn from."""

    def __init__(
        self,
        config: RunConfig,
        run: str,
        panels: Mapping[str, Sequence[Task]],
        vocabulary: Vocabulary,
        candidates: int,
    ) -> None:
        self._config, self._run, self.panels, self._vocabulary = config, run, panels, vocabulary
        self._candidates = candidates
        self.step = 1
        self._cursors = dict.fromkeys(config.environments, 0)
        self._steering: list[dict[str, tuple[str, ...]]] = [{} for _ in range(config.pipeline.lag + 1)]

    def plans(self, number: int) -> list[EpisodePlan]:
        """Episodes of the next step or, with a lag, of one of those after it."""
        cursors = self._cursors
        for step in range(self.step, number):
            cursors = self._advanced(cursors, step)
        return training_plans(
            self._config,
            self.panels,
            cursors,
            self._steering[number - self.step],
            self._vocabulary,
            self._candidates,
            number,
            self._run,
        )

    def advance(self, steering: dict[str, tuple[str, ...]]) -> None:
        """The next step is learned from; ``steering``: of the first one that is not begun yet."""
        self._cursors = self._advanced(self._cursors, self.step)
        self._steering = [*self._steering[1:], steering]
        self.step += 1

    def state(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        first, *ahead = [{name: list(rubrics) for name, rubrics in one.items()} for one in self._steering]
        return {"cursors": self._cursors, "steering": first} | ({"steering_ahead": ahead} if ahead else {})

    def load_state(self, state: Mapping[str, Any], last: int) -> None:
        """Take over what :meth:`state` said after step ``last``."""
        self.step = last + 1
        self._cursors = {name: int(value) for name, value in state["cursors"].items()}
        found = [state["steering"], *state.get("steering_ahead", [])]
        self._steering = [{name: tuple(rubrics) for name, rubrics in one.items()} for one in found]

    def _advanced(self, cursors: Mapping[str, int], step: int) -> dict[str, int]:
        counts = begun(self._config, self._candidates, list(self.panels), step)
        return {name: value + counts.get(name, 0) for name, value in cursors.items()}


class Episodes:
    """Gives each step its batch. ``asks_policy``: somebody writes with the policy between rollouts and update."""

    def __init__(
        self, config: RunConfig, workers: WorkerGroup, judge: Judge | None, schedule: Schedule, asks_policy: bool
    ) -> None:
        self._config, self._workers, self._judge, self._schedule = config, workers, judge, schedule
        self._asks_policy = asks_policy
        self._flights: deque[InFlight] = deque()
        self._begun = self._looked_ahead = 0
        self._restored: dict[int, tuple[Path, int]] = {}

    @property
    def lag(self) -> int:
        return self._config.pipeline.lag

    def resume(self, last: int, played: Callable[[int], Path]) -> None:
        """Go on after step ``last``. ``played``: the file of the weights of so many updates before it.

        The players get the weights of the next step; those of the steps ahead, which nobody begins but this, follow.
        """
        self._begun = self._looked_ahead = last
        version = None
        for step in range(last + 1, last + self.lag + 1):
            older, version = version, max(0, step - 1 - self.lag)
            if version != older:
                self._restored[step] = played(last - version), version
        self._workers.play_with(*self._restored.pop(last + 1))

    def batch(self, number: int, phase: Phase, more: More) -> TaggedBatch:
        """The step's episodes and tags. Those of later steps are begun, as far as there will be ``more``."""
        if self.lag == 0:
            return play_and_tag(self._workers, self._judge, self._schedule.plans(number), self._config.rollout, phase)
        while self._begun < number + self.lag - 1 and (self._begun < number or more(self._begun + 1)):
            if self._begun + 1 in self._restored:
                self._workers.play_with(*self._restored.pop(self._begun + 1))
            self._begin()
        flight = self._flights.popleft()
        waited_before_s = flight.waited_s
        phase("rollouts")
        flight.wait()
        if not self._asks_policy:
            self.look_ahead(number, more)
        return replace(finish_play(flight, self._judge, phase), waited_before_s=waited_before_s)

    def look_ahead(self, number: int, more: More) -> None:
        """With a lag: hand over the weights before this step's update, and begin another step with them, once."""
        if self.lag and self._looked_ahead < number:
            self._looked_ahead = number
            if more(number + self.lag):
                if number > 1:  # whoever plays has had the weights before the first update from the start
                    self._workers.hand_over()
                self._begin()

    def rest(self) -> None:
        """Let everybody who plays have the newest weights, for something that is not a training episode.

        A judge that failed meanwhile ends the next step, whose episodes they are, not this one.
        """
        if self.lag:
            for flight in self._flights:
                flight.end()
            self._workers.hand_over()

    def _begin(self) -> None:
        self._begun += 1
        plans = self._schedule.plans(self._begun)
        self._flights.append(begin_play(self._workers, self._judge, plans, self._config.rollout))
