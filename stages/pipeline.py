"""Which episodes each step has, by which weights they are played, and when: the two ways of ``pipeline.lag``.

Without a lag a step's episodes are played when the step asks for them, with the weights of the update before. With a
lag of 1 the episodes of step n + 1 are begun once those of step n are all played and update n - 1 is made: they are
played with version n - 1 while the last of step n are tagged and step n is selected and learned from. Version n is
handed over when both are through. So no episode mixes weights, and what is played follows from the configuration,
never from who was faster.

A steering rule is asked after each step; what it says after step n holds for step n + 1, or n + 2 with a lag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rised.environments.base import Task
from rised.experiment import RunConfig
from rised.rollouts.plans import EpisodePlan
from rised.rubrics.base import Judge
from rised.rubrics.vocabulary import Vocabulary
from stages.loop import begun, training_plans
from stages.tagging import InFlight, Phase, TaggedBatch, begin_play, finish_play, play_and_tag
from stages.workers import WorkerGroup

PLAYED = "played.safetensors"
"""State file of a run with a lag: the weights by which the step after the next state is played."""


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
        self._config, self._run, self._panels, self._vocabulary = config, run, panels, vocabulary
        self._candidates = candidates
        self.step = 1
        self._cursors = dict.fromkeys(config.environments, 0)
        self._steering: list[dict[str, tuple[str, ...]]] = [{} for _ in range(config.pipeline.lag + 1)]

    def plans(self, number: int) -> list[EpisodePlan]:
        """Episodes of the next step or, with a lag, of the one after it."""
        cursors = self._cursors
        for step in range(self.step, number):
            cursors = self._advanced(cursors, step)
        return training_plans(
            self._config,
            self._panels,
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
        counts = begun(self._config, self._candidates, list(self._panels), step)
        return {name: value + counts.get(name, 0) for name, value in cursors.items()}


class Episodes:
    """Gives each step its batch. ``asks_policy``: somebody writes with the policy between rollouts and update."""

    def __init__(
        self, config: RunConfig, workers: WorkerGroup, judge: Judge | None, schedule: Schedule, asks_policy: bool
    ) -> None:
        self._config, self._workers, self._judge, self._schedule = config, workers, judge, schedule
        self._asks_policy = asks_policy
        self._flight: InFlight | None = None
        self._begun = 0

    @property
    def lag(self) -> int:
        return self._config.pipeline.lag

    def batch(self, number: int, phase: Phase, more: Callable[[], bool]) -> TaggedBatch:
        """The step's episodes and tags. ``more``: whether a further step will follow, whose episodes may be begun."""
        if self.lag == 0:
            return play_and_tag(self._workers, self._judge, self._schedule.plans(number), self._config.rollout, phase)
        flight, self._flight = self._flight or self._begin(number), None
        waited_before_s = flight.waited_s
        phase("rollouts")
        flight.wait()
        if not self._asks_policy:
            self.look_ahead(number, more)
        return replace(finish_play(flight, self._judge, phase), waited_before_s=waited_before_s)

    def look_ahead(self, number: int, more: Callable[[], bool]) -> None:
        """With a lag: hand over the weights before this step's update, and begin the next step with them, once."""
        if self.lag and self._begun <= number:
            self._workers.hand_over()
            if more():
                self._flight = self._begin(number + 1)
            self._begun = number + 1

    def rest(self) -> None:
        """Let everybody who plays have the newest weights, for something that is not a training episode.

        A judge that failed meanwhile ends the next step, whose episodes they are, not this one.
        """
        if self.lag:
            if self._flight is not None:
                self._flight.end()
            self._workers.hand_over()

    def _begin(self, number: int) -> InFlight:
        return begin_play(self._workers, self._judge, self._schedule.plans(number), self._config.rollout)
