"""Rubric bundles of ORSD: how often they give credit and why not, how well the kept ones go with the rewards, and one
kept beside one rejected bundle, as in ORSD's Table 3.

The paper reports none of the counts [ours]. Of its Table 3 our sources hold the text; what is printed here is ours.

    python -m analysis.tables.orsd_bundles --runs results/laptop_orsd --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow.compute as pc

from analysis import scale
from analysis.command import run_tables
from analysis.formatting import MISSING, Cell, Group, PrintedTable, number, percent
from analysis.frames import Frames
from analysis.names import environment_name, method_name
from analysis.tables import BuiltTable
from rised.records.types import BundleStatus, CreditState

PREFIX = "bundles/groups/"
STATUS = "bundles/status/"
SHARES = {
    CreditState.GIVEN: "Credit given",
    CreditState.CONSTANT_REWARDS: "Rewards equal",
    CreditState.CONSTANT_SATISFACTION: "Satisfied alike",
    CreditState.NO_BUNDLE: "No bundle",
    CreditState.NOT_VERIFIED: "Not verified",
    CreditState.BELOW_TWO_REWARDS: "Fewer than two rewards",
}
"""State of a group -> head of the column with its share."""
MEANS: dict[str, tuple[str, int | str]] = {
    "bundles/chosen_alignment": ("Spearman, kept", 3),
    "bundles/candidate_alignment": ("Spearman, all", 3),
    "method/corrected_token_share": ("Tokens corrected", "0%"),
    "rl/absolute_gap": ("Mean |Δ|, nats", 3),
    "rl/correction_share": ("Share of |A|", "2%"),
}
"""Metric -> head and digits ("2%": of a percentage); means over the updates in which it is defined."""


def build(frames: Frames) -> list[BuiltTable]:
    """``orsd_bundles`` and ``orsd_bundle_example``."""
    return [counts_table(frames), example_table(frames)]


def counts_table(frames: Frames) -> BuiltTable:
    rows = [_counts(frames, method) for method in frames.experiment.methods]
    frame = pd.DataFrame([row for row in rows if row is not None])
    frame = frame.reindex(columns=["method", "updates", "groups", *SHARES, *MEANS])
    printed_rows = [
        [
            Cell(method_name(str(row["method"]))),
            Cell(str(int(row["groups"]))),
            *[Cell(percent(row[state])) for state in SHARES],
            *[Cell(_text(row[metric], digits)) for metric, (_, digits) in MEANS.items()],
        ]
        for row in frame.to_dict("records")
    ]
    if not printed_rows:
        printed_rows = [[Cell("no run with rubric bundles"), *[Cell(MISSING)] * (1 + len(SHARES) + len(MEANS))]]
    printed = PrintedTable(
        name="orsd_bundles",
        caption="Rubric bundles: studied groups, the share of them by what became of their token credit, and what the "
        "credit amounts to.",
        columns=["Method", "Groups", *SHARES.values(), *[head for head, _ in MEANS.values()]],
        groups=[Group(scale.describe(frames.experiment), printed_rows)],
        notes=[
            "Spearman: of a bundle's mean scores and the training rewards, mean over bundles for which it is defined; "
            "variants without a verifier have none.",
            "Share of |A|: |α Δ| / (|A| + |α Δ|), mean over corrected tokens whose update was made with the model.",
            "Means over updates, runs that are not finished among them.",
            *[note for method in frames.experiment.methods if (note := _failures(frames, method))],
            *frames.experiment.gaps(),
        ],
    )
    return BuiltTable(printed, frame.rename(columns={state: f"share_{state.value}" for state in SHARES}))


def _failures(frames: Frames, method: str) -> str:
    """Drafted bundles that were not written or not scored, by status; "" if there are none."""
    metrics = frames.metrics
    own = metrics[(metrics["method"] == method) & metrics["name"].str.startswith(STATUS)]
    counts = own.groupby(own["name"].str.removeprefix(STATUS))["value"].sum()
    counts = counts[(counts > 0) & ~counts.index.isin([BundleStatus.NOT_ASKED])]
    failed = counts[counts.index != BundleStatus.OK]
    told = ", ".join(f"{str(name).replace('_', ' ')} {int(value):,}" for name, value in failed.items())
    return f"{method_name(method)}: of {int(counts.sum()):,} bundles {told}." if told else ""


def _text(value: float, digits: int | str) -> str:
    return number(value, digits) if isinstance(digits, int) else percent(value, int(digits.removesuffix("%")))


def _counts(frames: Frames, method: str) -> dict[Any, Any] | None:
    metrics = frames.metrics
    own = metrics[metrics["method"] == method]
    states = own[own["name"].str.startswith(PREFIX)]
    total = float(states["value"].sum())
    if not total:
        return None
    by_state = states.groupby(states["name"].str.removeprefix(PREFIX))["value"].sum()
    updates = int(states.drop_duplicates(["seed", "step"]).shape[0])
    row: dict[Any, Any] = {"method": method, "updates": updates, "groups": total}
    row |= {state: float(by_state.get(state.value, 0.0)) / total for state in SHARES}
    return row | {name: float(own.loc[own["name"] == name, "value"].mean()) for name in MEANS}


def example_table(frames: Frames) -> BuiltTable:
    """Of the latest group whose bundles differ in correlation: the kept one and the one least aligned with rewards."""
    found = _example(frames)
    rows = []
    if found:
        kept, rejected = found
        depth = max(len(kept["criteria"]), len(rejected["criteria"]))
        texts = [
            [bundle["criteria"][i] if i < len(bundle["criteria"]) else "" for bundle in found] for i in range(depth)
        ]
        rows = [[Cell(str(i + 1)), *map(Cell, pair)] for i, pair in enumerate(texts)]
        rows.append([Cell("Spearman"), *[Cell(number(bundle["alignment"], 3)) for bundle in found]])
        where = (
            f"{method_name(kept['method'])} seed {kept['seed']}, update {kept['step']}, "
            f"{environment_name(kept['environment'])}, group {kept['group_id']}; written by: {kept['writer']}."
        )
    else:
        rows = [[Cell(MISSING), Cell("no group with bundles of different correlation"), Cell(MISSING)]]
        where = "No example; compacted runs keep the names of rubrics and no criteria that a model wrote."
    printed = PrintedTable(
        name="orsd_bundle_example",
        caption="A kept and a rejected rubric bundle of one group, as in ORSD's Table 3; the latest by update, then by "
        "group id.",
        columns=["", "Kept", "Rejected"],
        groups=[Group(scale.describe(frames.experiment), rows)],
        notes=[where],
        text_columns=(1, 2),
    )
    columns = [
        "method",
        "seed",
        "step",
        "environment",
        "group_id",
        "index",
        "chosen",
        "alignment",
        "writer",
        "criteria",
    ]
    frame = pd.DataFrame(list(found or ()), columns=columns)
    return BuiltTable(printed, frame.assign(criteria=frame["criteria"].map("\n".join)))


def _example(frames: Frames) -> tuple[dict[str, Any], dict[str, Any]] | None:
    columns = ["step", "group_id", "environment", "index", "writer", "alignment", "chosen"]
    runs = [run for run in frames.experiment.runs if run.reader.shards("rubric_bundles")]
    for run in sorted(runs, key=lambda run: (run.method != "orsd", run.method, run.seed)):
        words = "criteria" if "criteria" in run.reader.columns("rubric_bundles") else "rubric_ids"
        rows = run.reader.scan("rubric_bundles", [*columns, words], pc.is_valid(pc.field("alignment"))).to_pandas()
        rows = rows.rename(columns={words: "criteria"})
        rows = rows[rows["criteria"].map(all).astype(bool)]
        for _, group in sorted(rows.groupby(["step", "group_id"]), key=lambda item: (-item[0][0], item[0][1])):
            kept, worst = group[group["chosen"]], group.loc[group["alignment"].idxmin()]
            if len(kept) and worst["alignment"] < kept.iloc[0]["alignment"]:
                named = {"method": run.method, "seed": run.seed}
                return named | kept.iloc[0].to_dict(), named | worst.to_dict()
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "ORSD: rubric bundles", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
