"""One bundle per environment that never changes: the laptop's offline rubric (METHODS §4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup
from rised.methods.bundle_writers.vocabulary import drawn, vocabulary_criteria
from rised.methods.bundles.base import BundleWriter, Desk, Draft
from rised.methods.registry import piece


@piece("bundle_writer", "fixed")
class FixedWriter(BundleWriter):
    """Rubrics of the environment's vocabulary, drawn once by the run's seed, equal for all its tasks and steps. [ours]

    ORSD's offline variant has the initial policy write one bundle for each task before training [paper]; here the
    bundle is of the environment and of the vocabulary. What both have in common is that no rollout shapes it.
    """

    class Settings(PieceSettings):
        """How many rubrics."""

        type: Literal["fixed"] = strict(description="One bundle of the vocabulary per environment, drawn by the seed.")
        criteria: int = strict(8, ge=1, description="Criteria of the bundle.")

    def drafts(self, groups: Sequence[PromptGroup], count: int, desk: Desk, step: int, seed: int) -> list[list[Draft]]:
        return [[self._draft(group.environment, seed, index) for index in range(count)] for group in groups]

    def _draft(self, environment: str, seed: int, index: int) -> Draft:
        pool = [rubric.id for rubric in self.vocabulary.applicable(environment)]
        size = self.settings.criteria
        return Draft(vocabulary_criteria(drawn(pool, size, size, seed, environment, index), self.vocabulary))
