"""What a judge leaves beside its tags: raw replies, and what they cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rised.records.types import JudgeReply, Metric, TagStatus, Timing


@dataclass(slots=True)
class JudgeCounters:
    """Sums over the rollouts judged.

    ``calls``: requests that reached a server; ``retries``: those beyond a rollout's first after a failure of the
    server; ``reasks``: those after an unreadable reply. ``seconds``: wall clock of ``tag``, not of single calls.
    """

    calls: int = 0
    retries: int = 0
    reasks: int = 0
    shortened: int = 0
    dropped_evidence: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    statuses: Counter[TagStatus] = field(default_factory=Counter)


@dataclass(slots=True)
class JudgeRecord:
    """Everything since the last call of ``tag`` began; empty for a judge that asks nobody."""

    replies: list[JudgeReply] = field(default_factory=list)
    counters: JudgeCounters = field(default_factory=JudgeCounters)

    def metrics(self, step: int) -> list[Metric]:
        """Counts of one step; none if nobody was asked."""
        if not self.replies:
            return []
        c = self.counters
        rows = [
            Metric(step, "judge/calls", float(c.calls), "count"),
            Metric(step, "judge/retries", float(c.retries), "count"),
            Metric(step, "judge/reasks", float(c.reasks), "count"),
            Metric(step, "judge/shortened", float(c.shortened), "count"),
            Metric(step, "judge/dropped_evidence", float(c.dropped_evidence), "count"),
            Metric(step, "judge/prompt_tokens", float(c.prompt_tokens), "tokens"),
            Metric(step, "judge/completion_tokens", float(c.completion_tokens), "tokens"),
        ]
        return rows + [
            Metric(step, f"judge/rollouts/{status.value}", float(c.statuses[status]), "count") for status in TagStatus
        ]

    def timings(self, step: int, judge: str) -> list[Timing]:
        """Seconds of one step; none if nobody was asked."""
        return [Timing(step, "judge/tag", self.counters.seconds, "s", judge)] if self.replies else []
