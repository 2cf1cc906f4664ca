"""What the data support: paired comparisons with correction for several methods, and a sentence per published claim.

``comparisons`` tests every method against GRPO-64, and RISED against every other, on the shared task panel: the
difference with its 95% interval over tasks, one that holds for all comparisons at once (Bonferroni), one over seeds
and tasks, p values over tasks (raw and Holm) and over seeds with the smallest that so few seeds can give. ``claims``
holds each published claim against these runs.

    python -m analysis.tables.claims --runs results/laptop_grid --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import claims, scale
from analysis import statistics as st
from analysis.command import run_tables
from analysis.comparisons import Tested, holm, seed_test, sign_flip_test, task_contrast, two_level_interval
from analysis.formatting import MISSING, Cell, Group, PrintedTable, interval_text, p_text, points
from analysis.frames import Frames
from analysis.names import BASELINE, PROPOSED, method_name
from analysis.tables import BuiltTable

FIGURE6 = ("rised_no_steering", "rised_all_rubrics")
"""The pair that Figure 6 compares."""


def build(frames: Frames) -> list[BuiltTable]:
    """``claims`` and ``comparisons``."""
    return [claim_table(frames), comparison_table(frames)]


def pairs(frames: Frames) -> list[tuple[str, str]]:
    """(method, compared with): all against the baseline, and the proposed method against the others."""
    methods = frames.experiment.methods
    against_base = [(m, BASELINE) for m in methods if m != BASELINE] if BASELINE in methods else []
    others = [(PROPOSED, m) for m in methods if m not in (PROPOSED, BASELINE)] if PROPOSED in methods else []
    roles = [pair for pair in (FIGURE6,) if set(pair) <= set(methods)]
    return against_base + others + roles


def comparison_frame(frames: Frames) -> pd.DataFrame:
    """One row per pair; the family of the correction is all pairs of this table. Missing outcomes leave NaN."""
    planned = pairs(frames)
    outcomes = {m: frames.outcomes(m) for m in {name for pair in planned for name in pair}}
    rows: list[dict[str, object]] = []
    raw: list[float | None] = []
    level = 1 - (1 - st.LEVEL) / max(len(planned), 1)
    for first, second in planned:
        a, b = outcomes[first], outcomes[second]
        if not a or not b:
            raw.append(None)
            rows.append({"method": first, "against": second})
            continue
        difference, wide = st.paired_difference(a, b), st.paired_difference(a, b, level=level)
        tested = sign_flip_test(task_contrast({first: a, second: b}, {first: 1.0, second: -1.0}))
        over_seeds: Tested = seed_test(st.seed_overall_S(a), st.seed_overall_S(b))
        both = two_level_interval(a, b)
        raw.append(tested.p)
        rows.append(
            {
                "method": first,
                "against": second,
                "difference": difference.estimate,
                "task_low": difference.over_tasks.low,
                "task_high": difference.over_tasks.high,
                "simultaneous_low": wide.over_tasks.low,
                "simultaneous_high": wide.over_tasks.high,
                "seed_task_low": both.low,
                "seed_task_high": both.high,
                "p": tested.p,
                "p_seeds": over_seeds.p,
                "p_seeds_smallest": over_seeds.smallest,
                "tasks": difference.task_count,
                "seeds": st.seed_overall_S(a).size,
                "seeds_against": st.seed_overall_S(b).size,
            }
        )
    columns = ["method", "against", "difference", "task_low", "task_high", "simultaneous_low", "simultaneous_high"]
    columns += ["seed_task_low", "seed_task_high", "p", "p_holm", "p_seeds", "p_seeds_smallest"]
    columns += ["tasks", "seeds", "seeds_against"]
    frame = pd.DataFrame(rows).reindex(columns=columns)
    frame["p_holm"] = pd.Series(holm(raw), dtype="float64")
    return frame.astype({"tasks": "Int64", "seeds": "Int64", "seeds_against": "Int64"})


def comparison_table(frames: Frames) -> BuiltTable:
    frame = comparison_frame(frames)
    rows = [_comparison_row(row) for row in frame.to_dict("records")]
    tested = int(frame["p"].notna().sum())
    printed = PrintedTable(
        name="comparisons",
        caption="Paired differences of the overall pass rate on the shared panel, in points, with correction for "
        "several comparisons [ours].",
        columns=[
            "Method − compared with",
            "Points",
            "95% over tasks",
            f"95% for all {len(frame)}",
            "95% over seeds and tasks",
            "p (tasks)",
            "p, Holm",
            "p (seeds)",
            "smallest p",
            "Seeds",
        ],
        groups=[Group(scale.describe(frames.experiment), rows)],
        notes=[
            "Over tasks: these trained weights on other tasks like these, the same tasks for both methods. For all: "
            "Bonferroni, so that all intervals hold together. p (tasks): sign flips of each task's difference; Holm "
            f"for the {tested} comparisons tested. p (seeds): all ways to deal the runs out to the two "
            "methods; smallest: "
            "what so few runs can give at best.",
            st.FEW_SEEDS,
            *(
                []
                if len(frame)
                else ["Nothing to compare: neither the baseline nor RISED stands beside another method."]
            ),
            *frames.left_out(),
        ],
    )
    return BuiltTable(printed, frame)


def _comparison_row(row: dict[str, object]) -> list[Cell]:
    name = Cell(f"{method_name(str(row['method']))} − {method_name(str(row['against']))}")
    values = {key: value for key, value in row.items() if isinstance(value, int | float) and not pd.isna(value)}
    if "difference" not in values:
        return [name, Cell("n/a (no finished run with validation shards)"), *[Cell(MISSING)] * 8]
    few = f"n < {st.MIN_SEEDS} seeds"
    intervals = [
        interval_text(st.Interval(values.get(f"{k}_low"), values.get(f"{k}_high"), reason=few), as_points=True)
        for k in ("task", "simultaneous", "seed_task")
    ]
    tests = [p_text(values.get(k)) for k in ("p", "p_holm", "p_seeds", "p_seeds_smallest")]
    seeds = f"{values['seeds']} and {values['seeds_against']}"
    return [name, Cell(points(values["difference"])), *map(Cell, intervals), *map(Cell, tests), Cell(seeds)]


def claim_table(frames: Frames) -> BuiltTable:
    comparisons = comparison_frame(frames)
    verdicts = [(claim, claim.judge(claims.Evidence(frames, comparisons))) for claim in claims.CLAIMS]
    rows = [
        [Cell(claim.text), Cell(claim.source), Cell(found.status), Cell(found.sentence)] for claim, found in verdicts
    ]
    printed = PrintedTable(
        name="claims",
        caption="Published claims, and what these runs say about each. A claim about another scale is "
        "neither proved nor "
        "refuted here.",
        columns=["Claim (published)", "Source", "These runs", "What the data support"],
        groups=[Group(scale.describe(frames.experiment), rows)],
        notes=[
            "agrees, disagrees: the numbers point that way and their interval excludes chance among "
            "tasks (Holm-corrected "
            "where methods are compared). undecided: they do not. not tested: something needed was not "
            "run; it is named.",
            *frames.left_out(),
        ],
        text_columns=(0, 3),
        left_columns=(1, 2),
    )
    records = [(c.key, c.text, c.source, v.status, v.sentence) for c, v in verdicts]
    return BuiltTable(printed, pd.DataFrame(records, columns=["claim", "text", "source", "status", "sentence"]))


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "Claims and comparisons", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
