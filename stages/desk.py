"""What a teacher may ask of the running training: the policy as a writer, the judge's model as a verifier.

Both are asked between the rollouts and the update, so that the writer is the policy that played. The judge's client is
opened by the first question; a run without one needs no server.
"""

from __future__ import annotations

from collections.abc import Sequence

from rised.config import ConfigError
from rised.models.writing import WritingRequest, Written
from rised.records.types import BundleStatus, CreditState, Metric, RubricBundle, Timing
from rised.rubrics.judge_record import JudgeCounters
from rised.rubrics.settings import JudgeSettings, LlmJudgeSettings
from rised.rubrics.verifier_llm import BundleScores, LlmVerifier, Question
from stages.workers import WorkerGroup


class TrainingDesk:
    """Implements ``rised.methods.bundles.base.Desk`` for the driver of a run."""

    def __init__(self, workers: WorkerGroup, judge: JudgeSettings) -> None:
        self._workers, self._judge = workers, judge
        self._verifier: LlmVerifier | None = None
        self._counters: JudgeCounters | None = None
        self._reported: JudgeCounters | None = None

    @property
    def verifier_id(self) -> str:
        return self._verifier.verifier_id if self._verifier is not None else ""

    def write(self, requests: Sequence[WritingRequest]) -> list[list[Written]]:
        return self._workers.write(requests)

    def verify(self, questions: Sequence[Question], prompt: str) -> list[BundleScores]:
        """ConfigError without a judge model; RubricError as :meth:`LlmVerifier.verify` says."""
        if not isinstance(self._judge, LlmJudgeSettings):
            raise ConfigError(
                "the verifier `judge` needs rubrics.judge of type llm; lay a file of configs/judges under it"
            )
        if self._verifier is None:
            self._verifier = LlmVerifier(self._judge, prompt)
        found = self._verifier.verify(questions)
        self._counters = self._verifier.counters
        return found

    def metrics(self, step: int) -> list[Metric]:
        """What the verifier's requests of this step came to; none if it was not asked. Call once a step."""
        self._reported, self._counters = self._counters, None
        counters = self._reported
        if counters is None:
            return []
        counts = ("calls", "retries", "reasks", "cached")
        rows = [Metric(step, f"verifier/{name}", float(getattr(counters, name)), "count") for name in counts]
        tokens = ("prompt_tokens", "completion_tokens")
        return rows + [Metric(step, f"verifier/{name}", float(getattr(counters, name)), "tokens") for name in tokens]

    def timings(self, step: int) -> list[Timing]:
        """Seconds that the verifier took in the step of the last :meth:`metrics`."""
        if self._reported is None:
            return []
        return [Timing(step, "verifier/seconds", self._reported.seconds, "s", self.verifier_id)]


def bundle_metrics(step: int, bundles: Sequence[RubricBundle]) -> list[Metric]:
    """Groups by what became of their credit, bundles by status, and how well the kept ones go with the rewards.

    Every state has its row in every step, so that a zero is seen to be one. None where nothing was studied.
    """
    if not bundles:
        return []
    states = {bundle.group_id: bundle.group_state for bundle in bundles}
    kept = [bundle for bundle in bundles if bundle.chosen]
    rows = [
        Metric(step, f"bundles/groups/{state.value}", float(sum(s is state for s in states.values())), "count")
        for state in CreditState
    ]
    rows += [
        Metric(step, f"bundles/status/{status.value}", float(sum(b.status is status for b in bundles)), "count")
        for status in BundleStatus
    ]
    alignments = [bundle.alignment for bundle in kept if bundle.alignment is not None]
    everyones = [bundle.alignment for bundle in bundles if bundle.alignment is not None]
    sizes = [float(len(bundle.criteria)) for bundle in kept]
    return rows + [
        Metric(step, "bundles/skipped_groups", float(len(states) - len(kept)), "count"),
        Metric(step, "bundles/credit_share", len(kept) / len(states), "fraction"),
        Metric(step, "bundles/chosen_alignment", _mean(alignments), "correlation"),
        Metric(step, "bundles/candidate_alignment", _mean(everyones), "correlation"),
        Metric(step, "bundles/chosen_criteria", _mean(sizes), "count"),
    ]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
