"""Learning of every run: warm start against final checkpoint, one row per method, seed and environment.

``learning.csv`` has the columns method, seed, environment, warm_start, final, validation_tasks, updates. An
unfinished run has no final value; its ``updates`` are those committed so far. Every seed is shown, whichever method
wins.

    python -m analysis.tables.learning --runs results/laptop_grid --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import scale
from analysis.command import run_tables
from analysis.formatting import MISSING, Cell, Group, PrintedTable, number, points
from analysis.frames import Frames
from analysis.names import environment_name, method_name
from analysis.tables import BuiltTable

COLUMNS = ["method", "seed", "environment", "warm_start", "final", "validation_tasks", "updates"]


def build(frames: Frames) -> list[BuiltTable]:
    """``learning``."""
    frame = learning_frame(frames)
    environments = [*frames.environments, "overall"]
    rows = []
    for (method, seed), block in frame.groupby(["method", "seed"], sort=False):
        by_environment = block.set_index("environment")
        cells = []
        for environment in environments:
            row = by_environment.loc[environment]
            start, final = number(row["warm_start"]), number(row["final"])
            change = points(row["final"] - row["warm_start"])
            cells.append(Cell(f"{start} → {final} ({change})" if change != MISSING else f"{start} → {final}"))
        rows.append([Cell(method_name(str(method))), Cell(str(seed)), *cells, Cell(str(int(block["updates"].iloc[0])))])
    overall = frame[frame["environment"] == "overall"].dropna(subset=["warm_start", "final"])
    mean_note = []
    if len(overall):
        gain = points(float((overall["final"] - overall["warm_start"]).mean()))
        mean_note.append(f"Overall change, mean over the {len(overall)} finished runs: {gain} points.")
    printed = PrintedTable(
        name="learning",
        caption="Validation pass rate of every run: warm start → final checkpoint (change in points).",
        columns=["Method", "Seed", *[environment_name(e) for e in environments], "Updates"],
        groups=[Group(scale.describe(frames.experiment), rows)],
        notes=[*mean_note, *frames.left_out()],
    )
    return [BuiltTable(printed, frame)]


def learning_frame(frames: Frames) -> pd.DataFrame:
    """The columns of ``learning.csv``; NaN where nothing was measured."""
    rates = frames.pass_rates
    rows = []
    for run in frames.experiment.runs:
        last = frames.last_evaluated(run) if run.complete else None
        own = rates[(rates["method"] == run.method) & (rates["seed"] == run.seed)]
        for environment in [*frames.environments, "overall"]:
            tasks = own.loc[own["environment"] == environment, "tasks"].max()
            final = frames.rate(run, last, environment) if last is not None else float("nan")
            rows.append(
                (
                    run.method,
                    run.seed,
                    environment,
                    frames.rate(run, 0, environment),
                    final,
                    None if pd.isna(tasks) else int(tasks),
                    run.last_step if last is None else last,
                )
            )
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.astype({"validation_tasks": "Int64"})


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "Learning per run", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
