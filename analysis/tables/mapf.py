"""MAPF-FrozenLake: valid and optimal rates with their subsets, and the breakdown of failures by size of map.

``mapf`` has one row per method, ``mapf_failures`` one per method and size; both are means over the final runs, in
percent, of what the runs' metrics hold. The source paper has these measures; its numbers are not among our sources.

    python -m analysis.tables.mapf --runs results/mapf_smoke --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import scale
from analysis.command import run_tables
from analysis.formatting import MISSING, Cell, Group, PrintedTable, number
from analysis.frames import Frames
from analysis.names import method_name
from analysis.tables import BuiltTable

MEASURES = "validation/measures/mapf_frozenlake/"
RATES = {"valid": "Valid", "optimal": "Optimal"}
FAILURES = {
    "failure_parse_error": "Parse error",
    "failure_illegal_move": "Illegal move",
    "failure_conflict": "Conflict",
    "failure_hole": "Hole",
    "failure_not_finished": "Not finished",
}


def build(frames: Frames) -> list[BuiltTable]:
    """``mapf`` and ``mapf_failures``."""
    frame = final_measures(frames)
    return [rates_table(frames, frame), failures_table(frames, frame)]


def final_measures(frames: Frames) -> pd.DataFrame:
    """Columns method, measure, subset ("" for all episodes), value: means over each method's final runs.

    A measure that one of these runs lacks is left out.
    """
    metrics, rows = frames.metrics, []
    for method in frames.experiment.methods:
        seeds = [run.seed for run in frames.final_runs(method)]
        own = metrics[(metrics["method"] == method) & metrics["seed"].isin(seeds)]
        own = own[(own["step"] == frames.final_step) & own["name"].str.startswith(MEASURES)]
        for name, values in own.groupby("name")["value"]:
            measure, _, subset = str(name).removeprefix(MEASURES).partition("/")
            if len(values) == len(seeds):
                rows.append((method, measure, subset, float(values.mean(skipna=False))))
    return pd.DataFrame(rows, columns=["method", "measure", "subset", "value"])


def rates_table(frames: Frames, frame: pd.DataFrame) -> BuiltTable:
    """Valid and optimal rate over all episodes, on wait instances, and by number of agents."""
    subsets = ["", "wait", *_ordered(frame, "agents_")]
    columns = [(measure, subset) for subset in subsets for measure in RATES]
    heads = [RATES[measure] + (f", {_words(subset)}" if subset else "") for measure, subset in columns]
    rows = [
        [Cell(method_name(method)), *[_cell(frame, method, *column) for column in columns]]
        for method in frames.experiment.methods
    ]
    printed = PrintedTable(
        name="mapf",
        caption="MAPF-FrozenLake. Valid and optimal plans in percent of the validation episodes.",
        columns=["Method", *heads],
        groups=[Group(scale.describe(frames.experiment), rows)],
        notes=["Optimal: the least sum of costs, by Conflict-Based Search. Wait: instances whose every optimal plan "
               "waits [ours].", *frames.left_out()],
    )  # fmt: skip
    return BuiltTable(printed, frame[frame["measure"].isin(RATES) & ~frame["subset"].str.startswith("size_")])


def failures_table(frames: Frames, frame: pd.DataFrame) -> BuiltTable:
    """How episodes ended, by size of map; a row adds up to 100."""
    columns = ["valid", *FAILURES]
    rows = [
        [Cell(method_name(method)), Cell(_words(size) if size else "all")]
        + [_cell(frame, method, measure, size) for measure in columns]
        for method in frames.experiment.methods
        for size in ("", *_ordered(frame, "size_"))
    ]
    printed = PrintedTable(
        name="mapf_failures",
        caption="MAPF-FrozenLake. How validation episodes end, in percent, by size of map.",
        columns=["Method", "Size", "Valid", *FAILURES.values()],
        groups=[Group(scale.describe(frames.experiment), rows)],
        notes=["Not finished: the plan, or the limit of turns or steps, ends before all agents have arrived [ours].",
               *frames.left_out()],
    )  # fmt: skip
    chosen = frame["measure"].isin(columns) & ((frame["subset"] == "") | frame["subset"].str.startswith("size_"))
    return BuiltTable(printed, frame[chosen])


def _ordered(frame: pd.DataFrame, prefix: str) -> list[str]:
    found = {str(subset) for subset in frame["subset"] if str(subset).startswith(prefix)}
    return sorted(found, key=lambda subset: int(subset.removeprefix(prefix)))


def _words(subset: str) -> str:
    kind, _, count = subset.partition("_")
    return {"agents": f"{count} agents", "size": f"{count} x {count}"}.get(kind, subset)


def _cell(frame: pd.DataFrame, method: str, measure: str, subset: str) -> Cell:
    chosen = (frame["method"] == method) & (frame["measure"] == measure) & (frame["subset"] == subset)
    found = frame.loc[chosen, "value"]
    if found.empty or pd.isna(found.iloc[0]):
        return Cell(MISSING)
    return Cell(number(100 * float(found.iloc[0]), 1), float(found.iloc[0]))


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "MAPF-FrozenLake", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
