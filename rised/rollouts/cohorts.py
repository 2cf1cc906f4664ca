"""Episodes that advance in lock-step, for engines that generate whole batches.

Episodes of one environment are a *cohort*, one batch for the engine and one for the pool; while one cohort waits for
its environments another generates. A cohort's content is decided by the plans alone, so neither timing nor the number
of workers reaches a result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from rised.models.protocols import SessionEngine
from rised.records.types import Rollout
from rised.rollouts.collection import CollectionRequest
from rised.rollouts.episode import Episode
from rised.rollouts.plans import COHORTS_AT_ONCE, EpisodePlan, cohorts
from rised.rollouts.rules import EpisodeRules
from rised.rollouts.settings import RolloutSettings


def collect_in_cohorts(engine: SessionEngine, request: CollectionRequest) -> list[Rollout]:
    """As :func:`rised.rollouts.episodes.collect_rollouts`; ``on_rollout`` is called between two batches."""
    timings = request.timings
    episodes = [Episode(plan, request.settings.max_episode_tokens) for plan in request.plans]
    waiting = [_Cohort(slots, episodes, engine, request) for slots in _in_turn(request.plans, request.settings)]
    waiting.reverse()
    ended: dict[int, Rollout] = {}

    def hand_out(slots: Sequence[int]) -> None:
        for slot in slots:
            ended[slot] = episodes[slot].rollout()
            if request.on_rollout is not None:
                request.on_rollout(ended[slot])

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
                if request.on_progress is not None:
                    request.on_progress(sum(not episode.live for episode in episodes), len(episodes))
    request.pool.release(range(len(episodes)))
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
        engine: SessionEngine,
        request: CollectionRequest,
    ) -> None:
        self.slots = slots
        self._episodes = {slot: episodes[slot] for slot in slots}
        self._pool = request.pool
        self._environment = episodes[slots[0]].plan.task.environment
        self._rules = EpisodeRules(self._environment, request)
        self._row_of = {slot: row for row, slot in enumerate(slots)}
        self._session = engine.session(len(slots), request.settings.temperature)

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
            self._rules.begin(self._episodes[slot], instructions, observation)
        return time.perf_counter() - started

    def generate(self) -> list[tuple[int, str]]:
        """Sample the next reply of every live episode; returns the actions to execute (none: the cohort is over)."""
        limits = {slot: self._rules.reply_limit(self._episodes[slot]) for slot in self._live}
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
            seen = self._session.token_ids(self._row_of[slot])
            text = self._rules.take_reply(self._episodes[slot], reply, limits[slot], seen)
            if text is not None:
                actions.append((slot, text))
        return actions

    def step(self, actions: list[tuple[int, str]]) -> float:
        """Execute the actions and append what the environment answered; returns the seconds it took."""
        started = time.perf_counter()
        results = self._pool.step_many(actions)
        for slot, _ in actions:
            self._rules.take_result(self._episodes[slot], results[slot])
        self.release()
        return time.perf_counter() - started

    def release(self) -> None:
        """Give the environments of ended episodes back; in the environment thread."""
        self._pool.release(self.ended)
