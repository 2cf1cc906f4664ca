"""Episodes that go on by themselves, for engines that take single requests.

As soon as an environment has answered, the episode's next reply is asked for; nobody waits for another episode. One
thread does it all: it waits for environments and replies together. An episode's content follows from its plan and the
engine's replies, whatever the order in which they come; only the last bits of a log-probability depend on what was
computed beside it.
"""

from __future__ import annotations

import os
import queue
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress

from rised.environments.execution import Job
from rised.environments.pool import EpisodeFault
from rised.models.protocols import Answer, GenerationRequest, RequestEngine
from rised.models.randomness import reply_seed
from rised.records.types import Rollout
from rised.rollouts.collection import Cancelled, Collection, CollectionRequest, Superfluous
from rised.rollouts.episode import Episode
from rised.rollouts.rules import EpisodeRules


def collect_continuously(
    engine: RequestEngine, request: CollectionRequest, superfluous: Superfluous | None = None
) -> Collection:
    """As :func:`rised.rollouts.episodes.collect_rollouts`; ``superfluous`` may end episodes before their time."""
    return _Continuous(engine, request, superfluous).collect()


class _Continuous:
    """The episodes of one collection; ``slots`` index plans, episodes and the pool's slots."""

    def __init__(self, engine: RequestEngine, request: CollectionRequest, superfluous: Superfluous | None) -> None:
        plans, pool, settings = request.plans, request.pool, request.settings
        self._engine, self._request, self._superfluous = engine, request, superfluous
        self._episodes = [Episode(plan, settings.max_episode_tokens) for plan in plans]
        self._slot_of = {plan.rollout_id: slot for slot, plan in enumerate(plans)}
        environments = dict.fromkeys(plan.task.environment for plan in plans)
        self._rules = {name: EpisodeRules(name, request) for name in environments}
        self._instructions = {name: pool.system_prompt(name) for name in environments}
        self._waiting = deque(range(len(plans)))
        self._in_environment: set[int] = set()
        self._in_engine: dict[int, tuple[Future[Answer], int]] = {}
        self._rollouts: dict[int, Rollout] = {}
        self._cancelled: dict[int, Cancelled] = {}
        self._dropped: list[Future[Answer]] = []
        self._replies: queue.SimpleQueue[int] = queue.SimpleQueue()

    def collect(self) -> Collection:
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        try:
            with self._request.pool.execution() as self._environments:
                self._admit()
                while self._in_environment or self._in_engine:
                    self._advance()
                while not self._environments.idle:
                    self._environments.wait()
        finally:
            for slot in list(self._in_engine):
                self._drop(slot)
            while not all(future.done() for future in self._dropped):
                time.sleep(0.001)  # no note may be written into a pipe that is closed
            os.close(self._wake)
            os.close(self._waker)
        self._request.pool.release(range(len(self._episodes)))
        return Collection(
            [self._rollouts[slot] for slot in sorted(self._rollouts)],
            [self._cancelled[slot] for slot in sorted(self._cancelled)],
        )

    def _admit(self) -> None:
        """Begin episodes, in the order of the plans, as long as the engine has room."""
        while self._waiting and len(self._in_environment) + len(self._in_engine) < self._engine.concurrency:
            slot = self._waiting.popleft()
            task = self._episodes[slot].plan.task
            self._request.pool.place(slot, task, task.seed)
            self._in_environment.add(slot)
            self._environments.add([Job(slot, None)])

    def _advance(self) -> None:
        """Wait for environments or replies, and let those episodes go on."""
        timings, started = self._request.timings, time.perf_counter()
        generating, in_environment = bool(self._in_engine), bool(self._in_environment)
        answers = self._environments.wait(self._wake)
        took = time.perf_counter() - started
        timings.generation_s += took * generating
        timings.environment_s += took * in_environment
        timings.environment_wait_s += took * (not generating)
        finished = len(self._rollouts)
        for slot, answer in answers.items():
            self._in_environment.discard(slot)
            self._environment_answered(slot, answer)
        for slot in self._arrived():
            if slot in self._in_engine:
                self._replied(slot, *self._in_engine.pop(slot))
        self._admit()
        on_progress = self._request.on_progress
        if on_progress is not None and len(self._rollouts) > finished:
            on_progress(len(self._rollouts) + len(self._cancelled), len(self._episodes))

    def _environment_answered(self, slot: int, answer: object) -> None:
        episode = self._episodes[slot]
        if slot in self._cancelled:
            self._environments.release(slot)
            return
        name = episode.plan.task.environment
        if isinstance(answer, str | EpisodeFault):
            self._rules[name].begin(episode, self._instructions[name], answer)
        else:
            self._rules[name].take_result(episode, answer)  # type: ignore[arg-type]
        limit = self._rules[name].reply_limit(episode) if episode.live else 0
        if not episode.live:
            self._end(slot)
            return
        request = GenerationRequest(
            token_ids=tuple(episode.token_ids),
            max_new_tokens=limit,
            seed=reply_seed(episode.plan.seed, len(episode.turns)),
            temperature=self._request.settings.temperature,
            affinity=episode.plan.group_id,
        )
        future = self._engine.submit(request)
        self._in_engine[slot] = (future, limit)
        future.add_done_callback(lambda _: self._note(slot))

    def _replied(self, slot: int, future: Future[Answer], limit: int) -> None:
        answer, episode = future.result(), self._episodes[slot]
        rules = self._rules[episode.plan.task.environment]
        seen = [*answer.prompt_ids, *answer.reply.token_ids]
        action = rules.take_reply(episode, answer.reply, limit, seen)
        if action is None:
            self._end(slot)
        else:
            self._in_environment.add(slot)
            self._environments.add([Job(slot, action)])

    def _end(self, slot: int) -> None:
        """Hand the rollout out, give its environment back, and drop what is superfluous with it."""
        rollout = self._rollouts[slot] = self._episodes[slot].rollout()
        self._environments.release(slot)
        if self._request.on_rollout is not None:
            self._request.on_rollout(rollout)
        for rollout_id in self._superfluous(rollout) if self._superfluous else ():
            self._cancel(self._slot_of[rollout_id])

    def _cancel(self, slot: int) -> None:
        if slot in self._rollouts or slot in self._cancelled:
            return
        episode = self._episodes[slot]
        self._cancelled[slot] = Cancelled(episode.plan, len(episode.turns), len(episode.logprobs))
        if slot in self._waiting:
            self._waiting.remove(slot)
        elif slot in self._in_engine:
            self._drop(slot)
            self._environments.release(slot)
        # in an environment: given back when that has answered

    # -- replies come in another thread

    def _note(self, slot: int) -> None:
        self._replies.put(slot)
        with suppress(BlockingIOError):  # full of notes already: it will wake
            os.write(self._waker, b"x")

    def _arrived(self) -> list[int]:
        with suppress(BlockingIOError):
            os.read(self._wake, 1 << 16)
        slots = []
        while not self._replies.empty():
            slots.append(self._replies.get())
        return sorted(slots)

    def _drop(self, slot: int) -> None:
        future, _ = self._in_engine.pop(slot)
        future.cancel()
        self._dropped.append(future)
