"""The alarm of a run whose sampler and learner give the same tokens different probabilities.

The measure is the learner's (``sampler_k3``); what it means, and what usually causes it, is in docs/performance.md.
"""

from __future__ import annotations

import sys

from rised.experiment import AgreementSettings
from rised.learner.errors import LearnerError
from rised.learner.measures import SAMPLER_K3
from rised.learner.types import UpdateReport
from rised.records.types import Metric

CAUSES = (
    "precision of the rollouts, temperature or top-p, chat template or tokenizer, weights that were not handed over, "
    "a tied output layer that was not reloaded, padding or position ids, a prefix cache from before the update"
)


class AgreementAlarm:
    """Holds a run's steps against ``settings``."""

    def __init__(self, settings: AgreementSettings) -> None:
        self._settings = settings
        self._in_a_row = 0

    def hear(self, step: int, lag: int, report: UpdateReport) -> list[Metric]:
        """Of a step whose episodes were played ``lag`` updates ago: 1 where it raised the alarm, else 0.

        Nothing trained on is nothing measured, and no alarm. LearnerError when so many steps in a row did that the run
        is to end.
        """
        limit = self._settings.k3_limit_stale if lag else self._settings.k3_limit
        found = next((measure.value for measure in report.metrics if measure.name == SAMPLER_K3), None)
        alarm = limit is not None and found is not None and not found <= limit
        self._in_a_row = self._in_a_row + 1 if alarm else 0
        if alarm:
            message = (
                f"step {step}: sampler and learner are {found:.3g} nats a token apart (limit {limit:g}, played "
                f"{lag} updates ago). Look at: {CAUSES}; see docs/performance.md, Agreement"
            )
            if self._settings.stop_after is not None and self._in_a_row >= self._settings.stop_after:
                raise LearnerError(
                    f"{message}. The run ends after {self._in_a_row} such steps in a row (agreement.stop_after); this "
                    "step is not kept"
                )
            print(f"warning: {message}", file=sys.stderr, flush=True)
        return [Metric(step, "agreement/alarm", float(alarm), "count")]
