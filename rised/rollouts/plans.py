"""An episode before it is played: which task, for which step, under which prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from rised.environments.base import Task
from rised.models.randomness import episode_seed

COHORTS_AT_ONCE = 3
"""Enough to keep engine and environments busy; bounds the environments that are open."""


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """One rollout to be made.

    ``steering_text`` is added to the system prompt (training only, see METHODS). ``paired``: the randomness is the same
    at every step, as in validation, so that what differs between two steps is the policy. ``spare``: its group is begun
    beyond those that the step needs.
    """

    task: Task
    split: str
    step: int
    group_id: str
    rollout_index: int
    run: str
    run_seed: int
    weight_version: int
    steering_text: str = ""
    steering_rubrics: tuple[str, ...] = ()
    paired: bool = False
    spare: bool = False

    @property
    def rollout_id(self) -> str:
        return f"{self.split}-{self.step:06d}-{self.group_id}-{self.rollout_index}"

    @property
    def seed(self) -> int:
        """Seed of the policy's randomness; depends on run seed, split, step, task and rollout index only."""
        task, step = self.task, 0 if self.paired else self.step
        return episode_seed(self.run_seed, self.split, step, task.environment, task.task_id, self.rollout_index)

    @property
    def steering_text_hash(self) -> str:
        """SHA-256 of the steering text; empty without one."""
        return hashlib.sha256(self.steering_text.encode()).hexdigest() if self.steering_text else ""

    def system_prompt(self, instructions: str) -> str:
        """The environment's instructions, then the steering text on lines of its own."""
        return f"{instructions}\n{self.steering_text}" if self.steering_text else instructions


def needed_episodes(plans: Sequence[EpisodePlan]) -> int:
    """How many rollouts are to come of the plans."""
    return sum(not plan.spare for plan in plans)


def cohorts(plans: Sequence[EpisodePlan], cohort_size: int) -> list[list[int]]:
    """Indices of the episodes that advance together: of one environment, at most ``cohort_size``; by environment."""
    by_environment: dict[str, list[int]] = {}
    for slot, plan in enumerate(plans):
        by_environment.setdefault(plan.task.environment, []).append(slot)
    return [
        slots[start : start + cohort_size]
        for slots in by_environment.values()
        for start in range(0, len(slots), cohort_size)
    ]


def share_of(plans: Sequence[EpisodePlan], cohort_size: int, index: int, count: int) -> list[EpisodePlan]:
    """What process ``index`` of ``count`` plays: whole cohorts, so that no batch depends on the number of processes."""
    taken = sorted(slot for cohort in cohorts(plans, cohort_size)[index::count] for slot in cohort)
    return [plans[slot] for slot in taken]
