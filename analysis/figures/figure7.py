"""Figure 7: negative rubrics reveal stages of improvement in DBBench; a marker where each rate falls to half.

The paper tracks repeated failed actions, false completion claims, and hallucinated observations or actions. The names
of the last three rubrics are ours. Rates are moving means over ``WINDOW`` updates of the share of validly tagged
training rollouts; the half-level marker is that of the mean curve over finished seeds, and the table of markers below
each figure gives every seed's own.

    python -m analysis.figures.figure7 --runs results/laptop_grid --out build/figures
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import published, scale
from analysis.behaviour import half_level_step, rates
from analysis.figures import BuiltFigure, command, style
from analysis.figures.curves import mean_over_seeds
from analysis.figures.style import Theme
from analysis.frames import Frames
from analysis.names import BASELINE, PROPOSED, method_name

ENVIRONMENT = "dbbench"
RUBRICS = {
    "repeats_failed_action": ("#0072b2", "s"),
    "claims_false_completion": ("#009e73", "^"),
    "hallucinates_observation": ("#d55e00", "D"),
    "refers_to_unobserved_entity": ("#8c5a2b", "v"),
}
"""In the order in which the paper names the behaviours; the last two are its "hallucinated observations or actions"."""
METHODS = (PROPOSED, BASELINE)
WINDOW = 10
HEIGHT_IN = 4.6


def build(frames: Frames) -> BuiltFigure:
    """Columns method, seed, step, rubric_id, count, tagged, rate, half_level_step (of that seed's curve)."""
    data = rates(frames, METHODS, list(RUBRICS), ENVIRONMENT, "violates", WINDOW)
    markers = half_levels(data)
    return BuiltFigure(
        "figure7",
        "Figure 7. Negative rubrics in DBBench: share of training rollouts that show each undesired behaviour; "
        "markers where it falls to half of its initial level.",
        data.merge(markers.drop(columns="reason"), on=["method", "seed", "rubric_id"], how="left"),
        partial(draw, frames, data),
        [
            f"Moving mean over {WINDOW} updates of the rollouts with a valid tag. Initial level: its first value; the "
            f"marker needs {WINDOW} values in a row at or below half [ours].",
            "hallucinates_observation and refers_to_unobserved_entity stand for the paper's hallucinated observations "
            "or actions; these names and claims_false_completion are ours.",
            *half_level_sentences(markers),
            f"Runs: {scale.describe(frames.experiment)}.",
            f"The paper's finding (published): {published.finding('rised_figure7')}.",
            *[
                f"{method_name(m)}: no tagged training rollouts in DBBench"
                for m in METHODS
                if m not in set(data.method)
            ],
            *[gap for gap in frames.experiment.gaps() if gap.startswith(tuple(method_name(m) for m in METHODS))],
        ],
    )


def half_levels(data: pd.DataFrame) -> pd.DataFrame:
    """Columns method, seed, rubric_id, half_level_step (missing: see reason), reason."""
    rows = []
    for (method, seed, rubric), block in data.groupby(["method", "seed", "rubric_id"], sort=False):
        step, reason = half_level_step(block, WINDOW)
        rows.append((method, seed, rubric, step, reason))
    frame = pd.DataFrame(rows, columns=["method", "seed", "rubric_id", "half_level_step", "reason"])
    return frame.astype({"half_level_step": "Int64"})


def half_level_sentences(markers: pd.DataFrame) -> list[str]:
    """One sentence per method: when each behaviour halved, seed by seed."""
    sentences = []
    for method, block in markers.groupby("method", sort=False):
        parts = []
        for rubric in RUBRICS:
            rows = block[block["rubric_id"] == rubric].to_dict("records")
            told = [str(r["half_level_step"]) if not r["reason"] else f"none ({r['reason']})" for r in rows]
            if told:
                parts.append(f"{rubric} {', '.join(told)}")
        sentences.append(f"{method_name(str(method))}, half level by seed: {'; '.join(parts)}.")
    return sentences


def draw(frames: Frames, data: pd.DataFrame, theme: Theme) -> Figure:
    figure, axes = style.canvas(theme, 1, len(METHODS), HEIGHT_IN)
    for axis, method in zip(axes[0], METHODS, strict=True):
        axis.set_title(f"DBBench, {method_name(method)}", loc="left", fontweight="bold", color=theme.ink)
        axis.set_xlabel("Update")
        rows = data[data["method"] == method]
        if rows["rate"].notna().sum() == 0:
            style.say_empty(axis, f"no tagged rollouts of\n{WINDOW} updates and more", theme)
            continue
        finished = {run.seed for run in frames.experiment.of(method) if run.complete}
        for rubric in RUBRICS:
            _curve(axis, rows[rows["rubric_id"] == rubric], rubric, finished, theme)
        axis.set_ylim(bottom=0)
        style.update_axis(axis)
        style.percent_axis(axis)
    axes[0][0].set_ylabel("Share of rollouts that show it")
    handles = [Line2D([], [], color=style.tint(colour, theme), linewidth=2.2) for colour, _ in RUBRICS.values()]
    handles.append(Line2D([], [], color=theme.muted, marker="o", markersize=9, linestyle=""))
    style.legend_above(figure, handles, [*RUBRICS, "half of initial level"], theme)
    if scale.is_synthetic(frames.experiment):
        style.stamp(figure, scale.SYNTHETIC, theme)
    return figure


def _curve(axis: Axes, rows: pd.DataFrame, rubric: str, finished: set[int], theme: Theme) -> None:
    colour, marker = RUBRICS[rubric]
    colour = style.tint(colour, theme)
    for _, block in rows.groupby("seed"):
        axis.plot(block["step"], block["rate"], color=colour, linewidth=0.7, alpha=0.35)
    mean = mean_over_seeds(rows, finished, "rate")
    axis.plot(mean["step"], mean["mean"], color=colour, linewidth=2.2)
    used = rows[rows["seed"].isin(finished)] if finished else rows
    pooled = used.groupby("step", as_index=False)[["count", "tagged"]].sum()
    step, _ = half_level_step(pooled.merge(mean.rename(columns={"mean": "rate"}), on="step", how="left"), WINDOW)
    if step is not None:
        height = float(mean.loc[mean["step"] == step, "mean"].iloc[0])
        axis.plot([step], [height], marker=marker, markersize=10, color=colour, markeredgecolor=theme.ink, zorder=5)
        axis.annotate(str(step), (step, height), xytext=(0, 10), textcoords="offset points", ha="center", fontsize=9)


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run(lambda frames, _: build(frames), arguments, command.parser("Figure 7: negative rubrics"))


if __name__ == "__main__":
    raise SystemExit(main())
