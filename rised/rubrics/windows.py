"""What the last few training steps showed: counts of tags per environment and their lift with success.

Kept apart from teachers and steering, which both read it: teachers rank positives by it, steering compares violations
with demonstrations. It holds counts, never rollouts, so that its whole state is a small JSON value in the manifest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rised.records.types import Rollout, Tag, TagState
from rised.rubrics.base import RubricError
from rised.rubrics.tags import valid_states
from rised.rubrics.vocabulary import Polarity, Vocabulary


@dataclass(slots=True)
class StepCounts:
    """Counts over the validly tagged rollouts of one environment, in one step or summed over several.

    ``scored`` counts those with a known outcome, ``successes`` the successful ones among them; the two
    ``scored_…`` tables count demonstrations within them, which is what lift needs.
    """

    rollouts: int = 0
    scored: int = 0
    successes: int = 0
    demonstrates: Counter[str] = field(default_factory=Counter)
    violates: Counter[str] = field(default_factory=Counter)
    scored_demonstrates: Counter[str] = field(default_factory=Counter)
    successful_demonstrates: Counter[str] = field(default_factory=Counter)

    def add_rollout(self, states: dict[str, TagState], success: bool | None) -> None:
        self.rollouts += 1
        if success is not None:
            self.scored += 1
            self.successes += success
        for rubric_id, state in states.items():
            if state is TagState.VIOLATES:
                self.violates[rubric_id] += 1
            elif state is TagState.DEMONSTRATES:
                self.demonstrates[rubric_id] += 1
                if success is not None:
                    self.scored_demonstrates[rubric_id] += 1
                    if success:
                        self.successful_demonstrates[rubric_id] += 1

    def add(self, other: StepCounts) -> None:
        self.rollouts += other.rollouts
        self.scored += other.scored
        self.successes += other.successes
        for name in _TABLES:
            getattr(self, name).update(getattr(other, name))

    def to_json(self) -> dict[str, Any]:
        tables = {name: dict(sorted(getattr(self, name).items())) for name in _TABLES}
        return {"rollouts": self.rollouts, "scored": self.scored, "successes": self.successes, **tables}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StepCounts:
        tables = {name: Counter(value[name]) for name in _TABLES}
        return cls(value["rollouts"], value["scored"], value["successes"], **tables)


_TABLES = ("demonstrates", "violates", "scored_demonstrates", "successful_demonstrates")


class TagWindow:
    """The tags of the last ``length`` pushed steps, per environment [ours; METHODS 1.4 and 1.5]."""

    def __init__(self, length: int = 5) -> None:
        if length < 1:
            raise RubricError(f"a window keeps at least one step, not {length}")
        self.length = length
        self._steps: dict[int, dict[str, StepCounts]] = {}

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps in the window, oldest first."""
        return tuple(self._steps)

    def push(self, step: int, rollouts: Sequence[Rollout], tags: Iterable[Tag]) -> None:
        """Add a step's rollouts of all environments; the oldest step drops out when the window is full.

        Rollouts that are not validly tagged are left out. Raises RubricError when steps do not increase.
        """
        if self._steps and step <= self.steps[-1]:
            raise RubricError(f"step {step} was pushed after step {self.steps[-1]}; steps must increase")
        states_of = valid_states(tags, [rollout.rollout_id for rollout in rollouts])
        counts: dict[str, StepCounts] = {}
        for rollout in rollouts:
            states = states_of.get(rollout.rollout_id)
            if states is not None:
                success = rollout.success if rollout.reward_valid else None
                counts.setdefault(rollout.environment, StepCounts()).add_rollout(states, success)
        self._steps[step] = counts
        while len(self._steps) > self.length:
            del self._steps[self.steps[0]]

    def counts(self, environment: str) -> StepCounts:
        """The sums over the window for one environment; all zero when it has not been seen."""
        total = StepCounts()
        for by_environment in self._steps.values():
            if environment in by_environment:
                total.add(by_environment[environment])
        return total

    def lift(self, environment: str, rubric_id: str) -> float | None:
        """P(success | demonstrates) − P(success | not), over the scored rollouts of the window.

        None when the rubric was demonstrated by all of them or by none: one of the two shares is then undefined.
        """
        return _lift(self.counts(environment), rubric_id)

    def rank_positives(
        self, environment: str, rubric_ids: Iterable[str], vocabulary: Vocabulary, limit: int = 8
    ) -> tuple[str, ...]:
        """The rubrics by lift, then by count of demonstrations, then in vocabulary order; at most ``limit``.

        An undefined lift ranks as 0: between what goes with success and what goes with failure [ours].
        """
        counts = self.counts(environment)
        order = sorted(
            rubric_ids,
            key=lambda rubric_id: (
                -(_lift(counts, rubric_id) or 0.0),
                -counts.demonstrates[rubric_id],
                vocabulary.index(rubric_id),
            ),
        )
        return tuple(order[:limit])

    def most_violated(self, environment: str, vocabulary: Vocabulary, limit: int = 3) -> tuple[str, ...]:
        """The negative rubrics with the most violations, ties in vocabulary order; only those violated at all.

        Violated positive rubrics are not listed: an avoid block can name only what not to do.
        """
        violates = self.counts(environment).violates
        negatives = [rubric_id for rubric_id in violates if vocabulary.polarity(rubric_id) is Polarity.NEGATIVE]
        order = sorted(negatives, key=lambda rubric_id: (-violates[rubric_id], vocabulary.index(rubric_id)))
        return tuple(order[:limit])

    def to_json(self) -> dict[str, Any]:
        """The whole state as JSON values; ``from_json`` restores an equal window."""
        steps = [
            {"step": step, "environments": {name: counts.to_json() for name, counts in sorted(by_environment.items())}}
            for step, by_environment in self._steps.items()
        ]
        return {"length": self.length, "steps": steps}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TagWindow:
        window = cls(value["length"])
        for entry in value["steps"]:
            environments = {name: StepCounts.from_json(counts) for name, counts in entry["environments"].items()}
            window._steps[int(entry["step"])] = environments
        return window


def _lift(counts: StepCounts, rubric_id: str) -> float | None:
    with_rubric = counts.scored_demonstrates[rubric_id]
    without = counts.scored - with_rubric
    if not with_rubric or not without:
        return None
    successes_with = counts.successful_demonstrates[rubric_id]
    return successes_with / with_rubric - (counts.successes - successes_with) / without
