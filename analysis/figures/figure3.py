"""Figure 3: component ablations. RISED, RISED without selection, and RISED without distillation.

The paper's "without distillation" removes steering as well [paper]: here the method ``rised_selection_only``. Table
``ablation`` keeps the three components apart, which this figure cannot.

    python -m analysis.figures.figure3 --runs results/laptop_ablation --out build/figures
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.figures import BuiltFigure, command, dynamics
from analysis.frames import Frames

METHODS = ("rised", "rised_no_selection", "rised_selection_only")
MADE_BY = "laptop_ablation (or paper_ablation, at the paper's scale)"


def build(frames: Frames) -> BuiltFigure:
    """The frame is ``frames.pass_rates`` of the three arms."""
    return dynamics.curves_figure(
        frames,
        "figure3",
        "Figure 3. Component ablations: validation pass rate of RISED, without selection and without distillation.",
        METHODS,
        MADE_BY,
        [
            "Without distillation is without the teacher and without steering [paper]; without selection rolls out "
            "only the groups that it trains on [ours]."
        ],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run(lambda frames, _: build(frames), arguments, command.parser("Figure 3: component ablations"))


if __name__ == "__main__":
    raise SystemExit(main())
