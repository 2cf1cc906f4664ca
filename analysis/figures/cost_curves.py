"""Fair cost [ours]: the same overall pass rates against updates, generated tokens and device-seconds.

A method that rolls out twice as many candidates, or that needs a judge, moves to the right when its axis is the one
that it spends more of. The paper gives step times only (Table 9). What is counted is in ``analysis.costs``.

    python -m analysis.figures.cost_curves --runs results/laptop_grid --out build/figures
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from analysis import costs, scale
from analysis.figures import BuiltFigure, command, style
from analysis.figures.style import Theme
from analysis.frames import Frames
from analysis.names import PROPOSED, method_name

HEIGHT_IN = 4.2


def build(frames: Frames) -> BuiltFigure:
    """The frame is ``costs.cost_frame``."""
    data = costs.cost_frame(frames)
    lines = costs.thresholds(frames)
    holes = data[data["step"] > 0].groupby("method")[["generated_tokens", "device_s"]].agg(lambda s: s.isna().any())
    return BuiltFigure(
        "cost_curves",
        "Overall validation pass rate against what it cost: updates, generated tokens, device-seconds [ours].",
        data,
        partial(draw, frames, data, lines),
        [
            "Thin: single seeds; thick: mean of rate and of cost over finished seeds, at the same updates. Dotted: the "
            "baseline's final pass rate."
            if lines
            else "Thin: single seeds; thick: mean over finished seeds.",
            *costs.device_notes(frames),
            *[f"{method_name(str(m))}: no complete cost, left out of a panel" for m in holes.index[holes.any(axis=1)]],
            f"Runs: {scale.describe(frames.experiment)}.",
            *frames.experiment.gaps(),
        ],
    )


def draw(frames: Frames, data: pd.DataFrame, lines: dict[str, float], theme: Theme) -> Figure:
    figure, axes = style.canvas(theme, 1, len(costs.AXES), HEIGHT_IN)
    methods = [m for m in frames.experiment.methods if m != PROPOSED]
    methods += [m for m in frames.experiment.methods if m == PROPOSED]
    for axis, (column, title) in zip(axes[0], costs.AXES.items(), strict=True):
        known = data.dropna(subset=[column, "pass_rate"])
        later = known[known["step"] > 0]
        known = known[known["method"].isin(later["method"])]
        for method in methods:
            finished = {run.seed for run in frames.experiment.of(method) if run.complete}
            _curve(axis, known[known["method"] == method], column, method, finished, theme)
        axis.set_xlabel(title)
        if known.empty:
            style.say_empty(axis, "not recorded in\nthese shards", theme)
            continue
        if "full" in lines:
            axis.axhline(lines["full"], color=theme.muted, linewidth=1.2, linestyle=":", zorder=1)
        style.percent_axis(axis)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        if column != "step":
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes[0][0].set_ylabel("Overall validation pass rate")
    shown = frames.experiment.methods
    handles = [Line2D([], [], color=style.style_of(m, theme)[0], marker=style.style_of(m, theme)[1]) for m in shown]
    style.legend_above(figure, handles, [method_name(m) for m in shown], theme)
    if scale.is_synthetic(frames.experiment):
        style.stamp(figure, scale.SYNTHETIC, theme)
    return figure


def _curve(axis: Axes, rows: pd.DataFrame, column: str, method: str, finished: set[int], theme: Theme) -> None:
    colour, marker = style.style_of(method, theme)
    for _, block in rows.groupby("seed"):
        ordered = block.sort_values("step")
        axis.plot(ordered[column], ordered["pass_rate"], color=colour, linewidth=0.7, alpha=0.35)
    used = rows[rows["seed"].isin(finished)] if finished else rows
    x = "cost" if column == "step" else column
    grouped = used.assign(cost=used["step"]).groupby("step")[[x, "pass_rate"]].agg(["mean", "size"])
    whole = grouped[grouped[("pass_rate", "size")] == used["seed"].nunique()]
    front = method == PROPOSED
    axis.plot(
        whole[(x, "mean")],
        whole[("pass_rate", "mean")],
        color=colour,
        linewidth=2.8 if front else 1.8,
        marker=marker,
        markersize=4.5,
        markeredgecolor=theme.background,
        markeredgewidth=0.6,
        zorder=4 if front else 3,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run(lambda frames, _: build(frames), arguments, command.parser("Pass rate against cost"))


if __name__ == "__main__":
    raise SystemExit(main())
