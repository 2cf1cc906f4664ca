"""The audits of an experiment's runs as frames: how each judge agrees with the detectors, and what that does.

A run's audits lie in ``audit/<judge>`` (``stages.audit_judge``); unfinished ones are left out, and named. Counts of
several runs are added up, and their shares computed from the sums; of kappa the mean is taken, without an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis import AnalysisError
from analysis.runs import Experiment
from analysis.sources import NotedReader
from rised.records.layout import AUDIT

KEYS = ["audited", "model", "environment", "rubric_id", "state"]
COUNTS = ["rollouts", "errors", "true_positives", "false_positives", "false_negatives", "true_negatives"]
ESTIMATES = [f"{name}{bound}" for name in ("precision", "recall", "kappa") for bound in ("", "_low", "_high")]


@dataclass(frozen=True)
class Audits:
    """``tags``: columns method, seed, ``audited`` (the judge's file) and those of the records, a row a run.
    ``selections`` likewise, a row a run and step. ``gaps``: what was not finished.
    """

    tags: pd.DataFrame
    selections: pd.DataFrame
    gaps: Sequence[str]

    def pooled(self) -> pd.DataFrame:
        """Tags over all runs: one row per judge, environment, rubric and state, in the order of the records."""
        rows = []
        for key, group in self.tags.groupby(KEYS, sort=False):
            if len(group) == 1:
                kept = group.iloc[0]
                rows.append(dict(zip(KEYS, key, strict=True)) | {name: kept[name] for name in [*COUNTS, *ESTIMATES]})
                continue
            sums = {name: int(group[name].sum()) for name in COUNTS}
            estimates: dict[str, float] = dict.fromkeys(ESTIMATES, float("nan"))
            shown, true = (sums["true_positives"] + sums[name] for name in ("false_positives", "false_negatives"))
            estimates["precision"] = sums["true_positives"] / shown if shown else float("nan")
            estimates["recall"] = sums["true_positives"] / true if true else float("nan")
            estimates["kappa"] = float(group["kappa"].mean())
            rows.append(dict(zip(KEYS, key, strict=True)) | sums | estimates)
        frame = pd.DataFrame(rows, columns=[*KEYS, *COUNTS, *ESTIMATES])
        return frame.astype(dict.fromkeys(ESTIMATES, "float64"))


def audits(experiment: Experiment) -> Audits:
    """All finished audits; AnalysisError if there is none."""
    tags: list[pd.DataFrame] = []
    selections: list[pd.DataFrame] = []
    gaps = []
    for run in experiment.runs:
        for folder in sorted((run.path / AUDIT).glob("*/")):
            reader = NotedReader(folder)
            if not reader.done:
                gaps.append(f"{run.label}: the audit of {folder.name} is unfinished")
                continue
            for kind, frames in (("judge_audits", tags), ("selection_audits", selections)):
                frame = reader.scan(kind).to_pandas()
                frames.append(frame.assign(method=run.method, seed=run.seed, audited=folder.name))
    if not tags:
        raise AnalysisError(
            f"{experiment.path}: no judge was compared with the detectors: name judges under `audit`, or run "
            "stages.audit_judge"
        )
    return Audits(pd.concat(tags, ignore_index=True), pd.concat(selections, ignore_index=True), gaps)
