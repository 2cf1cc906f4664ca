"""Figure 8: the effect of the judge's size. Validation pass rate of RISED, one curve a judge.

An experiment has one judge, so the judges come from several experiments side by side: the one that is analysed, and
those in the folders beside it whose RISED runs differ from its own in nothing but the judge. A run that differs in
anything else (panel, policy, learning rate) is left out and named. Where two experiments have the same judge, the
analysed one counts, then the first by name.

    python -m analysis.figures.figure8 --runs results/paper_judge_32b --out build/figures
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from analysis import AnalysisError, published, scale
from analysis.figures import BuiltFigure, command, dynamics
from analysis.frames import Frames
from analysis.names import PROPOSED
from analysis.panels import flat, recorded_panel
from analysis.runs import Experiment, Run, find_experiment

PAPER_JUDGES = ("Qwen3-8B", "Qwen3-14B", "Qwen3-32B")
MADE_BY = "one of paper_judge_8b, paper_judge_14b, paper_judge_32b"
FREE = ("experiment", "description", "seed", "updates", "export_every", "rubrics.judge", "rubrics.tag_training")
FREE_PREFIXES = ("rubrics.judge.", "judge_server", "placement.", "rollout.environment_")
"""Keys in which runs with different judges may differ: the judge itself, and what shapes no result."""


def build(frames: Frames) -> BuiltFigure:
    """Columns judge, experiment, seed, step, environment, pass_rate, tasks."""
    found, notes = judged_frames(frames)
    arms, parts = [], []
    for judge in [*PAPER_JUDGES, *sorted(set(found) - set(PAPER_JUDGES))]:
        if judge not in found:
            arms.append(dynamics.Arm(judge, judge, frames.pass_rates.iloc[:0]))
            continue
        (arm,) = dynamics.method_arms(found[judge], [PROPOSED])
        arms.append(dynamics.Arm(judge, judge, arm.rates, arm.finished, judge == PAPER_JUDGES[-1]))
        parts.append(arm.rates.assign(judge=judge, experiment=found[judge].experiment.name))
    columns = ["judge", "experiment", "seed", "step", "environment", "pass_rate", "tasks"]
    data = pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)
    synthetic = any(scale.is_synthetic(other.experiment) for other in found.values())
    return BuiltFigure(
        "figure8",
        "Figure 8. Effect of the judge's size: validation pass rate of RISED with each judge.",
        data,
        partial(dynamics.draw, arms, [*frames.environments, "overall"], synthetic),
        [
            dynamics.READING,
            *[
                f"{judge}: experiment {f.experiment.name}, {scale.describe(f.experiment)}."
                for judge, f in found.items()
            ],
            f"The paper's finding (published): {published.finding('rised_figure8')}.",
            *dynamics.absences(arms, MADE_BY),
            *notes,
            *[gap for f in found.values() for gap in f.experiment.gaps()],
        ],
    )


def judge_name(run: Run) -> str:
    """The judge's model without its owner, or "rules" with what else the configuration says."""
    judge = (run.config.get("rubrics") or {}).get("judge") or {}
    model = judge.get("model")
    return str(model).rsplit("/", 1)[-1] if model else "rule judge"


def judged_frames(frames: Frames) -> tuple[dict[str, Frames], list[str]]:
    """judge -> the frames of its experiment, reduced to RISED; and a sentence for every experiment left out."""
    mine = frames.experiment.of(PROPOSED)
    found: dict[str, Frames] = {}
    notes: list[str] = []
    if not mine:
        return found, ["RISED: not run in this experiment, so there is nothing to compare judges on."]
    for experiment in [frames.experiment, *_beside(frames.experiment)]:
        runs = experiment.of(PROPOSED)
        if not runs:
            continue
        judge, reason = judge_name(runs[0]), _difference(mine[0], runs[0])
        if judge in found:
            continue
        if reason:
            notes.append(f"{judge} of experiment {experiment.name}: left out, {reason}")
            continue
        found[judge] = Frames(Experiment(experiment.name, experiment.path, runs))
    return found, notes


def _beside(experiment: Experiment) -> list[Experiment]:
    """The other experiments of the results folder; a folder that is none is passed over."""
    others = []
    for folder in sorted(experiment.path.resolve().parent.iterdir()):
        if folder.is_dir() and folder != experiment.path.resolve() and list(folder.glob(f"{PROPOSED}/seed-*")):
            try:
                others.append(find_experiment(folder))
            except AnalysisError:
                continue
    return others


def _difference(mine: Run, other: Run) -> str:
    """The first thing beside the judge in which two runs differ; "" if none."""
    if recorded_panel(mine) != recorded_panel(other):
        return "its task panels differ"
    if mine.header.get("policy_hash") != other.header.get("policy_hash"):
        return "it starts from another policy"
    ours, theirs = _settings(mine.config), _settings(other.config)
    for key in sorted({*ours, *theirs}):
        if ours.get(key) != theirs.get(key):
            return f"{key} is {theirs.get(key)!r} there and {ours.get(key)!r} here"
    return ""


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in flat(config).items() if k not in FREE and not k.startswith(FREE_PREFIXES)}


def main(arguments: Sequence[str] | None = None) -> int:
    return command.run(lambda frames, _: build(frames), arguments, command.parser("Figure 8: judge size"))


if __name__ == "__main__":
    raise SystemExit(main())
