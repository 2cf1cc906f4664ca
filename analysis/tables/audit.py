"""Judges against the rule-based detectors: what they find, miss and invent, and what that does to selection. [ours]

Three tables: by environment over all covered rubrics (``audit``), by rubric (``audit_rubrics``), and what the errors do
to profiles and selected groups (``audit_selections``). The detectors read the environment's own log and are taken for
the truth. Beside the paper's tagger reproducibility (Table 8), which says only whether a judge agrees with itself.

    python -m analysis.tables.audit --runs results/quickstart --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import scale
from analysis.audits import Audits, audits
from analysis.command import run_tables
from analysis.formatting import MISSING, Cell, Group, PrintedTable, number, percent
from analysis.frames import Frames
from analysis.names import environment_name, ordered_environments
from analysis.tables import BuiltTable

TRUTH = "Truth: the rule-based detectors, which read the environment's own log; rubrics without one are not covered."
ROWS = {"covered": "covered rubrics", "all": "all rubrics"}


def build(frames: Frames) -> list[BuiltTable]:
    """The three tables; AnalysisError if no judge was audited."""
    found = audits(frames.experiment)
    pooled = found.pooled()
    notes = [TRUTH, f"Runs: {scale.describe(frames.experiment)}.", *found.gaps, *_self_audit(pooled)]
    return [_by_environment(pooled, notes), _by_rubric(pooled, notes), _selections(found, notes)]


def _self_audit(pooled: pd.DataFrame) -> list[str]:
    rules = "rules" in set(pooled["model"])
    return ["The judge by rules is the detectors: it agrees by construction."] if rules else []


def _judges(frame: pd.DataFrame) -> list[str]:
    return sorted(frame["audited"].unique())


def head_of(frame: pd.DataFrame, judge: str) -> str:
    """Name of the judge's file and its model."""
    return f"{judge} ({frame.loc[frame['audited'] == judge, 'model'].iloc[0]})"


def interval(value: float | None, low: float | None, high: float | None, digits: int = 2) -> str:
    """ "0.81 [0.74, 0.87]"; without an interval the number alone."""
    text = number(value, digits)
    if text == MISSING or pd.isna(low) or pd.isna(high):
        return text
    return f"{text} [{number(low, digits)}, {number(high, digits)}]"


def _numbers(row: pd.Series) -> list[Cell]:
    errors = row["errors"] / row["rollouts"] if row["rollouts"] else None
    cells = [Cell(str(row["rollouts"])), Cell(percent(errors, 1))]
    return cells + [
        Cell(interval(row[name], row[f"{name}_low"], row[f"{name}_high"])) for name in ("precision", "recall", "kappa")
    ]


def _by_environment(pooled: pd.DataFrame, notes: Sequence[str]) -> BuiltTable:
    frame = pooled[pooled["rubric_id"] == ""]
    groups = []
    for judge in _judges(frame):
        own = frame[frame["audited"] == judge].set_index("environment")
        rows = [[Cell(environment_name(e)), *_numbers(own.loc[e])] for e in ordered_environments(own.index)]
        groups.append(Group(head_of(frame, judge), rows))
    more = (
        "Over all covered rubrics of an environment; a tag is found only in its own state. κ: Cohen's, over the three "
    )
    more += "states, its interval from resampled groups."
    printed = PrintedTable(
        name="audit",
        caption="Judges against the rule-based detectors, by environment.",
        columns=["Judge, environment", "Rollouts", "Without tags", "Precision", "Recall", "κ"],
        groups=groups,
        notes=[more, *notes],
    )
    return BuiltTable(printed, frame)


def _by_rubric(pooled: pd.DataFrame, notes: Sequence[str]) -> BuiltTable:
    frame = pooled[pooled["rubric_id"] != ""]
    groups = []
    for judge in _judges(frame):
        for environment in ordered_environments(frame["environment"].unique()):
            own = frame[(frame["audited"] == judge) & (frame["environment"] == environment)]
            shown = own[own[["true_positives", "false_positives", "false_negatives"]].sum(axis=1) > 0]
            rows = []
            for _, row in shown.iterrows():
                true = row["true_positives"] + row["false_negatives"]
                found = row["true_positives"] + row["false_positives"]
                counts = [Cell(str(true)), Cell(str(found))]
                rows.append([Cell(f"{row['rubric_id']} ({row['state']})"), *counts, *_numbers(row)[2:]])
            if rows:
                groups.append(Group(f"{head_of(frame, judge)}, {environment_name(environment)}", rows))
    printed = PrintedTable(
        name="audit_rubrics",
        caption="Judges against the rule-based detectors, by rubric.",
        columns=["Rubric (state)", "True", "Found", "Precision", "Recall", "κ"],
        groups=groups,
        notes=[
            "True: rollouts that show it by the detector; found: by the judge. Rubrics that neither finds are in the "
            "CSV alone. Precision and recall with Wilson's intervals.",
            *notes,
        ],
    )
    return BuiltTable(printed, frame)


def _selections(found: Audits, notes: Sequence[str]) -> BuiltTable:
    frame = found.selections
    groups = []
    for judge in _judges(frame):
        rows = []
        for name, words in ROWS.items():
            own = frame[(frame["audited"] == judge) & (frame["rubrics"] == name)]
            rows.append(
                [
                    Cell(words),
                    Cell(str(len(own))),
                    Cell(percent(own["overlap"].mean())),
                    Cell(percent(own["chance_overlap"].mean())),
                    Cell(number(own["profile_cosine"].mean(), 3)),
                    Cell(percent(own["untagged"].sum() / own["groups"].sum(), 1)),
                ]
            )
        groups.append(Group(head_of(frame, judge), rows))
    printed = PrintedTable(
        name="audit_selections",
        caption="What the judges' errors do to profiles and selections.",
        columns=["Profiles by", "Updates", "Same groups", "By chance", "Profile cosine", "Untagged groups"],
        groups=groups,
        notes=[
            "Same groups: share of the groups selected by the judge's profiles that the detectors' select too, "
            "means over updates. Covered rubrics: the judge's errors alone differ; all rubrics: what it would really "
            "select. By chance: two random selections of that size, environments aside.",
            *notes,
        ],
    )
    return BuiltTable(printed, frame)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "Judges against detectors", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
