"""How figures look: one colour and marker per method everywhere, a light and a dark theme, files of 1,200 px width and
more.

Colours follow Okabe and Ito's palette for colour-blind readers, in the paper's roles (RISED pink, GRPO-64 blue);
markers repeat the distinction. A method without a fixed style takes one of the spare ones by its place in the
alphabet.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import pandas as pd  # noqa: E402
from matplotlib.artist import Artist  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import MaxNLocator, PercentFormatter  # noqa: E402

from analysis.formatting import to_csv  # noqa: E402

WIDTH_IN = 12.0
DPI = 200
"""12 in at 200 dpi: 2,400 px, sharp where it is shown 1,200 px wide."""
RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "legend.fontsize": 10.5,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "pdf.fonttype": 42,
    "svg.hashsalt": "rised",
}


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours that depend on the background."""

    name: str
    background: str
    ink: str
    muted: str
    grid: str
    lighten: float
    """Share by which method colours are mixed with white, for contrast on dark."""


LIGHT = Theme("light", "#ffffff", "#1c1c22", "#6b6b76", "#e6e6ea", 0.0)
DARK = Theme("dark", "#17181c", "#ececf1", "#a0a0ab", "#30323a", 0.28)

_STYLES = {
    "rised": ("#c2528f", "o"),
    "grpo_64": ("#0072b2", "s"),
    "grpo_128": ("#56b4e9", "D"),
    "global_variance": ("#e69f00", "^"),
    "round_robin_variance": ("#009e73", "v"),
    "all_rubric_sd": ("#d55e00", "P"),
    "rised_no_selection": ("#2e9e4f", "v"),
    "rised_selection_only": ("#7b4fb3", "^"),
    "rised_no_steering": ("#8c5a2b", "D"),
    "rised_all_rubrics": ("#3aa655", "P"),
    "rised_no_teacher": ("#b8860b", "X"),
    "rised_teacher_only": ("#2f8f8f", "<"),
    "rised_steering_only": ("#7a7a85", ">"),
    "orsd": ("#c2528f", "o"),
    "gigpo": ("#009e73", "^"),
    "opsd": ("#7a7a85", "X"),
    "grpo_opsd": ("#56b4e9", "D"),
    "sdar": ("#e69f00", "v"),
    "orsd_offline_rubric": ("#8c5a2b", "P"),
    "orsd_without_alignment": ("#7b4fb3", "<"),
    "orsd_random_rubric": ("#2f8f8f", ">"),
    "orsd_alpha_0001": ("#b8860b", "h"),
    "orsd_alpha_01": ("#d55e00", "*"),
    "Qwen3-8B": ("#56b4e9", "v"),
    "Qwen3-14B": ("#e69f00", "s"),
    "Qwen3-32B": ("#c2528f", "o"),
}
_ENVIRONMENTS = {
    "alfworld": ("#009e73", "o"),
    "webshop": ("#d55e00", "s"),
    "dbbench": ("#0072b2", "^"),
    "appworld": ("#c2528f", "D"),
    "mapf_frozenlake": ("#56b4e9", "v"),
}
_SPARE = (("#7a7a85", "X"), ("#8c6d31", "*"), ("#5b4fb3", "<"), ("#2f8f8f", ">"))


def style_of(method: str, theme: Theme) -> tuple[str, str]:
    """Colour and marker of a method."""
    colour, marker = _STYLES.get(method) or _SPARE[sum(map(ord, method)) % len(_SPARE)]
    return _mix(colour, theme.lighten), marker


def environment_style(environment: str, theme: Theme) -> tuple[str, str]:
    """Colour and marker of an environment, where environments and not methods are compared."""
    colour, marker = _ENVIRONMENTS.get(environment) or _SPARE[sum(map(ord, environment)) % len(_SPARE)]
    return _mix(colour, theme.lighten), marker


def canvas(theme: Theme, rows: int, columns: int, height: float) -> tuple[Figure, list[list[Axes]]]:
    """A themed figure with a grid of axes, ``height`` in inches."""
    with matplotlib.rc_context(RC):  # type: ignore[arg-type]
        figure = Figure(figsize=(WIDTH_IN, height), facecolor=theme.background, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        theme_axis(axis, theme)
    return figure, [list(row) for row in axes]


def theme_axis(axis: Axes, theme: Theme) -> None:
    """Horizontal grid only, no box."""
    axis.set_facecolor(theme.background)
    axis.grid(axis="y", color=theme.grid, linewidth=0.8)
    axis.set_axisbelow(True)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(theme.muted)
    axis.tick_params(colors=theme.muted, length=0, labelcolor=theme.muted)
    axis.xaxis.label.set_color(theme.ink)
    axis.yaxis.label.set_color(theme.ink)


def percent_axis(axis: Axes) -> None:
    """Shares as whole percentages."""
    axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def update_axis(axis: Axes) -> None:
    axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))


def say_empty(axis: Axes, text: str, theme: Theme) -> None:
    """Say in the panel why it is empty; an empty scale would mean nothing."""
    axis.set_xticks([])
    axis.set_yticks([])
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color=theme.muted, wrap=True)


def legend_above(figure: Figure, handles: Sequence[Artist], labels: Sequence[str], theme: Theme) -> None:
    """One row of entries above the panels."""
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside upper center",
            ncols=min(len(labels), 6),
            frameon=False,
            labelcolor=theme.ink,
            handlelength=2.4,
            columnspacing=1.6,
        )


def stamp(figure: Figure, text: str, theme: Theme) -> None:
    """Write across the whole figure what nobody who sees it may overlook."""
    figure.text(
        0.5,
        0.5,
        text,
        ha="center",
        va="center",
        rotation=14,
        fontsize=44,
        fontweight="bold",
        color=theme.muted,
        alpha=0.22,
        in_layout=False,
        zorder=10,
    )


def png_bytes(figure: Figure, dpi: int | None = None) -> bytes:
    """The figure as PNG without a creation date: equal data give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi or DPI, facecolor=figure.get_facecolor(), metadata={"Software": None})
    return buffer.getvalue()


def write_figure(name: str, figure: Figure, frame: pd.DataFrame, out: Path) -> list[Path]:
    """Write ``<name>.png``, ``.pdf`` and ``.csv`` into ``out`` and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}{suffix}" for suffix in (".png", ".pdf", ".csv")]
    paths[0].write_bytes(png_bytes(figure))
    figure.savefig(paths[1], facecolor=figure.get_facecolor(), metadata={"CreationDate": None})
    paths[2].write_text(to_csv(frame), encoding="utf-8")
    return paths


def tint(colour: str, theme: Theme) -> str:
    """A colour of a figure's own, lightened for the theme."""
    return _mix(colour, theme.lighten)


def _mix(colour: str, share: float) -> str:
    channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(c + (255 - c) * share):02x}" for c in channels)
