"""Similarity against improvement, one point a checkpoint and environment: what the correlations of Tables 1 and 7 pool.

[ours] The paper prints the correlations alone. Seen as points, a correlation over all environments that comes from the
environments' means (the one trained on is alone at the right and improves) is told from one within environments.

    python -m analysis.figures.transfer --runs results/webshop_only --out build/figures
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import scale
from analysis.correlation import correlate
from analysis.figures import BuiltFigure, command, style
from analysis.figures.style import Theme
from analysis.formatting import number
from analysis.frames import Frames
from analysis.names import environment_name, ordered_environments
from analysis.transfer import LAYER, Transfer, transfer

SHOWN = {"rubric_all": "Rubric profile", "skill_all": "Skill profile", LAYER: "Gradient of one layer"}


def build(frames: Frames) -> BuiltFigure:
    """The frame holds every pair and signal; AnalysisError if the runs train on several environments."""
    found = transfer(frames)
    notes = [
        f"One point a checkpoint and environment; trained on {environment_name(found.training_environment)} alone. "
        "ρ and r over all environments, as in the table.",
        f"Runs: {scale.describe(frames.experiment)}.",
        *found.notes,
        *frames.experiment.gaps(),
    ]
    return BuiltFigure(
        "transfer",
        "Similarity to the training environment against improvement from the baseline.",
        found.pairs,
        partial(draw, found),
        notes,
    )


def draw(found: Transfer, theme: Theme) -> Figure:
    figure, axes = style.canvas(theme, 1, len(SHOWN), 4.2)
    environments = ordered_environments(found.pairs["environment"].unique())
    for axis, (signal, title) in zip(axes[0], SHOWN.items(), strict=True):
        axis.set_title(title, loc="left", fontweight="bold", color=theme.ink)
        pairs = found.pairs.dropna(subset=[signal, "improvement"])
        if pairs.empty:
            style.say_empty(axis, found.absent.get(signal, "no checkpoint after the baseline"), theme)
            continue
        for environment in environments:
            here = pairs[pairs["environment"] == environment]
            colour, marker = style.environment_style(environment, theme)
            axis.scatter(here[signal], here["improvement"], color=colour, marker=marker, s=34, alpha=0.8, linewidths=0)
        axis.axhline(0, color=theme.muted, linewidth=0.8)
        axis.set_xlabel(f"Cosine ({_statistics(pairs, signal)})")
        style.percent_axis(axis)
    axes[0][0].set_ylabel("Improvement of the pass rate")
    handles = [_handle(environment, theme) for environment in environments]
    style.legend_above(figure, handles, [environment_name(environment) for environment in environments], theme)
    return figure


def _statistics(pairs: pd.DataFrame, signal: str) -> str:
    """ "ρ 0.80, r 0.89", or why there is none."""
    result = correlate(pairs[signal].tolist(), pairs["improvement"].tolist())
    if result.reason:
        return f"no correlation: {result.reason}"
    return f"ρ {number(result.spearman, 2)}, r {number(result.pearson, 2)}"


def _handle(environment: str, theme: Theme) -> Line2D:
    colour, marker = style.environment_style(environment, theme)
    return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=7)


def main(arguments: Sequence[str] | None = None) -> int:
    made = command.parser("Similarity against improvement")
    return command.run(lambda frames, _: build(frames), arguments, made)


if __name__ == "__main__":
    raise SystemExit(main())
