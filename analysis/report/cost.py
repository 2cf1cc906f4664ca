"""What every run took: updates, time, tokens of the policy and of a judge model, memory; and its records' hash."""

from __future__ import annotations

import pandas as pd
import pyarrow.compute as pc

from analysis.formatting import MISSING, Cell, Group, PrintedTable, number
from analysis.frames import Frames
from analysis.runs import Run

TOKENS = {
    "Tokens": ("rollout/tokens",),
    "Generated": ("rollout/generated_tokens",),
    "Judge's tokens": ("judge/prompt_tokens", "judge/completion_tokens"),
}
"""Column -> the metrics that it adds up over all steps."""
JUDGE_TIME = "judge/tag"
"""Timing of a judge model's replies; its subject is the judge, and so it is not among the step's own."""
HOUR_S = 3600.0


def cost_table(frames: Frames) -> PrintedTable:
    """One row per run, finished or not."""
    columns = ["Run", "Updates", "Training, h", *TOKENS, "Judge, h", "Peak memory, GiB", "Records, SHA-256"]
    rows = [_row(frames, run) for run in frames.experiment.runs]
    return PrintedTable(
        "run_cost",
        "What every run took, and the hash of its records.",
        columns,
        [Group("", rows)],
        [
            "Training: wall-clock hours of the updates, on whatever the run had, without evaluations. Tokens: "
            "of the training rollouts, those that were not selected included. Records: hash over the hashes of all "
            "shards but timings, equal for equal records.",
            f"{MISSING}: not recorded, or no judge model.",
        ],
    )


def _row(frames: Frames, run: Run) -> list[Cell]:
    metrics, timings = _of(frames.metrics, run), _of(frames.timings, run)
    steps = timings.loc[(timings["name"] == "time/step") & (timings["step"] > 0), "value"]
    memory = timings.loc[timings["name"] == "process/peak_memory", "value"]
    cells = [Cell(run.label), Cell(f"{run.last_step:,}"), Cell(number(_sum(steps) / HOUR_S, 2))]
    for names in TOKENS.values():
        total = _sum(metrics.loc[metrics["name"].isin(names), "value"])
        cells.append(Cell(MISSING if pd.isna(total) else f"{total:,.0f}"))
    judged = run.reader.scan("timings", ["value"], pc.field("name") == JUDGE_TIME).to_pandas()["value"]
    cells.append(Cell(number(_sum(judged) / HOUR_S, 2)))
    return [*cells, Cell(number(memory.max() / 1024, 2)), Cell(run.fingerprint()[:16])]


def _sum(values: pd.Series) -> float:
    """Sum of the defined values; NaN without any."""
    return float(values.sum(min_count=1))


def _of(frame: pd.DataFrame, run: Run) -> pd.DataFrame:
    return frame[(frame["method"] == run.method) & (frame["seed"] == run.seed)]
