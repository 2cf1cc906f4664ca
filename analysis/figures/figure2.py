"""Figure 2: validation pass rate over training, per environment and overall, all methods.

Every seed is a thin line and the mean over a method's finished seeds a thick one; with three or more seeds a band
shows their range. The grey bar is the 95% width of one evaluation of this panel by the chance of its tasks alone:
wiggles within it are not learning.

    python -m analysis.figures.figure2 --runs results/laptop_grid --out build/figures
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import published, scale
from analysis.figures import BuiltFigure, command, style
from analysis.figures.curves import mean_over_seeds
from analysis.figures.style import Theme
from analysis.frames import Frames
from analysis.names import PROPOSED, environment_name, method_name, ordered_methods
from analysis.statistics import MIN_SEEDS, wilson_interval


def build(frames: Frames) -> BuiltFigure:
    """The frame is ``frames.pass_rates`` of every run, finished or not."""
    data = frames.pass_rates.sort_values(["method", "seed", "environment", "step"], ignore_index=True)
    notes = [
        "Thin: single seeds; thick: mean over finished seeds; grey bar: the 95% width of one evaluation by the chance "
        "of its tasks.",
        f"Runs: {scale.describe(frames.experiment)}.",
        f"The paper's finding (published): {published.finding('rised_figure2')}.",
        *frames.experiment.gaps(),
    ]
    return BuiltFigure(
        "figure2",
        "Figure 2. Validation dynamics: pass rate on held-out tasks during joint training.",
        data,
        partial(draw, frames),
        notes,
    )


def draw(frames: Frames, theme: Theme) -> Figure:
    environments = [*frames.environments, "overall"]
    figure, axes = style.canvas(theme, 1, len(environments), 3.9)
    finished = {
        method: {r.seed for r in frames.experiment.of(method) if r.complete} for method in frames.experiment.methods
    }
    drawn = [m for m in frames.experiment.methods if m != PROPOSED] + [
        m for m in frames.experiment.methods if m == PROPOSED
    ]
    for axis, environment in zip(axes[0], environments, strict=True):
        rates = frames.pass_rates[frames.pass_rates["environment"] == environment]
        for method in drawn:
            _curve(axis, rates[rates["method"] == method], method, finished[method], theme)
        axis.set_title(environment_name(environment), loc="left", fontweight="bold", color=theme.ink)
        axis.set_xlabel("Update")
        style.update_axis(axis)
        style.percent_axis(axis)
        if rates.empty:
            style.say_empty(axis, "no evaluations", theme)
        else:
            _noise_bar(axis, rates, theme)
    axes[0][0].set_ylabel("Validation pass rate")
    methods = ordered_methods(frames.experiment.methods)
    handles = [_handle(method, theme) for method in methods]
    style.legend_above(figure, handles, [method_name(m) for m in methods], theme)
    return figure


def _curve(axis: Axes, rates: pd.DataFrame, method: str, finished: set[int], theme: Theme) -> None:
    colour, marker = style.style_of(method, theme)
    for _, seed_rates in rates.groupby("seed"):
        ordered = seed_rates.sort_values("step")
        axis.plot(ordered["step"], ordered["pass_rate"], color=colour, linewidth=0.8, alpha=0.4)
    if rates.empty:
        return
    mean = mean_over_seeds(rates, finished, "pass_rate")
    front = method == PROPOSED
    if len(mean) and int(mean["seeds"].max()) >= MIN_SEEDS:
        axis.fill_between(mean["step"], mean["low"], mean["high"], color=colour, alpha=0.12, linewidth=0)
    axis.plot(
        mean["step"],
        mean["mean"],
        color=colour,
        linewidth=2.8 if front else 2.0,
        marker=marker,
        markersize=4.5,
        markeredgecolor=theme.background,
        markeredgewidth=0.6,
        zorder=4 if front else 3,
    )


def _handle(method: str, theme: Theme) -> Line2D:
    colour, marker = style.style_of(method, theme)
    return Line2D([], [], color=colour, marker=marker, linewidth=2.8 if method == PROPOSED else 2.0, markersize=6)


def _noise_bar(axis: Axes, rates: pd.DataFrame, theme: Theme) -> None:
    """The 95% width of one evaluation at the panel's size, in the lower right corner.

    For "overall" all tasks count as one panel, which is slightly wider than the mean of unequal environments.
    """
    tasks = rates["tasks"].median()
    if pd.isna(tasks) or tasks < 1:
        return
    centre = float(rates["pass_rate"].median())
    chance = wilson_interval(round(centre * tasks), int(tasks))
    if chance.low is None or chance.high is None:
        return
    half = (chance.high - chance.low) / 2
    bottom, top = axis.get_ylim()
    left, right = axis.get_xlim()
    axis.set_xlim(left, right + 0.13 * (right - left))
    bottom = min(bottom, max(0.0, top - 2.4 * half))
    top = max(top, bottom + 2.1 * half)
    axis.set_ylim(bottom, top)
    x, y = right + 0.035 * (right - left), bottom + half + 0.04 * (top - bottom)
    axis.errorbar([x], [y], yerr=[half], color=theme.muted, capsize=3, linewidth=1.2, marker="", zorder=2)
    axis.annotate(
        f"chance, {tasks:,.0f} tasks",
        (x, y),
        xytext=(9, 0),
        textcoords="offset points",
        rotation=90,
        ha="center",
        va="center",
        fontsize=8,
        color=theme.muted,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run(lambda frames, _: build(frames), arguments, command.parser("Figure 2: validation dynamics"))


if __name__ == "__main__":
    raise SystemExit(main())
