"""Fair cost [ours]: what the runs spent, and what it took to reach a given pass rate.

``cost`` prints updates, tokens and device-seconds of finished runs, relative to GRPO-64, beside the paper's Table 9
turned into device-seconds (its step times × 32 GPUs, and 8 more where rubrics are used: derived by us from published
numbers). ``time_to_rate`` prints the first evaluation at which each method reached two pass rates.

    python -m analysis.tables.cost --runs results/laptop_grid --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import costs, published, scale
from analysis.command import run_tables
from analysis.formatting import MISSING, Cell, Group, PrintedTable, number, percent, relative, seconds
from analysis.frames import Frames
from analysis.names import BASELINE, method_name
from analysis.statistics import mean_std
from analysis.tables import BuiltTable

TRAINING_GPUS, JUDGE_GPUS = 32, 8
"""Of the paper's Table 9."""


def build(frames: Frames) -> list[BuiltTable]:
    """``cost`` and ``time_to_rate``."""
    data = costs.cost_frame(frames)
    return [cost_table(frames, data), time_table(frames, data)]


def final_costs(frames: Frames, data: pd.DataFrame) -> pd.DataFrame:
    """Means over each method's final runs: method, seeds, pass_rate and ``COSTS``; NaN where one run's is unknown."""
    rows = []
    for method in frames.experiment.methods:
        seeds = [run.seed for run in frames.final_runs(method)]
        own = data[(data["method"] == method) & data["seed"].isin(seeds) & (data["step"] == frames.final_step)]
        means = {c: own[c].mean(skipna=False) for c in ("pass_rate", *costs.COSTS)} if len(own) else {}
        rows.append({"method": method, "seeds": len(own), **means})
    return pd.DataFrame(rows).reindex(columns=["method", "seeds", "pass_rate", *costs.COSTS])


def published_device_seconds() -> pd.DataFrame:
    """Columns method, step, device_s and relative of one update, derived from Table 9."""
    paper = published.step_time()[["method", "step", "tag_wait"]].copy()
    gpus = TRAINING_GPUS + JUDGE_GPUS * paper["tag_wait"].notna()
    paper["device_s"] = paper["step"] * gpus
    paper["relative"] = paper["device_s"] / float(paper.loc[paper["method"] == BASELINE, "device_s"].iloc[0])
    return paper.drop(columns="tag_wait")


def cost_table(frames: Frames, data: pd.DataFrame) -> BuiltTable:
    frame = final_costs(frames, data)
    base = frame.set_index("method")["device_s"].get(BASELINE)
    frame["relative"] = frame["device_s"] / base if base else float("nan")
    own_rows = []
    for row in frame.to_dict("records"):
        counts = [Cell(_count(row[c])) for c in ("generated_tokens", "tokens", "judge_tokens")]
        times = [Cell(seconds(row[c])) for c in ("training_device_s", "judge_device_s", "device_s")]
        rate = number(row["pass_rate"])
        own_rows.append(
            [Cell(method_name(row["method"])), Cell(rate), *counts, *times, Cell(relative(row["relative"]))]
        )
    paper = published_device_seconds()
    paper_rows = [
        [
            Cell(method_name(str(row["method"]))),
            *[Cell(MISSING)] * 4,
            Cell(number(TRAINING_GPUS * row["step"], 0)),
            Cell(number(row["device_s"] - TRAINING_GPUS * row["step"], 0)),
            Cell(number(row["device_s"], 0)),
            Cell(relative(row["relative"])),
        ]
        for row in paper.to_dict("records")
    ]
    printed = PrintedTable(
        name="cost",
        caption="What a run cost, judge included (means over finished runs), and the paper's cost of one update.",
        columns=[
            "Method",
            "Overall",
            "Generated tokens",
            "All tokens",
            "Judge tokens",
            "Training device-s",
            "Judge device-s",
            "Device-s",
            f"Relative to {method_name(BASELINE)}",
        ],
        groups=[
            Group(
                f"derived by us from {scale.PUBLISHED} Table 9, one update: step × {TRAINING_GPUS} GPUs, "
                f"{JUDGE_GPUS} more with a judge",
                paper_rows,
            ),
            Group(f"whole runs of {scale.describe(frames.experiment)}", own_rows),
        ],
        notes=[
            "Generated: tokens that the policy wrote in training rollouts, candidates that were not "
            "selected among them. "
            "All: prompts and observations too. Judge tokens: prompts and replies of a judge model.",
            "A judge's servers count as held for the whole step; shared ones count for every run that holds them.",
            *costs.device_notes(frames),
            *frames.left_out(),
        ],
    )
    derived = paper.assign(source="derived from published Table 9, one update").rename(columns={"step": "seconds"})
    whole = pd.concat([derived, frame.assign(source=scale.OURS)], ignore_index=True)
    columns = ["source", "method", "seeds", "pass_rate", *costs.COSTS, "relative"]
    return BuiltTable(printed, whole.reindex(columns=columns).astype({"seeds": "Int64"}))


def time_table(frames: Frames, data: pd.DataFrame) -> BuiltTable:
    lines = costs.thresholds(frames)
    groups, parts = [], []
    for name, rate in lines.items():
        reached = costs.first_reached(data, rate)
        parts.append(reached.assign(threshold=name, rate=rate))
        words = "the baseline's final mean" if name == "full" else "half of the baseline's gain"
        rows = [_reached_row(method, reached[reached["method"] == method]) for method in frames.experiment.methods]
        groups.append(Group(f"overall pass rate of {percent(rate, 1)} ({words}); {_ours(frames)}", rows))
    if not groups:
        empty = [[Cell(method_name(m)), *[Cell("n/a")] * 4] for m in frames.experiment.methods]
        groups = [Group(scale.describe(frames.experiment), empty)]
    lacking = f"No finished run of {method_name(BASELINE)} that gained: there is no pass rate to reach."
    printed = PrintedTable(
        name="time_to_rate",
        caption="What it took to reach a given overall pass rate: first evaluation at or above it (means over the "
        "runs that did) [ours].",
        columns=["Method", "Runs that did", "Updates", "Generated tokens", "Device-s"],
        groups=groups,
        notes=[
            *([] if lines else [lacking]),
            "Means over the runs that did, so a method of which few did looks cheaper than it is: read the count "
            "first. Between two evaluations nothing is interpolated; the first crossing may be luck of an evaluation.",
            *frames.experiment.gaps(),
        ],
    )
    columns = ["threshold", "rate", "method", "seed", "reached", "step", "pass_rate", *costs.COSTS]
    frame = pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)
    return BuiltTable(printed, frame)


def _reached_row(method: str, runs: pd.DataFrame) -> list[Cell]:
    did = runs[runs["reached"].astype(bool)]
    count = f"{len(did)} of {len(runs)}"
    if did.empty:
        return [Cell(method_name(method)), Cell(count), *[Cell("not reached")] * 3]
    means = [mean_std(list(did[column])) for column in costs.AXES]
    values = [None if found is None or found.n < len(did) else found.mean for found in means]
    texts = [number(values[0], 0), _count(values[1]), seconds(values[2])]
    return [Cell(method_name(method)), Cell(count), *map(Cell, texts)]


def _count(value: float | None) -> str:
    return MISSING if value is None or pd.isna(value) else f"{value:,.0f}"


def _ours(frames: Frames) -> str:
    return scale.SYNTHETIC if scale.is_synthetic(frames.experiment) else scale.OURS


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "Cost, and time to a pass rate", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
