"""What the episode loop asks of a generation engine: token ids in, sampled ids and log-probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Generated:
    """One reply: sampled ids (end token included if it was sampled), their log-probabilities, and how it ended."""

    token_ids: list[int]
    logprobs: list[float]
    ended: bool
    """True if the end token was sampled, False if the limit cut the reply."""


class Session(Protocol):
    """The episodes of one batch, each in a row of its own for as long as it lasts."""

    def generate(
        self,
        rows: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        max_new_tokens: Sequence[int],
        uniforms: Sequence[np.ndarray],
    ) -> list[Generated]:
        """Append ``new_ids`` to each row and sample a reply; the t-th uniform decides the t-th token."""
        ...

    def token_ids(self, row: int) -> list[int]:
        """All that the row was conditioned on or sampled, in order."""
        ...


class Engine(Protocol):
    """Holds weights; ``tokens_fed`` and ``tokens_generated`` count its work."""

    tokens_fed: int
    tokens_generated: int

    def session(self, row_count: int, temperature: float = 1.0) -> Session:
        """Begin a batch of ``row_count`` empty rows."""
        ...


class WritingEngine(Protocol):
    """An engine that also writes texts that are not trained on. ``max_positions``: longest question and answer."""

    max_positions: int

    def session(self, row_count: int, temperature: float = 1.0, *, top_p: float = 1.0) -> Session:
        """As :meth:`Engine.session`; ``top_p`` below 1 draws from the likeliest tokens that hold that share."""
        ...
