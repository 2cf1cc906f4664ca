"""Table 8: what of the similarity signals is the tagger's? The same rollouts tagged twice.

Per signal: Pearson correlation and mean absolute difference of its values over the pairs of checkpoint and
environment, the pooled Spearman correlation with the improvement by either run of the tagger, and the larger of the two
differences between them. A judge by rules agrees with itself exactly.

    python -m analysis.tables.table8 --runs results/webshop_only --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis import AnalysisError, published, scale
from analysis.command import run_tables
from analysis.correlation import Correlation, correlate
from analysis.formatting import MISSING, Cell, Group, PrintedTable, number
from analysis.frames import Frames
from analysis.names import environment_name, method_name, ordered_methods
from analysis.tables import BuiltTable
from analysis.transfer import Transfer, transfer
from analysis.transfer_tables import HEADS, PUBLISHED_HEAD, ROWS, correlation_of

FEATURES = {
    "rubric_all": "rubric_all",
    "rubric_violates": "rubric_neg",
    "rubric_demonstrates": "rubric_pos",
    "skill_all": "skill_all",
    "skill_violates": "skill_neg",
    "skill_demonstrates": "skill_pos",
}
"""The paper's name of a signal -> ours. It prints all but the last."""
NUMBERS = [
    "signal_pearson_r",
    "mean_abs_difference",
    *[f"{row}_rho_run{run}" for row in ROWS for run in (1, 2)],
    "max_abs_delta_rho",
]
DIGITS = (4, 4, 3, 3, 3, 3, 3)


def build(frames: Frames) -> list[BuiltTable]:
    """``table8``; AnalysisError if no run was tagged a second time."""
    first, second = transfer(frames), transfer(frames, second=True)
    lacking = second.absent.get("rubric_all")
    if lacking:
        raise AnalysisError(f"{frames.experiment.path}: {lacking}")
    paper = published.load("rised_table8_tagger_reproducibility").rename(columns={"feature": "signal"})
    frame = pd.concat(
        [paper.assign(source=scale.PUBLISHED, method=None, status="ok"), own_rows(first, second)], ignore_index=True
    )
    frame = frame[["source", "method", "signal", *NUMBERS, "status"]]
    groups = [_group(PUBLISHED_HEAD, frame[frame["source"] == scale.PUBLISHED])]
    for method in ordered_methods(first.pairs["method"].unique()):
        head = f"{method_name(method)}; {scale.describe(frames.experiment)}"
        groups.append(_group(head, frame[frame["method"] == method]))
    judges = {str(run.header.get("judge", "")) for run in frames.experiment.runs}
    by_rules = ["The judge decides by rules: two runs of it agree by construction."] * all(
        judge.startswith("rules-") for judge in judges
    )
    undefined = frame[frame["status"] != "ok"]
    printed = PrintedTable(
        name="table8",
        caption="Table 8. Tagger reproducibility: the same rollouts tagged twice.",
        columns=["Feature", "r", "mean |Δ|", "Held-out ρ 1", "ρ 2", "All env. ρ 1", "ρ 2", "max |Δρ|"],
        groups=groups,
        notes=[
            f"Trained on {environment_name(first.training_environment)} alone. r and mean |Δ|: of the signal over the "
            "pairs of checkpoint and environment; ρ: Spearman with the improvement, by the first and the second tags. "
            f"{MISSING}: undefined, or not printed by the paper.",
            *by_rules,
            *[f"{HEADS[FEATURES[row['signal']]]}: {row['status']}" for row in undefined.to_dict("records")],
            *[f"{gap}; not in this table" for gap in frames.experiment.gaps()],
        ],
    )
    return [BuiltTable(printed, frame)]


def own_rows(first: Transfer, second: Transfer) -> pd.DataFrame:
    """One row per method and feature; NaN, with the reason in ``status``, where a correlation is undefined."""
    records = []
    for method in ordered_methods(first.pairs["method"].unique()):
        for feature, signal in FEATURES.items():
            one, two = (t.pairs.loc[t.pairs["method"] == method, signal].to_numpy(np.float64) for t in (first, second))
            agreement = correlate(one.tolist(), two.tolist())
            differences = np.abs(one - two)[np.isfinite(one) & np.isfinite(two)]
            found = [correlation_of(t, method, row, signal) for row in ROWS for t in (first, second)]
            rhos = [np.nan if c.spearman is None else c.spearman for c in found]
            changes = [abs(rhos[i] - rhos[i + 1]) for i in (0, 2)]
            record: dict[str, object] = dict(
                zip(
                    NUMBERS,
                    [
                        np.nan if agreement.pearson is None else agreement.pearson,
                        float(differences.mean()) if differences.size else np.nan,
                        *rhos,
                        np.nan if np.isnan(changes).all() else float(np.nanmax(changes)),
                    ],
                    strict=True,
                )
            )
            reasons = _reasons(agreement, found)
            records.append(
                {"source": scale.OURS, "method": method, "signal": feature, **record, "status": reasons or "ok"}
            )
    return pd.DataFrame(records)


def _reasons(agreement: Correlation, found: Sequence[Correlation]) -> str:
    """Why what is undefined is so: "r undefined (constant); Held-out ρ 2 undefined (n < 3)"."""
    names = ["r", *[f"{words} ρ {run}" for words in ROWS.values() for run in (1, 2)]]
    return "; ".join(
        f"{name} undefined ({result.reason})"
        for name, result in zip(names, [agreement, *found], strict=True)
        if result.reason
    )


def _group(head: str, rows: pd.DataFrame) -> Group:
    return Group(
        head,
        [
            [
                Cell(HEADS[FEATURES[row["signal"]]]),
                *[Cell(number(row[name], digits)) for name, digits in zip(NUMBERS, DIGITS, strict=True)],
            ]
            for row in rows.to_dict("records")
        ],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "Table 8: tagger reproducibility", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
