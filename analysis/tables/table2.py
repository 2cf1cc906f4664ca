"""Table 2: final-checkpoint validation pass rate of every method, beside the paper's numbers.

Two tables. ``table2`` prints mean ± std as the paper does, one block per source. ``table2_intervals`` says what our
own numbers support: bootstrap intervals of the overall rate over tasks and over seeds, and each method's paired
difference from GRPO-64 on the shared panel. Only finished runs enter; others are named in the notes.

    python -m analysis.tables.table2 --runs results/laptop_grid --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import published, scale
from analysis import statistics as st
from analysis.command import run_tables
from analysis.formatting import MISSING, Cell, Group, PrintedTable, interval_text, mean_std_text, points, rank
from analysis.frames import Frames
from analysis.names import BASELINE, METHODS, environment_name, method_name, ordered_environments, ordered_methods
from analysis.results import NOTE, coverage_text, final_results, result_cell
from analysis.tables import BuiltTable

PAPER_ENVIRONMENTS = ("alfworld", "webshop", "dbbench", "overall")
KEYS = ("environment", "mean", "std")
COUNTS = ("n", "n_planned", "valid", "planned", "strict")
"""Columns of ``table2.csv`` that only our own rows fill."""


def build(frames: Frames) -> list[BuiltTable]:
    """``table2`` and ``table2_intervals``."""
    return [main_table(frames), interval_table(frames)]


def own_results(frames: Frames) -> pd.DataFrame:
    """The rows of ``final_results`` with a value: those of at least one finished run."""
    return final_results(frames).dropna(subset=["mean"]).reset_index(drop=True)


def warm_start(frames: Frames) -> dict[str, st.MeanStd | None]:
    """Pass rate of the warm start by environment, over all runs that evaluated it (they share their weights)."""
    rates = frames.pass_rates
    first = rates[rates["step"] == 0]
    return {
        environment: st.mean_std(list(first.loc[first["environment"] == environment, "pass_rate"]))
        for environment in [*frames.environments, "overall"]
    }


def main_table(frames: Frames) -> BuiltTable:
    own = final_results(frames)
    paper = published.main_results()
    columns = ordered_environments({*PAPER_ENVIRONMENTS, *frames.environments})
    marked_columns = range(1, len(columns) + 1)
    groups: list[Group] = []
    records: list[tuple[object, ...]] = []
    for backbone, block in paper.groupby("backbone", sort=False):
        head = f"{scale.PUBLISHED}: {backbone}, 1,000 updates"
        rows = []
        for row in block.to_dict("records"):
            method, cells = str(row["method"]), []
            for environment in columns:
                mean, std = row.get(f"{environment}_mean"), row.get(f"{environment}_std")
                known = mean is not None and not pd.isna(mean)
                found = st.MeanStd(float(mean), None if pd.isna(std) else float(std), 0) if known else None
                cells.append(Cell(mean_std_text(found), found.mean if found else None))
                if found:
                    records.append((scale.PUBLISHED, backbone, method, environment, found.mean, found.std))
            rows.append([Cell(method_name(method)), *cells, Cell(MISSING), Cell(MISSING)])
        groups.append(Group(head, rows))
    complete = len(paper["method"].unique())
    marked = [rank([g], marked_columns)[0] if len(g.rows) == complete else g for g in groups]
    marked += rank([_own_group(frames, own, columns)], marked_columns)
    policy = scale.policy_name(frames.experiment)
    measured = [*KEYS, *COUNTS]
    for method in _own_methods(frames):
        rows_of = own[own["method"] == method].to_dict("records")
        for row in rows_of or [{"environment": e, "n": 0, "n_planned": 0} for e in [*frames.environments, "overall"]]:
            records.append((scale.OURS, policy, method, *[row.get(name) for name in measured]))
    for environment, found in warm_start(frames).items():
        if found:
            runs = (found.mean, found.std, found.n, len(frames.experiment.runs))
            records.append((scale.OURS, policy, "warm_start", environment, *runs))
    names = ["source", "policy", "method", *measured]
    frame = pd.DataFrame([record + (None,) * (len(names) - len(record)) for record in records], columns=names)
    frame = frame.astype(dict.fromkeys(COUNTS[:-1], "Int64"))
    printed = PrintedTable(
        name="table2",
        caption="Table 2. Final-checkpoint validation pass rate, mean ± std over seeds. "
        "Best bold, second underlined, within a block.",
        columns=["Method", *[environment_name(e) for e in columns], "Seeds", "Valid episodes"],
        groups=marked,
        notes=[
            "A published block with few rows holds what our sources quote of it; it is not ranked.",
            NOTE,
            *_notes(frames),
        ],
    )
    return BuiltTable(printed, frame)


def _own_methods(frames: Frames) -> list[str]:
    """The experiment's methods and the paper's six."""
    return ordered_methods({*METHODS, *frames.experiment.methods})


def _own_group(frames: Frames, own: pd.DataFrame, columns: Sequence[str]) -> Group:
    by_key = {(r["method"], r["environment"]): r for r in own.to_dict("records")}
    seeds = len(frames.experiment.seeds)
    rows = []
    for method in _own_methods(frames):
        cells = [result_cell(by_key.get((method, environment))) for environment in columns]
        present = method in frames.experiment.methods
        used = f"{len(frames.final_runs(method))} of {seeds}" if present else "not run"
        valid = coverage_text(by_key.get((method, "overall")))
        rows.append([Cell(method_name(method)), *cells, Cell(used), Cell(valid)])
    start = warm_start(frames)
    first = [Cell(_start_text(start.get(e))) for e in columns]
    rows.append([Cell("Warm start (update 0)"), *first, Cell(MISSING), Cell(MISSING)])
    return Group(scale.describe(frames.experiment), rows)


def _start_text(found: st.MeanStd | None) -> str:
    """The warm start is one set of weights: its spread over runs is evaluation noise and is not printed as a std."""
    return mean_std_text(st.MeanStd(found.mean, None, found.n) if found else None)


def interval_table(frames: Frames) -> BuiltTable:
    """What our overall pass rates support: intervals and paired differences from the baseline."""
    baseline = frames.outcomes(BASELINE) if BASELINE in frames.experiment.methods else None
    overall = {r["method"]: r for r in final_results(frames).to_dict("records") if r["environment"] == "overall"}
    rows, records = [], []
    for method in frames.experiment.methods:
        step = frames.final_step
        values = [frames.rate(run, step, "overall") for run in frames.final_runs(method)] if step is not None else []
        found = st.mean_std(values)
        outcomes = frames.outcomes(method)
        no_shards = st.Interval(None, None, reason=frames.why_no_outcomes(method))
        over_tasks = st.task_interval(outcomes) if outcomes else no_shards
        over_seeds = st.seed_interval(values)
        difference = None
        if outcomes and baseline and method != BASELINE:
            difference = st.paired_difference(outcomes, baseline)
        rows.append(
            [
                Cell(method_name(method)),
                result_cell(overall[method]),
                Cell(interval_text(over_tasks)),
                Cell(interval_text(over_seeds)),
                Cell(points(difference.estimate) if difference else MISSING),
                Cell(interval_text(difference.over_tasks, as_points=True) if difference else MISSING),
                Cell(interval_text(difference.over_seeds, as_points=True) if difference else MISSING),
            ]
        )
        records.append(
            (
                method,
                found.n if found else 0,
                found.mean if found else None,
                found.std if found else None,
                over_tasks.low,
                over_tasks.high,
                over_seeds.low,
                over_seeds.high,
                difference.estimate if difference else None,
                difference.over_tasks.low if difference else None,
                difference.over_tasks.high if difference else None,
                difference.over_seeds.low if difference else None,
                difference.over_seeds.high if difference else None,
            )
        )
    columns = [
        "method",
        "seeds",
        "overall_mean",
        "overall_std",
        "task_low",
        "task_high",
        "seed_low",
        "seed_high",
        "difference",
        "difference_task_low",
        "difference_task_high",
        "difference_seed_low",
        "difference_seed_high",
    ]
    base = method_name(BASELINE)
    printed = PrintedTable(
        name="table2_intervals",
        caption="Overall pass rate of this project's runs with 95% bootstrap intervals, and paired differences.",
        columns=[
            "Method",
            "Overall",
            "95% over tasks",
            "95% over seeds",
            f"Δ {base}, points",
            "Δ 95% over tasks",
            "Δ 95% over seeds",
        ],
        groups=rank([Group(scale.describe(frames.experiment), rows)], [1]),
        notes=[
            f"Over tasks: the trained weights fixed, validation tasks drawn anew within each environment ({st.DRAWS:,} "
            "draws); the difference uses the same tasks for both methods. Over seeds: runs drawn anew; "
            f"with fewer than {st.MIN_SEEDS} there is nothing to draw from.",
            "An interval over tasks says nothing about another training seed, and no correction is made here for the "
            f"number of methods compared ({len(frames.experiment.methods)}): table comparisons makes it.",
            st.FEW_SEEDS,
            NOTE,
            *_notes(frames),
        ],
    )
    return BuiltTable(printed, pd.DataFrame(records, columns=columns))


def _notes(frames: Frames) -> list[str]:
    counts = frames.pass_rates.dropna(subset=["tasks"]).groupby("environment")["tasks"].max()
    panel = ", ".join(f"{environment_name(e)} {counts[e]:,.0f}" for e in frames.environments if e in counts)
    notes = [f"Validation panel of this project: {panel} tasks; original prompts, no steering."] if panel else []
    if frames.final_step is not None:
        notes.append(f"Final = update {frames.final_step}. std is that of the sample (n − 1) and absent for one seed.")
    return notes + frames.left_out()


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "Table 2: final validation pass rates", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
