"""Table 9: mean seconds per training step by part, beside the paper's, and what an update costs.

The parts are those of the paper: waiting for rollouts, waiting for tags, reference pass, teacher pass, actor
(forward, backward, optimiser), other. As there, the mean runs over the first 300 steps at most. ``table9_cost``
adds what the step time hides: tokens, and total seconds of the loop.

    python -m analysis.tables.table9 --runs results/laptop_grid --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import published, scale
from analysis.command import run_tables
from analysis.formatting import (
    MISSING,
    Cell,
    Group,
    PrintedTable,
    relative,
    seconds,
    seconds_published,
)
from analysis.frames import Frames
from analysis.names import BASELINE, METHODS, method_name, ordered_methods
from analysis.tables import BuiltTable

PARTS = ("rollout_wait", "tag_wait", "reference", "teacher", "actor", "other")
HEADS = ("Roll. wait", "Tag wait", "Reference", "Teacher", "Actor", "Other")
FIRST_STEPS = 300
SUM_TOLERANCE = 0.02
"""Share of the step by which the parts may miss it before the table says so."""


def build(frames: Frames) -> list[BuiltTable]:
    """``table9`` and ``table9_cost``."""
    return [step_time_table(frames), cost_table(frames)]


def own_step_times(frames: Frames) -> pd.DataFrame:
    """Columns method, the parts, step, relative, steps, seeds; NaN where a method never had the part.

    Each run's mean over its first steps, then the mean over runs; warm start and evaluations are not steps.
    """
    times = frames.timings
    times = times[times["name"].str.startswith("time/") & times["step"].between(1, FIRST_STEPS)]
    per_run = times.groupby(["method", "seed", "name"])["value"].mean().unstack("name")
    per_method = per_run.groupby("method").mean().rename(columns=lambda name: name.removeprefix("time/"))
    frame = per_method.reindex(columns=[*PARTS, "step"])
    frame[list(PARTS)] = frame[list(PARTS)].where(frame[list(PARTS)] != 0)
    base = frame["step"].get(BASELINE)
    frame["relative"] = frame["step"] / base if base else float("nan")
    frame["steps"] = times.groupby("method")["step"].nunique()
    frame["seeds"] = times.groupby("method")["seed"].nunique()
    return frame.loc[ordered_methods(frame.index)].reset_index().rename_axis(columns=None)


def step_time_table(frames: Frames) -> BuiltTable:
    own = own_step_times(frames)
    paper = published.step_time()
    paper_rows = [
        [
            Cell(method_name(str(row["method"]))),
            *[Cell(seconds_published(row[p])) for p in [*PARTS, "step"]],
            Cell(relative(row["relative"])),
        ]
        for row in paper.to_dict("records")
    ]
    by_method = {row["method"]: row for row in own.to_dict("records")}
    own_rows = []
    for method in ordered_methods({*METHODS, *by_method}):
        row = by_method.get(method)
        values = [Cell(seconds(row[p])) if row else Cell(MISSING) for p in [*PARTS, "step"]]
        own_rows.append([Cell(method_name(method)), *values, Cell(relative(row["relative"]) if row else "not run")])
    printed = PrintedTable(
        name="table9",
        caption="Table 9. Mean wall-clock seconds per training step, by part.",
        columns=["Method", *HEADS, "Step", "Relative"],
        groups=[
            Group(
                f"{scale.PUBLISHED}: {published.REFERENCE_BACKBONE}, 32 H100 + 8 for the judge, first 300 steps",
                paper_rows,
            ),
            Group(scale.describe(frames.experiment), own_rows),
        ],
        notes=[
            f"{MISSING}: the method has no such part, or was not run. Relative: to {method_name(BASELINE)} above it.",
            "Runs of this project may have shared their machine; read relatives, not seconds, against the paper.",
            *_tagged_everywhere(own),
            *sum_warnings(own),
            *[f"{gap}; its steps so far are in the means" for gap in frames.experiment.gaps() if "unfinished" in gap],
        ],
    )
    published_frame = paper.assign(source=scale.PUBLISHED, steps=FIRST_STEPS, seeds=None)
    frame = (
        pd.concat([published_frame, own.assign(source=scale.OURS)], ignore_index=True) if len(own) else published_frame
    )
    frame = frame.astype({"steps": "Int64", "seeds": "Int64"})
    return BuiltTable(printed, frame[["source", "method", *PARTS, "step", "relative", "steps", "seeds"]])


def sum_warnings(frame: pd.DataFrame) -> list[str]:
    """One sentence per method whose parts do not add up to its step."""
    found = []
    for row in frame.to_dict("records"):
        total = sum(row[part] for part in PARTS if not pd.isna(row[part]))
        if pd.isna(row["step"]) or abs(total - row["step"]) > SUM_TOLERANCE * row["step"]:
            found.append(
                f"{method_name(row['method'])}: the parts sum to {seconds(total)} s, the step takes "
                f"{seconds(row['step'])} s"
            )
    return found


def _tagged_everywhere(own: pd.DataFrame) -> list[str]:
    """Says so when the baseline's rollouts are tagged too, which the paper's were not."""
    waits = own.set_index("method")["tag_wait"]
    if pd.isna(waits.get(BASELINE)):
        return []
    return ["Here the rollouts of every method are tagged (Figure 4 needs it), so all of them pay the tag wait."]


def cost_table(frames: Frames) -> BuiltTable:
    """Tokens and seconds per update and in all, by method (mean over runs)."""
    metrics = frames.metrics[frames.metrics["step"] > 0]
    names = {"rollout/tokens": "tokens", "rollout/generated_tokens": "generated_tokens"}
    tokens = metrics[metrics["name"].isin(names)].assign(kind=lambda f: f["name"].map(names))
    times = frames.timings[(frames.timings["name"] == "time/step") & (frames.timings["step"] > 0)].assign(
        kind="seconds"
    )
    rows = pd.concat([tokens, times], ignore_index=True).dropna(subset=["value"])
    finished = {(run.method, run.seed) for run in frames.experiment.runs if run.complete}
    per_run = rows.groupby(["method", "seed", "kind"])["value"].agg(["mean", "sum"])
    whole = [key[:2] in finished for key in per_run.index]
    mean = per_run["mean"].groupby(["method", "kind"]).mean()
    total = per_run.loc[whole, "sum"].groupby(["method", "kind"]).mean()
    memory = frames.timings[frames.timings["name"] == "process/peak_memory"].groupby("method")["value"].max()
    records, printed_rows = [], []
    for method in frames.experiment.methods:
        values = [series.get((method, kind)) for series in (mean, total) for kind in (*names.values(), "seconds")]
        values.append(memory.get(method))
        records.append((method, *values))
        shown = [number_of(value, is_seconds=i in (2, 5)) for i, value in enumerate(values)]
        printed_rows.append([Cell(method_name(method)), *map(Cell, shown)])
    printed = PrintedTable(
        name="table9_cost",
        caption="Cost of this project's runs, per update and per finished run (means, evaluations not counted).",
        columns=[
            "Method",
            "Tokens / update",
            "Generated / update",
            "Seconds / update",
            "Tokens / run",
            "Generated / run",
            "Seconds / run",
            "Peak memory, MiB",
        ],
        groups=[Group(scale.describe(frames.experiment), printed_rows)],
        notes=[
            "Tokens: all tokens of the training rollouts (prompts, observations and replies), candidates that were not "
            "selected included. Tokens of a judge model are not among them. Peak memory: of the training process, the "
            "largest of the runs."
        ],
    )
    columns = [
        "method",
        "tokens_per_update",
        "generated_tokens_per_update",
        "seconds_per_update",
        "tokens",
        "generated_tokens",
        "seconds",
        "peak_memory_mib",
    ]
    return BuiltTable(printed, pd.DataFrame(records, columns=columns))


def number_of(value: float | None, is_seconds: bool) -> str:
    """A count with thousands separators, or seconds."""
    if value is None or pd.isna(value):
        return MISSING
    return seconds(value) if is_seconds else f"{value:,.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "Table 9: step time by part", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
