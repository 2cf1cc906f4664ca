"""What goes into an update and what comes out of it.

``TrainingSequence`` and ``LossTerm`` are defined one floor below (``rised.methods.streams``), because methods build
them; this module is where users of the learner import them from.
"""

from __future__ import annotations

from dataclasses import dataclass

from rised.methods.streams import LossTerm, Need, Reduction, TokenStreams, TrainingSequence
from rised.records.types import Metric

__all__ = [
    "LossTerm",
    "Measure",
    "Need",
    "Reduction",
    "Timings",
    "TokenStreams",
    "TrainingSequence",
    "UpdateReport",
]


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of one update. ``value`` is None when there was nothing to measure (never NaN, never 0 instead)."""

    name: str
    value: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock seconds of the parts of an update, as in the paper's Table 9. A pass that was not needed took 0."""

    reference_s: float
    teacher_s: float
    actor_s: float


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What one update did. ``empty``: no token carried a gradient, and neither weights nor optimiser changed."""

    metrics: tuple[Measure, ...]
    timings: Timings
    empty: bool

    def records(self, step: int) -> list[Metric]:
        """The measures as records of a step, without the timings (they differ between equal runs)."""
        return [Metric(step, measure.name, measure.value, measure.unit) for measure in self.metrics]
