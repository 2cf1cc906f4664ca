"""Figure 4: how often training rollouts exhibit positive rubrics, beside the validation pass rate; RISED against
GRPO-64.

Upper row as in the paper: cumulative counts of training rollouts that exhibit the rubric (solid, left axis) and the
environment's validation pass rate (dashed, right axis). A method that rolls out more candidates counts more of
everything, so the lower row [ours] shows the share of each step's rollouts instead, as a moving average. Which
rubrics the paper draws is not in our sources; ours are the rubrics of its Table 3, one per environment.

    python -m analysis.figures.figure4 --runs results/laptop_grid --out build/figures
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
from analysis.frames import Frames, only_judge
from analysis.names import BASELINE, PROPOSED, environment_name, method_name
from rised.rubrics.vocabulary import Polarity, load_vocabulary

METHODS = (BASELINE, PROPOSED)
WINDOW = 10
"""Steps of the moving average of shares."""


def build(frames: Frames, judge: str | None = None) -> BuiltFigure:
    """The frame holds every positive rubric of both methods; the drawing shows one per environment."""
    data = accumulation(frames, judge)
    shown = indicated_rubrics()
    notes = [
        "Upper row: cumulative counts (solid, left) and validation pass rate (dashed, right), means over seeds with "
        "their range as bands. Lower row [ours]: share of the step's rollouts with a valid tag, moving average over "
        f"{WINDOW} updates: counts also grow with the number of rollouts, shares do not.",
        f"Rubrics: {', '.join(shown.values())}, named in the paper's Table 3; which ones its figure draws is not in "
        "our sources. The CSV holds every positive rubric.",
        f"Runs: {scale.describe(frames.experiment)}.",
        f"The paper's finding (published): {published.finding('rised_figure4')}.",
        *[f"{method_name(m)}: no training tags, nothing to draw" for m in METHODS if m not in set(data["method"])],
        *[gap for gap in frames.experiment.gaps() if gap.startswith(tuple(method_name(m) for m in METHODS))],
    ]
    return BuiltFigure(
        "figure4",
        "Figure 4. Positive-rubric accumulation and task performance, RISED and GRPO-64.",
        data,
        partial(draw, frames, data, shown),
        notes,
    )


def indicated_rubrics() -> dict[str, str]:
    """Environment -> the positive rubric of the paper's Table 3 (the first that the paper names for it)."""
    named = published.named_rubrics()
    positive = named[(named["polarity"] == "positive") & (named["skill"] == "search_and_navigation")]
    return dict(zip(positive["environment"], positive["rubric" if "rubric" in positive else "name"], strict=True))


def accumulation(frames: Frames, judge: str | None = None) -> pd.DataFrame:
    """Positive rubrics only: columns method, seed, step, rubric_id, count, tagged, cumulative, share (moving mean)."""
    vocabulary = load_vocabulary()
    positive = {rubric.id for rubric in vocabulary.rubrics if rubric.polarity is Polarity.POSITIVE}
    runs = [run for method in METHODS for run in frames.experiment.of(method)]
    chosen = judge or only_judge(runs)
    parts: list[pd.DataFrame] = []
    if chosen is not None:
        for run in runs:
            counts = frames.rubric_counts(run, chosen)
            parts.append(counts[counts["rubric_id"].isin(positive)].assign(method=run.method, seed=run.seed))
        parts = [part for part in parts if len(part)]
    columns = ["method", "seed", "step", "rubric_id", "count", "tagged", "cumulative", "share"]
    if not parts:
        return pd.DataFrame(columns=columns)
    data = pd.concat(parts, ignore_index=True).rename(columns={"demonstrates": "count"})
    data["tagged"] = data[["count", "violates", "absent"]].sum(axis=1)
    data = data.sort_values(["method", "seed", "rubric_id", "step"], ignore_index=True)
    series = data.groupby(["method", "seed", "rubric_id"])
    data["cumulative"] = series["count"].cumsum()
    window = series[["count", "tagged"]].rolling(WINDOW, min_periods=1).sum().reset_index(drop=True)
    data["share"] = window["count"] / window["tagged"].where(window["tagged"] > 0)
    return data[columns].astype({"count": "int64", "tagged": "int64", "cumulative": "int64"})


