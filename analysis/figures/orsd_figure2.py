"""ORSD Figure 2: sensitivity of WebShop success to the coefficient α of the token credit.

Left the paper's: of its three bars our sources print one value (63.00 at 0.01) and GRPO's 55.40, and say in words
that all three are above GRPO; the other two stay open. Right ours, from runs of ``orsd_alpha_0001`` (0.001), ``orsd``
(0.01) and ``orsd_alpha_01`` (0.1).

    python -m analysis.figures.orsd_figure2 --runs results/laptop_orsd --out build/figures
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import orsd, published, scale
from analysis.figures import BuiltFigure, command, style
from analysis.figures.style import Theme
from analysis.frames import Frames
from analysis.names import BASELINE, method_name

ALPHAS = {"orsd_alpha_0001": "0.001", "orsd": "0.01", "orsd_alpha_01": "0.1"}
"""Method -> its α."""
HEIGHT_IN = 4.0


def build(frames: Frames) -> BuiltFigure:
    """Columns source, method, alpha, webshop_success (percent; missing: not printed, or not run)."""
    data = pd.concat([published_bars(), own_bars(frames)], ignore_index=True)
    return BuiltFigure(
        "orsd_figure2",
        "ORSD Figure 2. WebShop success by the coefficient α of the token credit; GRPO is α = 0.",
        data,
        partial(draw, frames, data),
        [
            "Published (Qwen3-1.7B): values at 0.001 and 0.1 are not printed in our sources.",
            f"The paper's finding (published): {published.finding('orsd_figure2')}.",
            f"Runs: {scale.describe(frames.experiment)}.",
            *[n for n in orsd.absences(frames) if "Task types" not in n],
            *frames.left_out(),
        ],
    )


def published_bars() -> pd.DataFrame:
    """From ORSD Table 2, which prints GRPO and the default α."""
    table = published.load("orsd_table2_ablation_webshop").set_index("method")["qwen3_1p7b_success"]
    rows = [(m, a, float(table["orsd_m4"]) if m == "orsd" else float("nan")) for m, a in ALPHAS.items()]
    frame = pd.DataFrame([*rows, ("grpo", "0", float(table["grpo"]))], columns=["method", "alpha", "webshop_success"])
    return frame.assign(source=scale.PUBLISHED)[["source", "method", "alpha", "webshop_success"]]


def own_bars(frames: Frames) -> pd.DataFrame:
    own = orsd.own_results(frames).set_index("method")["webshop_success"]
    rows = [(scale.OURS, m, a, float(own.get(m, float("nan")))) for m, a in [*ALPHAS.items(), (BASELINE, "0")]]
    return pd.DataFrame(rows, columns=["source", "method", "alpha", "webshop_success"])


def draw(frames: Frames, data: pd.DataFrame, theme: Theme) -> Figure:
    figure, axes = style.canvas(theme, 1, 2, HEIGHT_IN)
    titles = {
        scale.PUBLISHED: "published, Qwen3-1.7B",
        scale.OURS: f"{scale.OURS}, {scale.policy_name(frames.experiment)}",
    }
    absent = {scale.PUBLISHED: "not printed", scale.OURS: "not run"}
    for axis, (source, title) in zip(axes[0], titles.items(), strict=True):
        axis.set_title(title, loc="left", fontweight="bold", color=theme.ink)
        axis.set_xlabel("Coefficient α")
        _bars(axis, data[data["source"] == source], absent[source], theme)
    axes[0][0].set_ylabel("WebShop success, percent")
    if scale.is_synthetic(frames.experiment):
        style.stamp(figure, scale.SYNTHETIC, theme)
    return figure


def _bars(axis: Axes, rows: pd.DataFrame, absent: str, theme: Theme) -> None:
    colour = style.style_of("rised", theme)[0]
    bars, base = rows[rows["alpha"] != "0"], rows[rows["alpha"] == "0"]
    for place, row in enumerate(bars.to_dict("records")):
        value = float(row["webshop_success"])
        if pd.isna(value):
            axis.text(place, 1, absent, rotation=90, ha="center", va="bottom", color=theme.muted, fontsize=10)
            continue
        axis.bar([place], [value], width=0.55, color=colour)
        axis.annotate(f"{value:.2f}", (place, value), xytext=(0, 4), textcoords="offset points", ha="center")
    axis.set_xticks(range(len(bars)), list(bars["alpha"]))
    axis.set_ylim(0, 100)
    axis.set_xlim(-0.6, len(bars) - 0.4)
    value = float(base["webshop_success"].iloc[0])
    if not pd.isna(value):
        axis.axhline(value, color=style.style_of(BASELINE, theme)[0], linewidth=1.6, linestyle="--")
        name = f"{method_name(str(base['method'].iloc[0]))} {value:.2f}"
        axis.text(-0.55, value + 1.5, name, color=style.style_of(BASELINE, theme)[0])


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run(lambda frames, _: build(frames), arguments, command.parser("ORSD Figure 2: sensitivity to α"))


if __name__ == "__main__":
    raise SystemExit(main())
