"""The episode loop: plans in, rollouts out.

Episodes of one environment advance in lock-step as a *cohort*, one batch for the engine and one for the pool; while
one cohort waits for its environments another generates. A cohort's content is decided by the plans alone, so neither
timing nor the number of workers reaches a result. Times are kept apart from the rollouts, which are reproducible.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from rised.environments.pool import EnvironmentPool, EpisodeFault
from rised.models.protocols import Engine
from rised.models.rendering import ChatRendering
from rised.records.types import Rollout, StopReason
from rised.rollouts.episode import Episode
from rised.rollouts.plans import EpisodePlan, cohorts
from rised.rollouts.settings import RolloutSettings

COHORTS_AT_ONCE = 3
"""Enough to keep engine and environments busy; bounds the environments that are open."""

Progress = Callable[[int, int], None]
"""Called with the number of finished episodes and of all."""

OnRollout = Callable[[Rollout], None]
"""Called with each rollout once, soon after its episode ends; in an order that depends on timing."""


@dataclass
class CollectTimings:
    """What a collection cost. ``environment_wait_s`` is the time in which nothing was generated."""

    wall_s: float = 0.0
    generation_s: float = 0.0
    environment_s: float = 0.0
    environment_wait_s: float = 0.0
    tokens_fed: int = 0
    tokens_generated: int = 0


def collect(
    plans: Sequence[EpisodePlan],
    engine: Engine,
    rendering: ChatRendering,
    pool: EnvironmentPool,
    settings: RolloutSettings,
    on_progress: Progress | None = None,
    timings: CollectTimings | None = None,
    on_rollout: OnRollout | None = None,
) -> list[Rollout]:
    """Play every plan to its end; one rollout per plan, in the order of ``plans``, whatever goes wrong in between.

    ``on_rollout`` is called between two batches and should return at once; what it raises ends the collection.

    Reward and success are the environment's. Running out of turns is a failure by the benchmarks' rules (reward 0);
    running out of the token budget is ours and leaves the reward invalid (success False), as do environment errors and
    prefix violations (success None).
    """
    timings = timings if timings is not None else CollectTimings()
    begun, fed, generated = time.perf_counter(), engine.tokens_fed, engine.tokens_generated
    episodes = [Episode(plan, settings.max_episode_tokens) for plan in plans]
    waiting = [_Cohort(slots, episodes, engine, rendering, pool, settings) for slots in _in_turn(plans, settings)]
    waiting.reverse()
    ended: dict[int, Rollout] = {}

    def hand_out(slots: Sequence[int]) -> None:
        for slot in slots:
            ended[slot] = episodes[slot].rollout()
            if on_rollout is not None:
                on_rollout(ended[slot])

    in_environment: dict[Future[float], _Cohort] = {}
    with ThreadPoolExecutor(max_workers=1) as environment_thread:
        while waiting or in_environment:
            while waiting and len(in_environment) < COHORTS_AT_ONCE:
                cohort = waiting.pop()
                in_environment[environment_thread.submit(cohort.reset)] = cohort
            started = time.perf_counter()
            done, _ = wait(in_environment, return_when=FIRST_COMPLETED)
            timings.environment_wait_s += time.perf_counter() - started
            for future in sorted(done, key=lambda future: in_environment[future].slots[0]):
                cohort = in_environment.pop(future)
                timings.environment_s += future.result()
                hand_out([slot for slot in cohort.ended if slot not in ended])
                started = time.perf_counter()
                actions = cohort.generate()
                timings.generation_s += time.perf_counter() - started
                cut = [slot for slot in cohort.ended if slot not in ended]
                if actions:
                    in_environment[environment_thread.submit(cohort.step, actions)] = cohort
                else:
                    environment_thread.submit(cohort.release)
                hand_out(cut)
                if on_progress is not None:
                    on_progress(sum(not episode.live for episode in episodes), len(episodes))
    pool.release(range(len(episodes)))
    timings.wall_s += time.perf_counter() - begun
    timings.tokens_fed += engine.tokens_fed - fed
    timings.tokens_generated += engine.tokens_generated - generated
    return [ended[slot] for slot in range(len(episodes))]


def _in_turn(plans: Sequence[EpisodePlan], settings: RolloutSettings) -> list[list[int]]:
    """Slots of each cohort, environments taking turns."""
    by_environment: dict[str, list[list[int]]] = {}
    for slots in cohorts(plans, settings.cohort_size):
        by_environment.setdefault(plans[slots[0]].task.environment, []).append(slots)
    parts = list(by_environment.values())
    return [part[i] for i in range(max(map(len, parts), default=0)) for part in parts if i < len(part)]


class _Cohort:
    """Episodes of one environment that advance together. ``slots`` index the episodes and the pool's slots."""

    def __init__(
        self,
        slots: list[int],
        episodes: Sequence[Episode],
        engine: Engine,
        rendering: ChatRendering,
        pool: EnvironmentPool,
        settings: RolloutSettings,
    ) -> None:
        self.slots = slots
        self._episodes = {slot: episodes[slot] for slot in slots}
        self._engine, self._rendering, self._pool, self._settings = engine, rendering, pool, settings
        environment = episodes[slots[0]].plan.task.environment
        self._environment = environment
        self._max_turns = settings.max_turns.get(environment, pool.max_turns[environment])
        self._max_new_tokens = settings.max_new_tokens(environment)
        self._row_of = {slot: row for row, slot in enumerate(slots)}
        self._session = engine.session(len(slots), settings.temperature)

    @property
    def _live(self) -> list[int]:
        return [slot for slot in self.slots if self._episodes[slot].live]

    @property
    def ended(self) -> list[int]:
        """Slots whose episodes are over; to be read while no step of this cohort runs in the environment thread."""
        return [slot for slot in self.slots if not self._episodes[slot].live]

    def reset(self) -> float:
        """Begin all episodes; returns the seconds it took. Runs in the environment thread, as :meth:`step` does."""
        started = time.perf_counter()
        instructions = self._pool.system_prompt(self._environment)
        tasks = [(slot, self._episodes[slot].plan.task) for slot in self.slots]
        observations = self._pool.reset_many([(slot, task, task.seed) for slot, task in tasks])
        for slot, observation in observations.items():
            episode = self._episodes[slot]
            episode.system_prompt = episode.plan.system_prompt(instructions)
            if isinstance(observation, EpisodeFault):
                episode.stop(StopReason.ENVIRONMENT_ERROR)
            else:
                episode.add_prompt(self._rendering.start(episode.system_prompt, observation), observation)
        return time.perf_counter() - started

    def generate(self) -> list[tuple[int, str]]:
        """Sample the next reply of every live episode; returns the actions to execute (none: the cohort is over)."""
        limits = {}
        for slot in self._live:
            episode = self._episodes[slot]
            # One token is kept for the end token that closes a truncated reply.
            limits[slot] = min(self._max_new_tokens, self._settings.max_episode_tokens - len(episode.token_ids) - 1)
            if limits[slot] < 1:
                episode.stop(StopReason.EPISODE_TOKEN_LIMIT, success=False)
        slots = self._live
        if not slots:
            return []
        replies = self._session.generate(
            [self._row_of[slot] for slot in slots],
            [self._episodes[slot].prompt for slot in slots],
            [limits[slot] for slot in slots],
            [self._episodes[slot].next_uniforms(limits[slot]) for slot in slots],
        )
        actions = []
        for slot, reply in zip(slots, replies, strict=True):
            episode = self._episodes[slot]
            end = self._rendering.end_token_id
            text = self._rendering.decode(reply.token_ids[:-1] if reply.ended else reply.token_ids)
            before = len(episode.token_ids)
            episode.add_reply(reply, text, end)
            if self._session.token_ids(self._row_of[slot]) != episode.token_ids[: before + len(reply.token_ids)]:
                episode.add_unexecuted_turn()
                episode.stop(StopReason.PREFIX_VIOLATION)
            elif not reply.ended and limits[slot] < self._max_new_tokens:
                episode.add_unexecuted_turn()
                episode.stop(StopReason.EPISODE_TOKEN_LIMIT, success=False)
            else:
                actions.append((slot, text))
        return actions

    def step(self, actions: list[tuple[int, str]]) -> float:
        """Execute the actions and append what the environment answered; returns the seconds it took."""
        started = time.perf_counter()
        results: dict[int, Any] = self._pool.step_many(actions)
        for slot, _ in actions:
            episode, result = self._episodes[slot], results[slot]
            episode.add_result(result)
            if not episode.live:
                continue
            if len(episode.turns) >= self._max_turns:
                episode.stop(StopReason.TURN_LIMIT, reward=0.0, success=False)
            else:
                episode.add_prompt(self._rendering.extend(result.observation), result.observation)
        self.release()
        return time.perf_counter() - started

    def release(self) -> None:
        """Give the environments of ended episodes back; in the environment thread."""
        self._pool.release(self.ended)
