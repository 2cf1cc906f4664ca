"""Figure 2: validation pass rate over training, per environment and overall, all methods.

The grey bar is the 95% width of one evaluation of this panel by the chance of its tasks alone: wiggles within it are
not learning. How curves and bands are made is in ``dynamics``.

    python -m analysis.figures.figure2 --runs results/laptop_grid --out build/figures
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from analysis import published, scale
from analysis.figures import BuiltFigure, command, dynamics
from analysis.figures.style import Theme
from analysis.frames import Frames
from analysis.names import ordered_methods


def build(frames: Frames) -> BuiltFigure:
    """The frame is ``frames.pass_rates`` of every run, finished or not."""
    data = frames.pass_rates.sort_values(["method", "seed", "environment", "step"], ignore_index=True)
    notes = [
        dynamics.READING,
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
    arms = dynamics.method_arms(frames, ordered_methods(frames.experiment.methods))
    return dynamics.draw(arms, [*frames.environments, "overall"], scale.is_synthetic(frames.experiment), theme)


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run(lambda frames, _: build(frames), arguments, command.parser("Figure 2: validation dynamics"))


if __name__ == "__main__":
    raise SystemExit(main())
