"""The pass rate: one definition for the loop's metrics, the tables and the report's check.

Rollouts of one environment at one step are given as pairs of task and outcome (1.0 passed, 0.0 failed; None: the
environment lost the episode). The same mean is used for rewards and for what an environment measures.
"""

from __future__ import annotations

from collections.abc import Iterable

Valued = Iterable[tuple[str, float | None]]
"""(task id, value of one rollout), None for a rollout without a value."""

LOWEST_COVERAGE = 0.98
"""Share of valid episodes below which a rate is printed with its strict variant and is not ranked [ours]."""


def task_means(values: Valued) -> dict[str, float]:
    """Each task's mean over its rollouts with a value, tasks in order of appearance; a task without one is absent."""
    return {task: sum(found) / len(found) for task, found in _by_task(values).items()}


def mean_over_tasks(values: Valued) -> float | None:
    """The mean over tasks of each task's mean [paper]; None when no rollout has a value.

    A task weighs the same however many of its rollouts are valid. Where all tasks have equally many, this is the mean
    over rollouts and is computed as such, so that rounding does not depend on the grouping.
    """
    known = [(task, value) for task, value in values if value is not None]
    by_task = list(_by_task(known).values())
    if not by_task:
        return None
    if len({len(found) for found in by_task}) == 1:
        return sum(value for _, value in known) / len(known)
    return sum(sum(found) / len(found) for found in by_task) / len(by_task)


def strict(values: Valued) -> list[tuple[str, float | None]]:
    """The same rollouts with lost episodes counted as failures."""
    return [(task, 0.0 if value is None else value) for task, value in values]


def _by_task(values: Valued) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for task, value in values:
        if value is not None:
            found.setdefault(task, []).append(value)
    return found
