"""What the episode loop asks of a generation engine: token ids in, sampled ids and log-probabilities out.

There are two kinds. A :class:`SessionEngine` holds the rows of a whole batch, which generate together; a
:class:`RequestEngine` takes single requests at any time and answers each by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True, slots=True)
class Generated:
    """One reply: sampled ids (end token included if it was sampled), their log-probabilities, and how it ended."""

    token_ids: list[int]
    logprobs: list[float]
    ended: bool
    """True if the end token was sampled, False if the limit cut the reply."""
    weight_version: int | None = None
    """Number of the update whose weights sampled all of it; None where the engine was not told."""


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


class SessionEngine(Protocol):
    """Holds weights; ``tokens_fed`` and ``tokens_generated`` count its work."""

    tokens_fed: int
    tokens_generated: int

    def session(self, row_count: int, temperature: float = 1.0) -> Session:
        """Begin a batch of ``row_count`` empty rows."""
        ...


class WritingSessionEngine(Protocol):
    """A session engine that also writes texts that are not trained on.

    ``max_positions``: longest question and answer.
    """

    max_positions: int

    def session(self, row_count: int, temperature: float = 1.0, *, top_p: float = 1.0) -> Session:
        """As :meth:`SessionEngine.session`; ``top_p`` below 1 draws from the likeliest tokens with that share."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """All that one reply follows from, but the weights.

    ``token_ids``: everything before the reply. ``affinity``: requests of one name share a beginning, and are best
    answered in one place; it changes no result. ``top_p`` below 1 is for texts that are not trained on.
    """

    token_ids: Sequence[int]
    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    affinity: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and the ids before it as the engine read them."""

    reply: Generated
    prompt_ids: list[int]


@runtime_checkable
class RequestEngine(Protocol):
    """Answers single requests, many at a time. ``concurrency``: how many it takes to be kept busy."""

    tokens_fed: int
    tokens_generated: int
    max_positions: int
    concurrency: int

    def submit(self, request: GenerationRequest) -> Future[Answer]:
        """Ask for one reply. The future raises ModelError; cancelling it ends the work on the request."""
        ...


Engine = SessionEngine | RequestEngine
WritingEngine = WritingSessionEngine | RequestEngine
