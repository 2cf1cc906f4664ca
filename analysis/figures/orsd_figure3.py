"""ORSD Figure 3: training reward over updates on WebShop and ALFWorld, ORSD and GRPO.

The paper's curves are not in our sources as numbers; its finding is printed below. Ours are mean training rewards of
the step's rollouts, as a moving mean; GRPO is ``grpo_64``. Training rewards are those of the run's configuration:
``training_reward/…`` where they are shaped (ORSD's for WebShop [paper]), else the environment's own. A run with shaped
rewards is not to be compared with one without, which the figure says.

    python -m analysis.figures.orsd_figure3 --runs results/laptop_orsd --out build/figures
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import orsd, scale
from analysis.figures import BuiltFigure, command, style
from analysis.figures.curves import mean_over_seeds
from analysis.figures.style import Theme
from analysis.frames import Frames
from analysis.names import BASELINE, environment_name, method_name

METHODS = ("orsd", BASELINE)
ENVIRONMENTS = ("webshop", "alfworld")
WINDOW = 10
KINDS = ("rollout/reward", "training_reward")
"""Metrics before the environment's name: the raw reward, and the shaped one where the run trains on it."""
HEIGHT_IN = 4.0
FINDING = (
    "ORSD improves earlier on WebShop with Qwen3-1.7B and keeps higher rewards through most of training "
    "with Qwen3-4B; on "
    "ALFWorld the advantage emerges later at 4B; the mean reward is higher in all four settings"
)
"""ORSD, section 4.4, in our words."""


def build(frames: Frames) -> BuiltFigure:
    """Columns method, seed, step, environment, kind (of reward), reward, smoothed (moving mean over WINDOW updates)."""
    data = rewards(frames)
    present = set(data["method"])
    return BuiltFigure(
        "orsd_figure3",
        "ORSD Figure 3. Training reward: mean over each update's training rollouts.",
        data,
        partial(draw, frames, data),
        [
            f"Moving mean over {WINDOW} updates; thin: single seeds; thick: mean over finished seeds.",
            f"The paper's finding (published): {FINDING}.",
            f"Runs: {scale.describe(frames.experiment)}.",
            *_mixed(data),
            *([] if "orsd" in present else [orsd.NOT_HERE]),
            *([] if BASELINE in present else [f"{method_name(BASELINE)}: not run in this experiment."]),
            *frames.experiment.gaps(),
        ],
    )


def rewards(frames: Frames) -> pd.DataFrame:
    metrics = frames.metrics[frames.metrics["method"].isin(METHODS)]
    metrics = metrics.join(metrics["name"].str.extract(r"^(?P<kind>.+)/(?P<environment>[^/]+)$"))
    metrics = metrics[metrics["kind"].isin(KINDS) & metrics["environment"].isin(ENVIRONMENTS)]
    keys = ["method", "seed", "environment"]
    best = metrics.groupby([*keys, "step"])["kind"].transform("max")  # "training_reward" sorts last
    rows = metrics[metrics["kind"] == best].dropna(subset=["value"])
    rows = rows.sort_values([*keys, "step"], ignore_index=True).rename(columns={"value": "reward"})
    smooth = rows.groupby(keys)["reward"].rolling(WINDOW, min_periods=1).mean()
    rows["smoothed"] = smooth.reset_index(level=keys, drop=True) if len(rows) else pd.Series(dtype="float64")
    return rows[["method", "seed", "step", "environment", "kind", "reward", "smoothed"]]


def _mixed(data: pd.DataFrame) -> list[str]:
    """Says so where the methods were trained on different rewards."""
    kinds = data.groupby("environment")["kind"].nunique()
    named = [environment_name(str(name)) for name in kinds[kinds > 1].index]
    return [f"{', '.join(named)}: some runs were trained on shaped rewards and some on raw ones."] if named else []


def draw(frames: Frames, data: pd.DataFrame, theme: Theme) -> Figure:
    figure, axes = style.canvas(theme, 1, len(ENVIRONMENTS), HEIGHT_IN)
    for axis, environment in zip(axes[0], ENVIRONMENTS, strict=True):
        axis.set_title(environment_name(environment), loc="left", fontweight="bold", color=theme.ink)
        axis.set_xlabel("Update")
        rows = data[data["environment"] == environment]
        if rows.empty:
            style.say_empty(axis, "no training rewards of\nORSD or GRPO-64 here", theme)
            continue
        for method in METHODS:
            finished = {run.seed for run in frames.experiment.of(method) if run.complete}
            _curve(axis, rows[rows["method"] == method], method, finished, theme)
        style.update_axis(axis)
    axes[0][0].set_ylabel("Mean training reward")
    there = set(data["method"])
    colours = [style.style_of(m, theme)[0] if m in there else theme.muted for m in METHODS]
    lines = [
        Line2D([], [], color=c, linestyle="-" if m in there else ":") for c, m in zip(colours, METHODS, strict=True)
    ]
    labels = [method_name(m) + ("" if m in there else " (not run)") for m in METHODS]
    style.legend_above(figure, lines, labels, theme)
    if scale.is_synthetic(frames.experiment):
        style.stamp(figure, scale.SYNTHETIC, theme)
    return figure


def _curve(axis: Axes, rows: pd.DataFrame, method: str, finished: set[int], theme: Theme) -> None:
    colour, _ = style.style_of(method, theme)
    for _, block in rows.groupby("seed"):
        axis.plot(block["step"], block["smoothed"], color=colour, linewidth=0.7, alpha=0.4)
    if len(rows):
        mean = mean_over_seeds(rows, finished, "smoothed")
        axis.plot(mean["step"], mean["mean"], color=colour, linewidth=2.2)


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run(lambda frames, _: build(frames), arguments, command.parser("ORSD Figure 3: training reward"))


if __name__ == "__main__":
    raise SystemExit(main())
