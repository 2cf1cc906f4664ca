"""The correlation tables of one training environment, beside the paper's: Tables 1 and 7, and what stands behind them.

``tableN`` has the paper's form; ``tableN_intervals`` adds what the paper does not print [ours]: intervals of a block
bootstrap over checkpoints (the environments' pairs of a checkpoint belong together), and the correlation within
environments, without what the environments' means bring about alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis import published, scale
from analysis import statistics as st
from analysis.correlation import BlockBootstrap, Correlation, block_bootstrap, correlate, is_constant, within
from analysis.formatting import MISSING, Cell, Group, PrintedTable, interval_text, number
from analysis.frames import Frames
from analysis.names import environment_name, method_name, ordered_methods
from analysis.tables import BuiltTable
from analysis.transfer import PROJECTION, SIGNALS, Transfer, transfer

HEADS = {
    "rubric_pos": "Rubric pos",
    "rubric_neg": "Rubric neg",
    "rubric_all": "Rubric all",
    "skill_pos": "Skill pos",
    "skill_neg": "Skill neg",
    "skill_all": "Skill all",
    "gradient_full_layer": "Gradient, layer",
    "gradient_projection": "Gradient, all (projected)",
}
ROWS = {"held_out": "Held-out", "all_env": "All env."}
STATISTICS = {"spearman": "ρ", "pearson": "r"}
PUBLISHED_HEAD = f"{scale.PUBLISHED}: four environments, steps 50 to 500 from step 25; our sources name no backbone"
SHORT = 12
"""Characters of a reason that fits into a cell."""


def build(frames: Frames, name: str, title: str, trained_on: str, source: str) -> list[BuiltTable]:
    """``name`` and ``name_intervals``. ``source``: file stem of the published numbers in ``data/paper``."""
    found = transfer(frames, trained_on)
    return [main_table(frames, found, name, title, source), interval_table(frames, found, name, title)]


def chosen_pairs(found: Transfer, method: str, row: str) -> pd.DataFrame:
    """The pairs of a method that a row of the table pools."""
    pairs = found.pairs[found.pairs["method"] == method]
    return pairs if row == "all_env" else pairs[pairs["environment"] != found.training_environment]


def correlation_of(found: Transfer, method: str, row: str, signal: str) -> Correlation:
    """One cell of the table, both statistics; a signal that no run has says so as its reason."""
    pairs = chosen_pairs(found, method, row)
    if signal in found.absent:
        return Correlation(None, None, 0, len(pairs), found.absent[signal])
    return correlate(pairs[signal].tolist(), pairs["improvement"].tolist())


def main_table(frames: Frames, found: Transfer, name: str, title: str, source: str) -> BuiltTable:
    """The paper's table and ours under it."""
    paper = published.load(source).set_index(["validation_envs", "statistic"])
    records: list[tuple[object, ...]] = []
    groups = []
    rows = []
    for row, statistic in _lines():
        values = {signal: paper.loc[(row, statistic)].get(signal) for signal in SIGNALS}
        rows.append([_line_head(row, statistic), *[Cell(number(values[signal], 2)) for signal in SIGNALS]])
        records += [
            (scale.PUBLISHED, None, row, statistic, signal, value, None, None, "ok")
            for signal, value in values.items()
            if value is not None
        ]
    groups.append(Group(PUBLISHED_HEAD, rows))
    reasons: list[str] = []
    for method in ordered_methods(found.pairs["method"].unique()):
        rows = []
        for row, statistic in _lines():
            cells = []
            for signal in SIGNALS:
                result = correlation_of(found, method, row, signal)
                value = getattr(result, statistic)
                cells.append(Cell(number(value, 2) if value is not None else _undefined(result, reasons)))
                records.append(
                    (scale.OURS, method, row, statistic, signal, value, result.n, result.n_given, result.status)
                )
            rows.append([_line_head(row, statistic), *cells])
        groups.append(Group(f"{method_name(method)}; {scale.describe(frames.experiment)}", rows))
    columns = ["source", "method", "validation_envs", "statistic", "signal", "value", "n", "n_given", "status"]
    frame = pd.DataFrame(records, columns=columns).astype({"value": "float64", "n": "Int64", "n_given": "Int64"})
    printed = PrintedTable(
        name=name,
        caption=f"{title}. Correlation of similarity with improvement, pooled over checkpoints and environments.",
        columns=["Validation envs", *[HEADS[signal] for signal in SIGNALS]],
        groups=groups,
        notes=[*_notes(frames, found), *_standing_still(found), *reasons],
    )
    return BuiltTable(printed, frame)