def draw(frames: Frames, data: pd.DataFrame, shown: dict[str, str], theme: Theme) -> Figure:
    environments = [e for e in frames.environments if e in shown] or list(shown)
    figure, axes = style.canvas(theme, 2, len(environments), 6.4)
    for column, environment in enumerate(environments):
        upper, lower = axes[0][column], axes[1][column]
        rubric = data[data["rubric_id"] == shown[environment]]
        upper.set_title(
            f"{environment_name(environment)}\n{shown[environment]}", loc="left", fontsize=11, color=theme.ink
        )
        lower.set_xlabel("Update")
        if rubric.empty:
            style.say_empty(upper, "no tags of this rubric", theme)
            style.say_empty(lower, "no tags of this rubric", theme)
            continue
        _counts(upper, rubric, frames, theme)
        _pass_rates(upper, frames, environment, theme, label=column == len(environments) - 1)
        _shares(lower, rubric, frames, theme)
    axes[0][0].set_ylabel("Rollouts exhibiting it,\ncumulative")
    axes[1][0].set_ylabel("Share of rollouts\nexhibiting it")
    methods = [m for m in METHODS if m in frames.experiment.methods]
    handles = [Line2D([], [], color=style.style_of(m, theme)[0], linewidth=2.6) for m in methods]
    handles += [
        Line2D([], [], color=theme.muted, linewidth=2),
        Line2D([], [], color=theme.muted, linewidth=1.6, linestyle="--"),
    ]
    style.legend_above(
        figure, handles, [*map(method_name, methods), "rollout counts (left)", "validation pass rate (right)"], theme
    )
    if scale.is_synthetic(frames.experiment):
        style.stamp(figure, scale.SYNTHETIC, theme)
    return figure


def _finished(frames: Frames, method: str) -> set[int]:
    return {run.seed for run in frames.experiment.of(method) if run.complete}


def _counts(axis: Axes, rubric: pd.DataFrame, frames: Frames, theme: Theme) -> None:
    for method in METHODS:
        mean = mean_over_seeds(rubric[rubric["method"] == method], _finished(frames, method), "cumulative")
        colour, _ = style.style_of(method, theme)
        axis.fill_between(mean["step"], mean["low"], mean["high"], color=colour, alpha=0.18, linewidth=0)
        axis.plot(mean["step"], mean["mean"], color=colour, linewidth=2.4)
    axis.set_ylim(bottom=0)
    style.update_axis(axis)


def _shares(axis: Axes, rubric: pd.DataFrame, frames: Frames, theme: Theme) -> None:
    for method in METHODS:
        rows = rubric[rubric["method"] == method]
        colour, _ = style.style_of(method, theme)
        for _, seed_rows in rows.groupby("seed"):
            axis.plot(seed_rows["step"], seed_rows["share"], color=colour, linewidth=0.8, alpha=0.4)
        mean = mean_over_seeds(rows, _finished(frames, method), "share")
        axis.plot(mean["step"], mean["mean"], color=colour, linewidth=2.4)
    axis.set_ylim(bottom=0)
    style.update_axis(axis)
    style.percent_axis(axis)


def _pass_rates(axis: Axes, frames: Frames, environment: str, theme: Theme, label: bool) -> None:
    right = axis.twinx()
    style.theme_axis(right, theme)
    right.grid(False)
    rates = frames.pass_rates[frames.pass_rates["environment"] == environment]
    for method in METHODS:
        mean = mean_over_seeds(rates[rates["method"] == method], _finished(frames, method), "pass_rate")
        right.plot(mean["step"], mean["mean"], color=style.style_of(method, theme)[0], linewidth=1.6, linestyle="--")
    right.set_ylim(0, max(0.05, 1.15 * float(rates["pass_rate"].max())) if len(rates) else 1)
    style.percent_axis(right)
    if label:
        right.set_ylabel("Validation pass rate", color=theme.ink)


def main(arguments: Sequence[str] | None = None) -> int:
    made = command.parser("Figure 4: positive-rubric accumulation")
    made.add_argument("--judge", help="id of the judge whose tags count, where the runs hold several")
    return command.run(lambda frames, options: build(frames, options.judge), arguments, made)


if __name__ == "__main__":
    raise SystemExit(main())
