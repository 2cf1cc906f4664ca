"""Validation curves of several arms, one panel an environment and one overall: what Figures 2, 3, 5, 6 and 8 share.

An arm is a method, or a method with one judge. Every seed is a thin line, the mean over finished seeds a thick one,
and from three seeds on a band shows their range. An arm without runs stays in the legend as "not run".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import published, scale
from analysis.figures import BuiltFigure, style
from analysis.figures.curves import mean_over_seeds
from analysis.figures.style import Theme
from analysis.frames import Frames
from analysis.names import PROPOSED, environment_name, method_name
from analysis.statistics import MIN_SEEDS, wilson_interval

READING = (
    "Thin: single seeds; thick: mean over finished seeds; grey bar: the 95% width of one evaluation by the chance of "
    "its tasks."
)
HEIGHT_IN = 3.9


@dataclass(frozen=True)
class Arm:
    """One line of the legend. ``rates``: columns seed, step, environment, pass_rate, tasks; empty if never run."""

    label: str
    style_key: str
    rates: pd.DataFrame
    finished: frozenset[int] = frozenset()
    front: bool = False

    @property
    def was_run(self) -> bool:
        return not self.rates.empty


def method_arms(frames: Frames, methods: Sequence[str], labels: Mapping[str, str] | None = None) -> list[Arm]:
    """An arm for each method, in the given order, those without runs among them."""
    rates = frames.pass_rates
    return [
        Arm(
            (labels or {}).get(method, method_name(method)),
            method,
            rates[rates["method"] == method],
            frozenset(run.seed for run in frames.experiment.of(method) if run.complete),
            method == PROPOSED,
        )
        for method in methods
    ]


def absences(arms: Sequence[Arm], made_by: str) -> list[str]:
    """One sentence per arm without runs; ``made_by``: the experiments that make it."""
    return [f"{arm.label}: not run in this experiment; {made_by} makes it." for arm in arms if not arm.was_run]


def curves_frame(frames: Frames, methods: Sequence[str]) -> pd.DataFrame:
    """``pass_rates`` of the methods, in a fixed order: what the figure's CSV holds."""
    rates = frames.pass_rates
    chosen = rates[rates["method"].isin(methods)]
    return chosen.sort_values(["method", "seed", "environment", "step"], ignore_index=True)


def curves_figure(
    frames: Frames,
    name: str,
    caption: str,
    methods: Sequence[str],
    made_by: str,
    notes: Sequence[str],
    environments: Sequence[str] | None = None,
) -> BuiltFigure:
    """A figure of RISED whose arms are ``methods``; ``made_by``: the experiments that make them.

    ``environments``: of the panels (default: the experiment's); the overall rate is always the last.
    """
    arms = method_arms(frames, methods)
    panels = [*(environments if environments is not None else frames.environments), "overall"]
    return BuiltFigure(
        name,
        caption,
        curves_frame(frames, methods),
        partial(draw, arms, panels, scale.is_synthetic(frames.experiment)),
        [
            READING,
            *notes,
            f"Runs: {scale.describe(frames.experiment)}.",
            f"The paper's finding (published): {published.finding(f'rised_{name}')}.",
            *absences(arms, made_by),
            *frames.experiment.gaps(),
        ],
    )


def draw(arms: Sequence[Arm], environments: Sequence[str], synthetic: bool, theme: Theme) -> Figure:
    """One row of panels; the arm in front is drawn last and thickest."""
    figure, axes = style.canvas(theme, 1, len(environments), HEIGHT_IN)
    for axis, environment in zip(axes[0], environments, strict=True):
        axis.set_title(environment_name(environment), loc="left", fontweight="bold", color=theme.ink)
        axis.set_xlabel("Update")
        panel = [arm.rates[arm.rates["environment"] == environment] for arm in arms]
        for arm, rates in sorted(zip(arms, panel, strict=True), key=lambda pair: pair[0].front):
            _curve(axis, rates, arm, theme)
        style.update_axis(axis)
        style.percent_axis(axis)
        shown = [rates for rates in panel if len(rates)]
        if shown:
            _noise_bar(axis, pd.concat(shown), theme)
        else:
            style.say_empty(axis, "not evaluated in\nthis experiment", theme)
    axes[0][0].set_ylabel("Validation pass rate")
    labels = [arm.label if arm.was_run else f"{arm.label} (not run)" for arm in arms]
    style.legend_above(figure, [_handle(arm, theme) for arm in arms], labels, theme)
    if synthetic:
        style.stamp(figure, scale.SYNTHETIC, theme)
    return figure


def _curve(axis: Axes, rates: pd.DataFrame, arm: Arm, theme: Theme) -> None:
    colour, marker = style.style_of(arm.style_key, theme)
    for _, seed_rates in rates.groupby("seed"):
        ordered = seed_rates.sort_values("step")
        axis.plot(ordered["step"], ordered["pass_rate"], color=colour, linewidth=0.8, alpha=0.4)
    if rates.empty:
        return
    mean = mean_over_seeds(rates, arm.finished, "pass_rate")
    if len(mean) and int(mean["seeds"].max()) >= MIN_SEEDS:
        axis.fill_between(mean["step"], mean["low"], mean["high"], color=colour, alpha=0.12, linewidth=0)
    axis.plot(
        mean["step"],
        mean["mean"],
        color=colour,
        linewidth=2.8 if arm.front else 2.0,
        marker=marker,
        markersize=4.5,
        markeredgecolor=theme.background,
        markeredgewidth=0.6,
        zorder=4 if arm.front else 3,
    )


def _handle(arm: Arm, theme: Theme) -> Line2D:
    colour, marker = style.style_of(arm.style_key, theme)
    if not arm.was_run:
        return Line2D([], [], color=theme.muted, linewidth=1.2, linestyle=":")
    return Line2D([], [], color=colour, marker=marker, linewidth=2.8 if arm.front else 2.0, markersize=6)


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
