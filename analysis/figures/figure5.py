"""Figure 5: joint training with AppWorld as the fourth environment, RISED and GRPO-64.

python -m analysis.figures.figure5 --runs results/paper_appworld --out build/figures
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.figures import BuiltFigure, command, dynamics
from analysis.frames import Frames
from analysis.names import BASELINE, PROPOSED, environment_name, ordered_environments

METHODS = (BASELINE, PROPOSED)
FOURTH = "appworld"
MADE_BY = "paper_appworld"


def build(frames: Frames) -> BuiltFigure:
    """The frame is ``frames.pass_rates`` of both methods."""
    environments = [e for e in ordered_environments({*frames.environments, FOURTH}) if e != "overall"]
    return dynamics.curves_figure(
        frames,
        "figure5",
        "Figure 5. Joint training with a fourth environment: validation pass rate of RISED and GRPO-64.",
        METHODS,
        MADE_BY,
        _without_fourth(frames),
        environments,
    )


def _without_fourth(frames: Frames) -> list[str]:
    if FOURTH in frames.environments:
        return []
    names = ", ".join(map(environment_name, frames.environments)) or "no environment"
    return [
        f"{environment_name(FOURTH)} is not in this experiment's mix, so its panel is empty and Overall is the mean of "
        f"{names} alone. {MADE_BY} makes this figure."
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run(lambda frames, _: build(frames), arguments, command.parser("Figure 5: fourth environment"))


if __name__ == "__main__":
    raise SystemExit(main())
