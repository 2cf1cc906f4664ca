"""Judges against the rule-based detectors: kappa by environment, and the overlap of the selected groups. [ours]

python -m analysis.figures.audit --runs results/quickstart --out build/figures
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import scale
from analysis.audits import Audits, audits
from analysis.figures import BuiltFigure, command, style
from analysis.figures.style import Theme
from analysis.frames import Frames
from analysis.names import environment_name, ordered_environments
from analysis.tables.audit import TRUTH

WIDTH = 0.5
"""Of the band in which a judge's environments stand side by side."""


def build(frames: Frames) -> BuiltFigure:
    """The frame is that of the table by environment, with the overlap of each judge; AnalysisError without audits."""
    found = audits(frames.experiment)
    pooled = found.pooled()
    frame = pooled[pooled["rubric_id"] == ""].merge(_overlap(found), on="audited", how="left")
    notes = [TRUTH, f"Runs: {scale.describe(frames.experiment)}.", *found.gaps]
    return BuiltFigure(
        "audit",
        "Agreement of judges with the detectors, and the groups that both select.",
        frame,
        partial(draw, frame, found),
        notes,
    )


def _overlap(found: Audits) -> pd.DataFrame:
    covered = found.selections[found.selections["rubrics"] == "covered"]
    return covered.groupby("audited", as_index=False)[["overlap", "chance_overlap"]].mean()


def draw(frame: pd.DataFrame, found: Audits, theme: Theme) -> Figure:
    figure, ((left, right),) = style.canvas(theme, 1, 2, 4.4)
    judges = sorted(frame["audited"].unique())
    environments = ordered_environments(frame["environment"].unique())
    for place, environment in enumerate(environments):
        shift = WIDTH * ((place + 0.5) / len(environments) - 0.5)
        colour, marker = style.environment_style(environment, theme)
        for x, judge in enumerate(judges):
            own = frame[(frame["audited"] == judge) & (frame["environment"] == environment)].dropna(subset=["kappa"])
            for _, row in own.iterrows():
                left.plot([x + shift], [row["kappa"]], color=colour, marker=marker, markersize=7)
                if pd.notna(row["kappa_low"]):
                    left.plot([x + shift] * 2, [row["kappa_low"], row["kappa_high"]], color=colour, linewidth=1.6)
    left.set_title("Agreement with the detectors (κ)", loc="left", fontweight="bold", color=theme.ink)
    right.set_title("Groups that both select", loc="left", fontweight="bold", color=theme.ink)
    covered = found.selections[found.selections["rubrics"] == "covered"]
    for x, judge in enumerate(judges):
        own_steps = covered[covered["audited"] == judge]
        right.plot(
            [x] * len(own_steps), own_steps["overlap"], linestyle="none", marker="o", alpha=0.35, color=theme.ink
        )
        right.plot([x - 0.2, x + 0.2], [own_steps["overlap"].mean()] * 2, color=theme.ink, linewidth=2.2)
        right.plot([x - 0.2, x + 0.2], [own_steps["chance_overlap"].mean()] * 2, color=theme.muted, linestyle=":")
    right.set_ylim(0, 1.05)
    style.percent_axis(right)
    right.set_xlabel("Points: updates; line: mean; dotted: by chance")
    for axis in (left, right):
        axis.set_xticks(range(len(judges)), judges)
        axis.set_xlim(-0.6, len(judges) - 0.4)
    left.axhline(0, color=theme.muted, linewidth=0.8)
    handles = [_handle(environment, theme) for environment in environments]
    style.legend_above(figure, handles, [environment_name(environment) for environment in environments], theme)
    return figure


def _handle(environment: str, theme: Theme) -> Line2D:
    colour, marker = style.environment_style(environment, theme)
    return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=7)


def main(arguments: Sequence[str] | None = None) -> int:
    made = command.parser("Judges against detectors")
    return command.run(lambda frames, _: build(frames), arguments, made)


if __name__ == "__main__":
    raise SystemExit(main())
