"""The 2×2×2 ablation of RISED [ours]: selection × teacher × steering, with main effects and interactions.

``ablation`` prints the eight cells, ``ablation_effects`` the seven contrasts with intervals over tasks and over
seeds and p values corrected for seven tests. No effect is estimated unless all eight cells are there; the paper's own
ablation (Figure 3) covers three.

    python -m analysis.tables.ablation --runs results/laptop_ablation --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import factorial, scale
from analysis import statistics as st
from analysis.command import run_tables
from analysis.comparisons import holm
from analysis.factorial import CELLS, FACTORS, MADE_BY, Effect
from analysis.formatting import MISSING, Cell, Group, PrintedTable, interval_text, p_text, points, rank
from analysis.frames import Frames
from analysis.names import environment_name, method_name
from analysis.results import NOTE, final_results, result_cell
from analysis.tables import BuiltTable

MEASURED = ("mean", "std", "n", "n_planned")


def build(frames: Frames) -> list[BuiltTable]:
    """``ablation`` and ``ablation_effects``."""
    return [cell_table(frames), effect_table(frames)]


def cell_table(frames: Frames) -> BuiltTable:
    environments = [*frames.environments, "overall"]
    results = {(r["method"], r["environment"]): r for r in final_results(frames).to_dict("records")}
    rows, records = [], []
    for cell, method in CELLS.items():
        marks = ["yes" if present else "no" for present in cell]
        found = {environment: results.get((method, environment)) for environment in environments}
        for environment, row in found.items():
            if row is not None:
                records.append((method, *cell, environment, *[row[name] for name in MEASURED]))
        present = method in frames.experiment.methods
        count = f"{len(frames.final_runs(method))} of {len(frames.experiment.seeds)}" if present else "not run"
        rows.append([Cell(method_name(method)), *map(Cell, marks), *map(result_cell, found.values()), Cell(count)])
    columns = range(1 + len(FACTORS), 1 + len(FACTORS) + len(environments))
    printed = PrintedTable(
        name="ablation",
        caption="The eight combinations of RISED's components [ours]: final pass rate, mean ± std over seeds. Best "
        "bold, second underlined.",
        columns=["Method", *[f.capitalize() for f in FACTORS], *[environment_name(e) for e in environments], "Seeds"],
        groups=rank([Group(scale.describe(frames.experiment), rows)], columns),
        notes=[
            "Without selection a method rolls out only the groups that it trains on, so selection's effect includes "
            "that of more candidates to choose from.",
            NOTE,
            *_missing(frames),
            *frames.left_out(),
        ],
    )
    frame = pd.DataFrame(records, columns=["method", *FACTORS, "environment", *MEASURED])
    return BuiltTable(printed, frame.astype({"n": "Int64", "n_planned": "Int64"}))


def effect_table(frames: Frames) -> BuiltTable:
    outcomes = {m: o for m in CELLS.values() if m in frames.experiment.methods and (o := frames.outcomes(m))}
    absent = factorial.missing_cells(outcomes)
    found = [] if absent else factorial.estimate_effects(outcomes)
    adjusted = holm([effect.test.p for effect in found])
    rows = [_effect_row(frames, effect, p) for effect, p in zip(found, adjusted, strict=True)]
    if absent:
        width = 5 + len(frames.environments)
        rows = [[Cell(name), Cell("n/a (cells missing)"), *[Cell(MISSING)] * width] for name in factorial.effects()]
    printed = PrintedTable(
        name="ablation_effects",
        caption="Main effects and interactions on the overall pass rate, in points [ours].",
        columns=[
            "Effect",
            "Points",
            "95% over tasks",
            "95% over seeds",
            "p",
            "p, Holm",
            *[environment_name(e) for e in frames.environments],
            "What the data support",
        ],
        groups=[Group(scale.describe(frames.experiment), rows)],
        notes=[
            "Main effect: mean of the four cells with the component minus the four without. a × b: by how much a's "
            "effect is larger where b is there. All eight cells enter every line.",
            "p: sign flips of each task's contrast, two-sided, the trained weights as they are; Holm: for "
            f"{len(factorial.effects())} effects. Neither says how another seed would end.",
            st.FEW_SEEDS,
            *_missing(frames),
            *([f"No effect is estimated: no outcomes of {', '.join(map(method_name, absent))}."] if absent else []),
            *frames.left_out(),
        ],
        left_columns=(6 + len(frames.environments),),
    )
    return BuiltTable(printed, _effect_frame(frames, found, adjusted))


def _effect_row(frames: Frames, effect: Effect, adjusted: float | None) -> list[Cell]:
    return [
        Cell(effect.name),
        Cell(points(effect.estimate)),
        Cell(interval_text(effect.over_tasks, as_points=True)),
        Cell(interval_text(effect.over_seeds, as_points=True)),
        Cell(p_text(effect.test.p)),
        Cell(p_text(adjusted)),
        *[Cell(points(effect.by_environment[e])) for e in frames.environments],
        Cell(verdict(effect, adjusted)),
    ]


def verdict(effect: Effect, adjusted: float | None) -> str:
    """In words, without a claim that the seeds do not carry."""
    if adjusted is None or adjusted > 1 - st.LEVEL:
        return "not told from 0"
    direction = "positive" if effect.estimate > 0 else "negative"
    if not effect.over_seeds.defined:
        return f"{direction} for these weights; seeds too few"
    return f"{direction}, also over seeds" if effect.over_seeds.excludes_zero else f"{direction} for these weights only"


def _effect_frame(frames: Frames, found: Sequence[Effect], adjusted: Sequence[float | None]) -> pd.DataFrame:
    columns = ["effect", "estimate", "task_low", "task_high", "seed_low", "seed_high", "p", "p_holm"]
    rows = [
        {
            "effect": effect.name,
            "estimate": effect.estimate,
            "task_low": effect.over_tasks.low,
            "task_high": effect.over_tasks.high,
            "seed_low": effect.over_seeds.low,
            "seed_high": effect.over_seeds.high,
            "p": effect.test.p,
            "p_holm": p,
            **effect.by_environment,
        }
        for effect, p in zip(found, adjusted, strict=True)
    ]
    return pd.DataFrame(rows).reindex(columns=[*columns, *frames.environments])


def _missing(frames: Frames) -> list[str]:
    lacking = [method_name(m) for m in CELLS.values() if m not in frames.experiment.methods]
    return [f"Not run in this experiment: {', '.join(lacking)}; {MADE_BY} makes all eight."] if lacking else []


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "The 2×2×2 ablation", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
