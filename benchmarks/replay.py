"""Episodes once played, to be played again without their environments or without their model.

A recording holds what the environments answered and what the policy said. With the one, the episode loop runs the real
engine against environments that cost nothing; with both, everything of a step is real but the waiting, which a model of
latencies provides. A reply is found again by the first uniform that it was drawn with, which belongs to one episode and
one of its turns; an answer of an environment by its task and the actions so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rised.environments.base import StepResult, Task
from rised.environments.pool import EpisodeFault
from rised.models.protocols import Generated, Session, SessionEngine

Actions = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a session's ``generate``; sessions are numbered in the order of their opening."""

    session: int
    rows: tuple[int, ...]
    new_ids: tuple[tuple[int, ...], ...]
    max_new_tokens: tuple[int, ...]
    uniforms: tuple[np.ndarray, ...]


@dataclass
class Recording:
    """What was asked and answered."""

    sessions: list[tuple[int, float]] = field(default_factory=list)
    """Rows and temperature of each session."""
    requests: list[Request] = field(default_factory=list)
    replies: dict[float, Generated] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    max_turns: dict[str, int] = field(default_factory=dict)
    observations: dict[tuple[str, str], str] = field(default_factory=dict)
    results: dict[tuple[str, str, Actions], StepResult] = field(default_factory=dict)


class RecordingEngine:
    """An engine that also writes down what it is asked and what it answers."""

    def __init__(self, engine: SessionEngine, recording: Recording) -> None:
        self._engine, self._recording = engine, recording
        self.tokens_fed = self.tokens_generated = 0

    def session(self, row_count: int, temperature: float = 1.0) -> _RecordingSession:
        self._recording.sessions.append((row_count, temperature))
        session = self._engine.session(row_count, temperature)
        return _RecordingSession(session, len(self._recording.sessions) - 1, self._recording)


class _RecordingSession:
    def __init__(self, session: Session, number: int, recording: Recording) -> None:
        self._session, self._number, self._recording = session, number, recording

    def token_ids(self, row: int) -> list[int]:
        return self._session.token_ids(row)

    def generate(
        self,
        rows: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        max_new_tokens: Sequence[int],
        uniforms: Sequence[np.ndarray],
    ) -> list[Generated]:
        asked = tuple(map(tuple, new_ids))
        self._recording.requests.append(
            Request(self._number, tuple(rows), asked, tuple(max_new_tokens), tuple(uniforms))
        )
        replies = self._session.generate(rows, new_ids, max_new_tokens, uniforms)
        for draws, reply in zip(uniforms, replies, strict=True):
            self._recording.replies[float(draws[0])] = reply
        return replies


class RecordingPool:
    """A pool that also writes down what the environments answer."""

    def __init__(self, pool: Any, recording: Recording) -> None:
        self._pool, self._recording = pool, recording
        self._actions: dict[int, tuple[Task, Actions]] = {}
        self.max_turns: dict[str, int] = pool.max_turns
        recording.max_turns |= pool.max_turns

    def system_prompt(self, environment: str) -> str:
        return self._recording.prompts.setdefault(environment, self._pool.system_prompt(environment))

    def reset_many(self, requests: Iterable[tuple[int, Task, int]]) -> dict[int, str | EpisodeFault]:
        requests = list(requests)
        found: dict[int, str | EpisodeFault] = self._pool.reset_many(requests)
        for slot, task, _ in requests:
            observation = found[slot]
            if isinstance(observation, EpisodeFault):
                raise RuntimeError(f"an episode that failed cannot be recorded: {observation}")
            self._actions[slot] = (task, ())
            self._recording.observations[task.environment, task.task_id] = observation
        return found

    def step_many(self, requests: Iterable[tuple[int, str]]) -> dict[int, StepResult]:
        requests = list(requests)
        found: dict[int, StepResult] = self._pool.step_many(requests)
        for slot, action in requests:
            task, before = self._actions[slot]
            self._actions[slot] = (task, (*before, action))
            self._recording.results[task.environment, task.task_id, (*before, action)] = found[slot]
        return found

    def release(self, slots: Iterable[int]) -> None:
        self._pool.release(slots)


class ReplayPool:
    """Environments that answer as recorded and cost a look-up."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._actions: dict[int, tuple[Task, Actions]] = {}
        self.max_turns = recording.max_turns

    def system_prompt(self, environment: str) -> str:
        return self._recording.prompts[environment]

    def reset_many(self, requests: Iterable[tuple[int, Task, int]]) -> dict[int, str | EpisodeFault]:
        found: dict[int, str | EpisodeFault] = {}
        for slot, task, _ in requests:
            self._actions[slot] = (task, ())
            found[slot] = self._recording.observations[task.environment, task.task_id]
        return found

    def step_many(self, requests: Iterable[tuple[int, str]]) -> dict[int, StepResult]:
        found = {}
        for slot, action in requests:
            task, before = self._actions[slot]
            self._actions[slot] = (task, (*before, action))
            found[slot] = self._recording.results[task.environment, task.task_id, (*before, action)]
        return found

    def release(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._actions.pop(slot, None)


class ReplayEngine:
    """Says again what was recorded. ``wait`` is called with a batch's tokens before they are given."""

    def __init__(self, recording: Recording, wait: Callable[[int], None]) -> None:
        self.recording, self.wait = recording, wait
        self.tokens_fed = self.tokens_generated = 0

    def session(self, row_count: int, temperature: float = 1.0, **_: Any) -> _ReplaySession:
        return _ReplaySession(self, row_count)

    def load_weights(self, source: object, weight_version: int | None = None) -> None:
        """There are none."""


class _ReplaySession:
    def __init__(self, engine: ReplayEngine, row_count: int) -> None:
        self._engine = engine
        self._ids: list[list[int]] = [[] for _ in range(row_count)]

    def token_ids(self, row: int) -> list[int]:
        return self._ids[row]

    def generate(
        self,
        rows: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        max_new_tokens: Sequence[int],
        uniforms: Sequence[np.ndarray],
    ) -> list[Generated]:
        engine, replies = self._engine, []
        for row, new, limit, draws in zip(rows, new_ids, max_new_tokens, uniforms, strict=True):
            reply = engine.recording.replies[float(draws[0])]
            if len(reply.token_ids) > limit:
                reply = Generated(reply.token_ids[:limit], reply.logprobs[:limit], False)
            self._ids[row] += [*new, *reply.token_ids]
            engine.tokens_fed += len(new)
            replies.append(reply)
        count = sum(len(reply.token_ids) for reply in replies)
        engine.tokens_generated += count
        engine.wait(count)
        return replies
