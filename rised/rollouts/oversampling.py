"""More groups than a step needs are begun; those that are not complete when enough are, are given up.

Which groups come first depends on timing, and groups of short episodes come first more often: the price of not waiting
for the slowest. A process needs as many of its groups as it has plans that are not spare, in each environment.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from rised.records.types import Rollout
from rised.rollouts.plans import EpisodePlan


def is_spare(place: int, needed: int, spare: int) -> bool:
    """Whether the group at ``place`` of ``needed + spare`` is a spare one; they are spread evenly."""
    begun = needed + spare
    return (place + 1) * spare // begun > place * spare // begun


class FirstComplete:
    """Hears of rollouts as they end, and tells which others nobody needs any more. Groups are whole in ``plans``."""

    def __init__(self, plans: Sequence[EpisodePlan]) -> None:
        self._missing = Counter(plan.group_id for plan in plans)
        self._ids: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        needed: dict[str, set[str]] = defaultdict(set)
        for plan in plans:
            self._ids[plan.task.environment][plan.group_id].append(plan.rollout_id)
            if not plan.spare:
                needed[plan.task.environment].add(plan.group_id)
        self._needed = {environment: len(groups) for environment, groups in needed.items()}
        self._complete: dict[str, set[str]] = defaultdict(set)

    def __call__(self, rollout: Rollout) -> list[str]:
        """Ids of the rollouts that are not needed now that this one has ended."""
        self._missing[rollout.group_id] -= 1
        if self._missing[rollout.group_id]:
            return []
        complete = self._complete[rollout.environment]
        complete.add(rollout.group_id)
        if len(complete) < self._needed[rollout.environment]:
            return []
        groups = self._ids[rollout.environment]
        return [rollout_id for group, ids in groups.items() if group not in complete for rollout_id in ids]

    def wants(self, plan: EpisodePlan) -> bool:
        """Whether it is to be begun: not in an environment all of whose groups are spare here."""
        return plan.task.environment in self._needed

    def needs(self, rollout: Rollout) -> bool:
        """Whether its group is complete. To be asked once all has ended."""
        return rollout.group_id in self._complete[rollout.environment]
