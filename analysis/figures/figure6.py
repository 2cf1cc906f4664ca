"""Figure 6: the role of rubrics in teacher conditioning. Positive rubrics only, all rubrics with selection, full RISED.

python -m analysis.figures.figure6 --runs results/laptop_ablation --out build/figures
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.figures import BuiltFigure, command, dynamics
from analysis.frames import Frames

METHODS = ("rised", "rised_no_steering", "rised_all_rubrics")
MADE_BY = "laptop_ablation (or paper_ablation, at the paper's scale)"


def build(frames: Frames) -> BuiltFigure:
    """The frame is ``frames.pass_rates`` of the three arms."""
    return dynamics.curves_figure(
        frames,
        "figure6",
        "Figure 6. Rubric roles in teacher conditioning: validation pass rate of full RISED, positive rubrics only, "
        "and all rubrics with selection.",
        METHODS,
        MADE_BY,
        [
            "Positive only: RISED without steering. All rubrics: positives and violated negatives to the teacher, no "
            "steering; all three select by profile."
        ],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run(lambda frames, _: build(frames), arguments, command.parser("Figure 6: rubric roles"))


if __name__ == "__main__":
    raise SystemExit(main())
