"""Many episodes at once, in worker processes that may die.

The pool keeps what is needed to build every episode again (task, seed, actions so far). A worker that dies or hangs is
replaced and its episodes are replayed the next time they are used, so a caller sees the same transcript as if
nothing had happened. An episode that is lost three times is given up with a reason: its fault, never a reward of 0.
Results do not depend on the number of workers or on the order in which they answer. The processes themselves are
in ``workerprocess``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

from rised.config import Settings
from rised.environments.base import EnvironmentFault, StepResult, Task
from rised.environments.execution import Execution, Job
from rised.environments.worker import digest
from rised.environments.workerprocess import WorkerDied, WorkerProcess
from rised.records.text import printable

log = logging.getLogger(__name__)

LOSSES_UNTIL_GIVEN_UP = 3
IDLE_DEATHS_UNTIL_ERROR = 5
ENVIRONMENT_ERROR = "environment_error"
"""The ``stop`` of the step result of an episode that was given up."""


@dataclass(frozen=True, slots=True)
class EpisodeFault:
    """Why an episode was given up."""

    environment: str
    task_id: str
    seed: int
    reason: str

    def __str__(self) -> str:
        return f"{self.environment} task {self.task_id!r} (seed {self.seed}): {self.reason}"


@dataclass(slots=True)
class _Episode:
    """All that is needed to build the episode again, and where it lives."""

    task: Task
    seed: int
    worker: int
    actions: list[str] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    losses: int = 0
    done: bool = False
    alive: bool = False
    """Whether the worker holds it; False before the reset and after the worker was lost."""
    fault: EpisodeFault | None = None


class EnvironmentPool:
    """Batched episodes over worker processes.

    A *slot* is the caller's number for one running episode; resetting a slot abandons the episode in it.
    ``timeout_s`` bounds one reset or one step (a replay gets it once for each of its actions); a worker that takes
    longer is killed. ``recycle_after_episodes``: a worker that has begun so many episodes is replaced as soon as it
    holds none (TextWorld leaks). ``plugin_modules`` are imported by the workers to register further environments.
    """

    def __init__(
        self,
        settings_by_environment: Mapping[str, Settings],
        worker_count: int,
        *,
        timeout_s: float = 120.0,
        recycle_after_episodes: int = 2000,
        plugin_modules: Sequence[str] = (),
    ) -> None:
        if worker_count < 1:
            raise ValueError(f"worker_count must be at least 1, got {worker_count}")
        self.timeout_s = timeout_s
        self._recycle_after_episodes = recycle_after_episodes
        self._configuration = {
            "op": "configure",
            "modules": list(plugin_modules),
            "settings": {name: value.model_dump(mode="json") for name, value in settings_by_environment.items()},
        }
        self._episodes: dict[int, _Episode] = {}
        self._homes: dict[tuple[str, str], int] = {}
        self._prompts: dict[str, str] = {}
        self._idle_deaths = 0
        self.faults: list[EpisodeFault] = []
        """Every episode given up so far."""
        self.restarts = 0
        """How often a worker was replaced because it died or hung."""
        self.max_turns: dict[str, int] = {}
        """Each environment's own limit of turns."""
        self.workers = [WorkerProcess() for _ in range(worker_count)]
        try:
            for worker in self.workers:
                with suppress(WorkerDied):
                    worker.send(self._configuration)
            for index, worker in enumerate(self.workers):
                try:
                    self.max_turns = self._answer(worker)
                except WorkerDied:
                    self.replace(index, died=True)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> EnvironmentPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.close()

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self.workers]

    def system_prompt(self, environment: str) -> str:
        """The environment's instructions in its configured style."""
        if environment not in self._configuration["settings"]:
            known = ", ".join(sorted(self._configuration["settings"]))
            raise EnvironmentFault(f"environment {environment!r} is not part of this pool; it has: {known}")
        if environment not in self._prompts:
            self._prompts[environment] = self._ask(0, {"op": "prompt", "environment": environment})
        return self._prompts[environment]

    def reset_many(self, requests: Iterable[tuple[int, Task, int]]) -> dict[int, str | EpisodeFault]:
        """Begin an episode in each slot; returns slot -> first observation, or the fault if it was given up."""
        requests = list(requests)
        self.release([slot for slot, _, _ in requests])
        for slot, task, seed in requests:
            self.place(slot, task, seed)
        return self._run([Job(slot, None) for slot, _, _ in requests])

    def step_many(self, requests: Iterable[tuple[int, str]]) -> dict[int, StepResult]:
        """Execute one action in each slot; a given-up episode answers done with stop ``environment_error``."""
        jobs = [Job(slot, action) for slot, action in requests]
        for job in jobs:
            episode = self._episodes.get(job.slot)
            if episode is None or episode.done or episode.fault:
                state = "holds no episode" if episode is None else "holds an episode that has ended"
                raise EnvironmentFault(f"step in slot {job.slot}, which {state}; reset it first")
        return self._run(jobs)

    def release(self, slots: Iterable[int]) -> None:
        """Forget the episodes of ``slots`` (unknown slots are ignored) and recycle workers that are due."""
        by_worker: dict[int, list[int]] = {}
        for slot in slots:
            index = self.forget(slot)
            if index is not None:
                by_worker.setdefault(index, []).append(slot)
        for index in range(len(self.workers)):
            self.release_on(index, by_worker.get(index, ()))

    # ---- placement

    def _choose_worker(self, task: Task) -> int:
        """The worker that already has this task (its caches are warm) unless that would unbalance the pool."""
        load = [0] * len(self.workers)
        siblings = [0] * len(self.workers)
        for episode in self._episodes.values():
            if episode.task.environment == task.environment and not episode.done:
                load[episode.worker] += 1
                siblings[episode.worker] += episode.task.task_id == task.task_id
        key = (task.environment, task.task_id)
        home = self._homes.get(key)
        if home is not None and (siblings[home] or load[home] - siblings[home] <= min(load)):
            return home
        self._homes[key] = min(range(len(load)), key=lambda index: (load[index], index))
        return self._homes[key]

    # ---- execution

    def execution(self) -> Execution:
        """Jobs that are added while others run; see :meth:`place`."""
        return Execution(self)

    def place(self, slot: int, task: Task, seed: int) -> None:
        """Take up an episode that is to be reset in ``slot``; :meth:`reset_many` does it by itself."""
        if task.environment not in self._configuration["settings"]:
            raise EnvironmentFault(f"task {task.task_id!r}: this pool has no environment {task.environment!r}")
        self._episodes[slot] = _Episode(task, seed, self._choose_worker(task))

    def _run(self, jobs: list[Job]) -> dict[int, Any]:
        results: dict[int, Any] = {}
        with self.execution() as execution:
            execution.add(jobs)
            while not execution.idle:
                results |= execution.wait()
        return {job.slot: results[job.slot] for job in jobs}

    # ---- what the execution asks

    def worker_of(self, slot: int) -> int:
        """Index of the worker of the slot's episode."""
        return self._episodes[slot].worker

    def forget(self, slot: int) -> int | None:
        """Drop a slot's episode; the worker that holds it, if one does."""
        episode = self._episodes.pop(slot, None)
        return episode.worker if episode is not None and episode.alive else None

    def release_on(self, index: int, slots: Sequence[int]) -> None:
        """Have an idle worker forget episodes, and replace it if it is due."""
        if slots:
            self._ask(index, {"op": "release", "slots": list(slots)})
        worker = self.workers[index]
        unused = all(not e.alive for e in self._episodes.values() if e.worker == index)
        if unused and worker.episodes_begun >= self._recycle_after_episodes:
            self.replace(index)

    def send(self, index: int, job: Job) -> bool:
        """Give an idle worker its next job; False if it turned out to be dead and was replaced."""
        episode = self._episodes[job.slot]
        worker = self.workers[index]
        request: dict[str, Any] = {"op": "play", "slot": job.slot}
        replayed = 0
        if not episode.alive:
            replayed = len(episode.actions)
            request |= {"task": asdict(episode.task), "seed": episode.seed, "history": list(episode.actions)}
            worker.episodes_begun += 1
        if job.action is not None:
            request["action"] = job.action
        try:
            worker.send(request)
        except WorkerDied:
            # It died between two requests, so no episode is to blame.
            if not episode.alive:
                self._idle_deaths += 1
                if self._idle_deaths >= IDLE_DEATHS_UNTIL_ERROR:
                    raise EnvironmentFault("environment workers die as soon as they start") from None
            self.replace(index, died=True)
            return False
        worker.deadline = time.monotonic() + self.timeout_s * (1 + replayed)
        return True

    def take_answer(self, job: Job, answer: dict[str, Any], results: dict[int, Any]) -> bool:
        """Book what a worker answered into ``results``; True if the job has to be done again."""
        episode = self._episodes[job.slot]
        self._idle_deaths = 0
        if "error" in answer:
            if answer["in_make"]:
                raise EnvironmentFault(answer["error"] + answer["traceback"])
            log.warning("%s", printable(answer["error"] + answer["traceback"]))
            episode.alive = False
            return self.lose(job, answer["error"], results)
        payload = answer["ok"]
        if "observation" in payload:
            if not episode.observations:
                episode.observations.append(payload["observation"])
            elif payload["digest"] != digest(episode.observations):
                episode.losses = LOSSES_UNTIL_GIVEN_UP
                return self.lose(job, "a replay of the same actions gave other observations", results)
            episode.alive = True
        if job.action is not None:
            result = StepResult(**payload["step"])
            episode.actions.append(job.action)
            episode.observations.append(result.observation)
            episode.done = result.done
            results[job.slot] = result
        else:
            results[job.slot] = episode.observations[0]
        return False

    def lose(self, job: Job, reason: str, results: dict[int, Any]) -> bool:
        """Count a loss of the episode that was running; True: try again, False: it is given up."""
        episode = self._episodes[job.slot]
        episode.losses += 1
        if episode.losses < LOSSES_UNTIL_GIVEN_UP:
            return True
        task = episode.task
        episode.fault = EpisodeFault(task.environment, task.task_id, episode.seed, reason)
        self.faults.append(episode.fault)
        log.error("episode given up: %s", printable(str(episode.fault)))
        if job.action is not None:
            info = {"fault": str(episode.fault)}
            results[job.slot] = StepResult("", True, "", False, stop=ENVIRONMENT_ERROR, info=info)
        else:
            results[job.slot] = episode.fault
        return False

    def replace(self, index: int, died: bool = False) -> None:
        """Start another process in place of worker ``index``; its episodes are replayed when next used."""
        self.restarts += died
        self.workers[index].close()
        for episode in self._episodes.values():
            if episode.worker == index:
                episode.alive = False
        for attempt in range(1, LOSSES_UNTIL_GIVEN_UP + 1):
            self.workers[index] = WorkerProcess()
            try:
                self.workers[index].send(self._configuration)
                self.max_turns = self._answer(self.workers[index])
                return
            except WorkerDied:
                self.workers[index].close()
                if attempt == LOSSES_UNTIL_GIVEN_UP:
                    raise

    def _ask(self, index: int, request: dict[str, Any]) -> Any:
        """The answer of worker ``index`` to a request that concerns no running episode."""
        for attempt in range(1, LOSSES_UNTIL_GIVEN_UP + 1):
            try:
                self.workers[index].send(request)
                return self._answer(self.workers[index])
            except WorkerDied:
                self.replace(index, died=True)
                if attempt == LOSSES_UNTIL_GIVEN_UP:
                    raise

    def _answer(self, worker: WorkerProcess) -> Any:
        """Wait for the answer to a request that concerns no episode."""
        answer = worker.receive(self.timeout_s)
        if "error" in answer:
            raise EnvironmentFault(answer["error"] + answer["traceback"])
        return answer["ok"]
