"""How much the groups overlap that different selectors choose of the same candidates, overall and by environment, and
that one chooses by the tags of different judges. [ours]

python -m analysis.figures.selector_overlap --runs results/laptop_grid --out build/figures
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import scale
from analysis.figures import BuiltFigure, command, style
from analysis.figures.style import Theme
from analysis.formatting import percent
from analysis.frames import Frames
from analysis.names import environment_name
from analysis.overlaps import OVERALL, OWN, Overlaps, overlaps
from analysis.tables.selector_overlap import name_of, notes_of

COLOURS = "cividis"
CELL_IN, MARGIN_IN = 0.42, 1.9
"""Height of a cell of a matrix, and of the names and title around it."""
DARK_BELOW = 0.55
"""Overlap below which a cell is dark, so that its text is light."""


def build(frames: Frames) -> BuiltFigure:
    """The frame is that of the tables; AnalysisError if no selector was replayed."""
    found = overlaps(frames.experiment)
    return BuiltFigure(
        "selector_overlap",
        "Overlap of the groups that selectors choose of the same candidates; in brackets: by chance.",
        found.pairs,
        partial(draw, found, scale.is_synthetic(frames.experiment)),
        notes_of(found, frames),
    )


def draw(found: Overlaps, synthetic: bool, theme: Theme) -> Figure:
    """A matrix for all candidates and one for each environment, two in a row; a panel for other judges, if any."""
    environments = [OVERALL, *found.environments] if len(found.environments) > 1 else [OVERALL]
    panels = len(environments) + bool(found.judges)
    columns = min(2, panels)
    height = MARGIN_IN + CELL_IN * max(4, len(found.own) - 1)
    rows = -(-panels // columns)
    figure, grid = style.canvas(theme, rows, columns, height * rows)
    axes = [axis for row in grid for axis in row]
    for axis, environment in zip(axes, environments, strict=False):
        _matrix(axis, found, environment, theme)
    if found.judges:
        _judges(axes[len(environments)], found, theme)
    for axis in axes[panels:]:
        axis.set_visible(False)
    if synthetic:
        style.stamp(figure, scale.SYNTHETIC, theme)
    return figure


def _matrix(axis: Axes, found: Overlaps, environment: str, theme: Theme) -> None:
    """The lower triangle: rows are all selectors but the first, columns all but the last."""
    down, across = found.own[1:], found.own[:-1]
    values = np.full((len(down), len(across)), np.nan)
    chance = np.full_like(values, np.nan)
    for i, one in enumerate(down):
        for j, two in enumerate(across[: i + 1]):
            row = found.of(one, two, environment)
            if row is not None:
                values[i, j], chance[i, j] = row["overlap"], row["chance"]
    axis.imshow(np.ma.masked_invalid(values), cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
    for i, j in zip(*np.nonzero(~np.isnan(values)), strict=True):
        ink = "white" if values[i, j] < DARK_BELOW else "black"
        text = f"{percent(values[i, j])}\n({percent(chance[i, j])})"
        axis.text(j, i, text, ha="center", va="center", fontsize=7.5, color=ink, linespacing=0.95)
    axis.set_xticks(range(len(across)), list(map(name_of, across)), rotation=40, ha="right", fontsize=8.5)
    axis.set_yticks(range(len(down)), list(map(name_of, down)), fontsize=8.5)
    axis.grid(False)
    axis.spines["bottom"].set_visible(False)
    axis.set_title(environment_name(environment), loc="left", fontweight="bold", color=theme.ink)


def _judges(axis: Axes, found: Overlaps, theme: Theme) -> None:
    """For each selector that reads tags: points are judges against the run's own tags, dotted is chance."""
    selectors = list(dict.fromkeys(name for name, tags in found.choices if tags not in ("", OWN)))
    width = 0.6 / len(found.judges)
    for number, judge in enumerate(found.judges):
        colour, marker = style.style_of(judge, theme)
        for place, selector in enumerate(selectors):
            row = found.of((selector, OWN), (selector, judge))
            if row is None:
                continue
            x = place + width * (number - (len(found.judges) - 1) / 2)
            label = judge if place == 0 else None
            axis.plot([x], [row["overlap"]], color=colour, marker=marker, linestyle="none", markersize=7, label=label)
            axis.plot([x - 0.12, x + 0.12], [row["chance"]] * 2, color=theme.muted, linestyle=":", linewidth=1.6)
    axis.set_xticks(range(len(selectors)), selectors, rotation=40, ha="right", fontsize=8.5)
    axis.set_xlim(-0.6, len(selectors) - 0.4)
    axis.set_ylim(0, 1.05)
    style.percent_axis(axis)
    axis.set_title("By another judge's tags and by the run's own", loc="left", fontweight="bold", color=theme.ink)
    axis.legend(frameon=False, labelcolor=theme.ink, loc="lower right", fontsize=8.5)


def main(arguments: Sequence[str] | None = None) -> int:
    made = command.parser("Overlap of selectors")
    return command.run(lambda frames, _: build(frames), arguments, made)


if __name__ == "__main__":
    raise SystemExit(main())
