"""What a judge leaves beside its tags: raw replies, and what they cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from rised.records.types import JudgeReply, Metric, TagStatus, Timing


@dataclass(slots=True)
class JudgeCounters:
    """Sums over the rollouts judged.

    ``calls``: requests that reached a server; ``retries``: those beyond a rollout's first after a failure of the
    server; ``reasks``: those after an unreadable reply. ``cached``: rollouts for which no request was made, an equal
    question having been answered; tokens are those of requests. ``seconds``: wall clock from the first rollout handed
    over to the last tag, not of single calls.
    """

    calls: int = 0
    retries: int = 0
    reasks: int = 0
    cached: int = 0
    shortened: int = 0
    dropped_evidence: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    statuses: Counter[TagStatus] = field(default_factory=Counter)

    def add(self, other: JudgeCounters) -> None:
        """Add what another process counted at the same time."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seconds = max(self.seconds, other.seconds)
        self.statuses.update(other.statuses)


_SUMMED = tuple(f.name for f in fields(JudgeCounters) if f.name not in ("seconds", "statuses"))


@dataclass(slots=True)
class JudgeRecord:
    """Everything since the last batch began; empty for a judge that asks nobody.

    ``after_batch_s``: for rollouts that were judged while others were played, an estimate of the seconds that judging
    would have taken after the last of them.
    """

    replies: list[JudgeReply] = field(default_factory=list)
    counters: JudgeCounters = field(default_factory=JudgeCounters)
    after_batch_s: float | None = None

    def metrics(self, step: int) -> list[Metric]:
        """Counts of one step; none if nobody was asked."""
        if not self.replies:
            return []
        c = self.counters
        rows = [
            Metric(step, "judge/calls", float(c.calls), "count"),
            Metric(step, "judge/retries", float(c.retries), "count"),
            Metric(step, "judge/reasks", float(c.reasks), "count"),
            Metric(step, "judge/cached", float(c.cached), "count"),
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
        if not self.replies:
            return []
        rows = [Timing(step, "judge/tag", self.counters.seconds, "s", judge)]
        if self.after_batch_s is not None:
            rows.append(Timing(step, "judge/tag_after_batch", self.after_batch_s, "s", judge))
        return rows