def interval_table(frames: Frames, found: Transfer, name: str, title: str) -> BuiltTable:
    """Intervals over checkpoints and correlations within environments, one row per signal."""
    records: list[tuple[object, ...]] = []
    groups = []
    reasons: list[str] = []
    for method in ordered_methods(found.pairs["method"].unique()):
        for row, words in ROWS.items():
            pairs = chosen_pairs(found, method, row)
            rows = []
            for signal in SIGNALS:
                result = correlation_of(found, method, row, signal)
                drawn = _bootstrap(found, pairs, signal)
                inside = _within(found, pairs, signal)
                rows.append(
                    [
                        Cell(HEADS[signal]),
                        *_estimate(result, drawn, "spearman", reasons),
                        *_estimate(result, drawn, "pearson", reasons),
                        *[
                            Cell(number(value, 2) if value is not None else _undefined(inside, reasons))
                            for value in (inside.spearman, inside.pearson)
                        ],
                        Cell(f"{result.n} of {result.n_given}"),
                    ]
                )
                records.append(
                    (
                        method,
                        row,
                        signal,
                        result.spearman,
                        drawn.spearman.low,
                        drawn.spearman.high,
                        result.pearson,
                        drawn.pearson.low,
                        drawn.pearson.high,
                        inside.spearman,
                        inside.pearson,
                        result.n,
                        result.n_given,
                        result.status,
                        inside.status,
                        drawn.draws,
                        drawn.skipped,
                    )
                )
            groups.append(Group(f"{method_name(method)}, {words.lower()}", rows))
    columns = [
        "method",
        "validation_envs",
        "signal",
        "spearman",
        "spearman_low",
        "spearman_high",
        "pearson",
        "pearson_low",
        "pearson_high",
        "within_spearman",
        "within_pearson",
        "n",
        "n_given",
        "status",
        "within_status",
        "draws",
        "skipped_draws",
    ]
    numbers = dict.fromkeys([c for c in columns[3:11]], "float64")
    printed = PrintedTable(
        name=f"{name}_intervals",
        caption=f"{title}: 95% intervals over checkpoints, and correlations within environments.",
        columns=["Signal", "ρ", "95% of ρ", "r", "95% of r", "ρ within", "r within", "Pairs"],
        groups=groups,
        notes=[
            f"Intervals: checkpoints of a run drawn anew with all their environments ({st.DRAWS:,} draws); draws in "
            "which a series is constant are left out. Checkpoints of one run follow from each other and are not "
            "independent, and another training seed may give another picture: read the intervals as the least that "
            "chance can do.",
            "Within: partial correlation given the environment. The pooled one may come from the environments' means "
            "alone.",
            *reasons,
        ],
    )
    return BuiltTable(printed, pd.DataFrame(records, columns=columns).astype(numbers))


def _within(found: Transfer, pairs: pd.DataFrame, signal: str) -> Correlation:
    if signal in found.absent:
        return Correlation(None, None, 0, len(pairs), found.absent[signal])
    return within(pairs[signal].tolist(), pairs["improvement"].tolist(), pairs["environment"].tolist())


def _bootstrap(found: Transfer, pairs: pd.DataFrame, signal: str) -> BlockBootstrap:
    if signal in found.absent:
        none = st.Interval(None, None, reason=found.absent[signal])
        return BlockBootstrap(none, none, 0, 0)
    blocks = pd.factorize(pd.MultiIndex.from_frame(pairs[["seed", "step"]]))[0]
    return block_bootstrap(pairs[signal].tolist(), pairs["improvement"].tolist(), np.asarray(blocks).tolist())


def _estimate(result: Correlation, drawn: BlockBootstrap, statistic: str, reasons: list[str]) -> list[Cell]:
    value: float | None = getattr(result, statistic)
    if value is None:
        return [Cell(_undefined(result, reasons)), Cell(MISSING)]
    return [Cell(number(value, 2)), Cell(interval_text(getattr(drawn, statistic), 2))]


def _undefined(result: Correlation, reasons: list[str]) -> str:
    """ "n/a (constant)"; a long reason goes into the notes."""
    if len(result.reason) <= SHORT:
        return f"n/a ({result.reason})"
    note = f"n/a: {result.reason}."
    if note not in reasons:
        reasons.append(note)
    return "n/a"


def _standing_still(found: Transfer) -> list[str]:
    """Says so where it is the improvement that is constant, and no signal's fault."""
    return [
        f"{method_name(method)}, {words.lower()}: the improvement is the same in all pairs: no correlation is defined."
        for method in ordered_methods(found.pairs["method"].unique())
        for row, words in ROWS.items()
        if is_constant(chosen_pairs(found, method, row)["improvement"].dropna().to_numpy())
    ]


def _lines() -> list[tuple[str, str]]:
    return [(row, statistic) for row in ROWS for statistic in STATISTICS]


def _line_head(row: str, statistic: str) -> Cell:
    return Cell(f"{ROWS[row]}, {STATISTICS[statistic]}")


def _notes(frames: Frames, found: Transfer) -> Sequence[str]:
    pairs = found.pairs
    steps = sorted(pairs["step"].unique())
    spans = f"updates {steps[0]} to {steps[-1]}" if steps else "no checkpoint"
    baseline = ", ".join(map(str, found.baselines)) or MISSING
    return [
        f"Trained on {environment_name(found.training_environment)} alone; held-out leaves it out. {len(steps)} "
        f"checkpoints ({spans}), improvement from update {baseline}; ρ Spearman, r Pearson. pos: what rollouts "
        "demonstrate, neg: what they violate.",
        "Improvement: of the pass rate [ours]; the paper says reward improvement. A pair with an undefined member is "
        "left out, and an undefined correlation is never 0.",
        f"Similarity: cosine of the training rollouts' profile and the environment's validation profile; "
        f"{HEADS[PROJECTION]} is not in the paper's table.",
        *found.notes,
        *[f"{gap}; not in this table" for gap in frames.experiment.gaps()],
    ]
