"""RISED's steering: where violations dominate, the next training rollouts are told what to avoid (METHODS §1.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from rised.config.settings import strict
from rised.methods.base import PieceSettings, Steering
from rised.methods.errors import MethodError
from rised.methods.registry import piece

if TYPE_CHECKING:
    from rised.rubrics.vocabulary import Vocabulary
    from rised.rubrics.windows import TagWindow


@piece("steering", "negative_rubrics")
class NegativeRubrics(Steering):
    """A switch with hysteresis per environment. [ours]

    On when the window counts more violates than demonstrates over all rubrics, off when violates / demonstrates falls
    below ``off_ratio``; between the two it stays as it was. The window's length is a setting of the rubrics (5 steps).
    While it is on, the most violated *negative* rubrics are named, chosen anew each step; a violated positive rubric
    counts towards the switch but cannot be told to be avoided. An environment without a tag in the window keeps its
    switch and, having no counts, gets no block.
    """

    needs_tags = True

    class Settings(PieceSettings):
        """When to switch and how much to say."""

        type: Literal["negative_rubrics"] = strict(description="Name what to avoid where violations dominate.")
        max_rubrics: int = strict(3, ge=1, description="Rubrics in the avoid block.")
        on_ratio: float = strict(1.0, gt=0.0, description="On when violates / demonstrates is greater.")
        off_ratio: float = strict(0.8, ge=0.0, description="Off when violates / demonstrates is smaller.")

        @model_validator(mode="after")
        def _off_below_on(self) -> Self:
            if self.off_ratio > self.on_ratio:
                raise ValueError(
                    f"off_ratio {self.off_ratio} exceeds on_ratio {self.on_ratio}: it would go on and off at once"
                )
            return self

    def __init__(self, settings: Any, vocabulary: Vocabulary) -> None:
        super().__init__(settings, vocabulary)
        self._on: dict[str, bool] = {}

    def next_step(self, window: TagWindow) -> dict[str, tuple[str, ...]]:
        blocks: dict[str, tuple[str, ...]] = {}
        for environment in self.vocabulary.environments:
            self._on[environment] = self._switch(environment, window)
            if self._on[environment]:
                rubrics = window.most_violated(environment, self.vocabulary, self.settings.max_rubrics)
                if rubrics:
                    blocks[environment] = rubrics
        return blocks

    def _switch(self, environment: str, window: TagWindow) -> bool:
        counts = window.counts(environment)
        violates, demonstrates = counts.violates.total(), counts.demonstrates.total()
        if violates > self.settings.on_ratio * demonstrates:
            return True
        if violates < self.settings.off_ratio * demonstrates:
            return False
        return self._on.get(environment, False)

    def state(self) -> dict[str, Any]:
        return {"on": dict(sorted(self._on.items()))}

    def load_state(self, state: Mapping[str, Any]) -> None:
        on = state.get("on")
        if not isinstance(on, Mapping) or not all(isinstance(value, bool) for value in on.values()):
            raise MethodError(
                f"steering state {state!r} is not one of `negative_rubrics`: expected {{on: {{environment: bool}}}}"
            )
        self._on = dict(on)
