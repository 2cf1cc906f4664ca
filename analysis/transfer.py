"""Similarity of each environment to the one trained on, and its improvement: the pairs behind Tables 1 and 7.

A run trains on one environment. At a checkpoint t the similarity of an environment e is the cosine of the training
environment's current profile and e's validation profile at t [paper]; "current" is the training rollouts of the last
``rubrics.window_steps`` updates up to t [ours]. The gradient signals are cosines that the gradient stage measured.
The improvement is e's pass rate at t minus that at the baseline: the first evaluation of the run after its start
[paper: step 25 with an evaluation every 25 steps]; checkpoints are all later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from analysis import AnalysisError
from analysis.frames import Frames
from analysis.names import environment_name, ordered_environments
from analysis.profiles import PROFILES, Profile, environment_profiles, refuse_other_vocabulary, run_judge
from analysis.runs import Run
from analysis.sources import NotedReader
from rised.records.layout import GRADIENT_SIGNAL, SECOND_TAGS
from rised.rubrics.profiles import cosine
from rised.rubrics.vocabulary import Vocabulary, load_vocabulary

LAYER, PROJECTION = "gradient_full_layer", "gradient_projection"
GRADIENTS = {LAYER: "layer", PROJECTION: "projection"}
"""Signal -> how the gradient stage calls it."""
SIGNALS = (*PROFILES, *GRADIENTS)
KEYS = ["method", "seed", "step", "environment", "training_environment", "pass_rate", "baseline", "improvement"]
DEFAULT_WINDOW = 5
UNTAGGED = "training or validation is not tagged (rubrics.tag_training, validation.tags)"
NO_SECOND = "not tagged a second time (stages.retag)"
NO_GRADIENT = "not measured (stages.gradient)"


@dataclass
class Transfer:
    """``pairs``: one row per run, checkpoint and environment, columns ``KEYS`` and ``SIGNALS``; NaN where undefined.

    ``absent``: signal -> why no run has it. ``baselines``: the steps that improvements are measured from.
    """

    pairs: pd.DataFrame
    absent: dict[str, str]
    baselines: list[int]
    training_environment: str
    notes: list[str] = field(default_factory=list)


def training_environment(run: Run) -> str | None:
    """The environment that the run trained on; None if there were several."""
    chosen = run.config.get("training_environments")
    names = list(chosen) if chosen else list(run.config.get("environments", {}))
    return names[0] if len(names) == 1 else None


def transfer(frames: Frames, trained_on: str | None = None, second: bool = False) -> Transfer:
    """The pairs of all finished runs. ``second``: with profiles from the second tags (``stages.retag``).

    AnalysisError if they trained on several environments, or on another than ``trained_on``.
    """
    runs = [run for run in frames.experiment.runs if run.complete]
    found = {training_environment(run) for run in frames.experiment.runs}
    source = next(iter(found), None)
    if len(found) != 1 or source is None:
        raise AnalysisError(
            f"{frames.experiment.path}: transfer is measured from one training environment; these runs train on "
            "several (training_environments)"
        )
    if trained_on is not None and source != trained_on:
        raise AnalysisError(
            f"{frames.experiment.path}: these runs train on {environment_name(source)}, the table is about training "
            f"on {environment_name(trained_on)}"
        )
    key = ("transfer", second)
    if key not in frames.measured:
        frames.measured[key] = _measure(frames, runs, source, second)
    found_pairs: Transfer = frames.measured[key]
    return found_pairs


def _measure(frames: Frames, runs: Sequence[Run], source: str, second: bool) -> Transfer:
    vocabulary = load_vocabulary()
    rows: list[dict[str, object]] = []
    baselines: set[int] = set()
    notes: list[str] = []
    tagged = measured = False
    zero: dict[tuple[str, str], int] = {}
    for run in runs:
        steps = _evaluated(frames, run)
        if len(steps) < 2:
            notes.append(f"{run.label}: {len(steps)} evaluations after the start, no checkpoint after a baseline")
            continue
        baselines.add(steps[0])
        similarities = _profile_similarities(run, source, steps[1:], vocabulary, zero, second)
        gradients = _gradient_cosines(run)
        tagged, measured = tagged or bool(similarities), measured or bool(gradients)
        for step in steps[1:]:
            for environment in frames.environments:
                before, now = (frames.rate(run, at, environment) for at in (steps[0], step))
                key = (step, environment)
                rows.append(
                    {
                        "method": run.method,
                        "seed": run.seed,
                        "step": step,
                        "environment": environment,
                        "training_environment": source,
                        "pass_rate": now,
                        "baseline": before,
                        "improvement": now - before,
                        **similarities.get(key, {}),
                        **gradients.get(key, {}),
                    }
                )
    pairs = pd.DataFrame(rows).reindex(columns=[*KEYS, *SIGNALS])
    pairs = pairs.astype(dict.fromkeys(["pass_rate", "baseline", "improvement", *SIGNALS], "float64"))
    absent = {} if tagged else dict.fromkeys(PROFILES, NO_SECOND if second else UNTAGGED)
    absent |= {} if measured else dict.fromkeys(GRADIENTS, NO_GRADIENT)
    notes += [
        f"{environment_name(environment)}: no rubric of {signal} is shown at {count} checkpoints; its similarity is 0 "
        "there"
        for (environment, signal), count in sorted(zero.items())
    ]
    return Transfer(pairs, absent, sorted(baselines), source, notes)


def _evaluated(frames: Frames, run: Run) -> list[int]:
    """Steps after the start at which the run was evaluated on every environment."""
    rates = frames.pass_rates
    own = rates[(rates["method"] == run.method) & (rates["seed"] == run.seed) & (rates["environment"] == "overall")]
    return sorted(int(step) for step in own["step"] if step > 0)


def _profile_similarities(
    run: Run, source: str, steps: list[int], vocabulary: Vocabulary, zero: dict[tuple[str, str], int], second: bool
) -> dict[tuple[int, str], dict[str, float]]:
    """(step, environment) -> signal -> cosine; empty if the run is not tagged. Counts validation profiles of zero."""
    judge = run_judge(run)
    tagged = replace(run, path=run.path / SECOND_TAGS) if second else run
    if judge is None or not tagged.path.is_dir():
        return {}
    if run_judge(tagged) != judge:
        raise AnalysisError(f"{tagged.path} holds tags of another judge than {judge}, which tagged the run")
    refuse_other_vocabulary(run, vocabulary)
    window = int(run.config.get("rubrics", {}).get("window_steps", DEFAULT_WINDOW))
    found: dict[tuple[int, str], dict[str, float]] = {}
    for step in steps:
        recent = range(max(1, step - window + 1), step + 1)
        training = environment_profiles(run, "tags", recent, judge, vocabulary, tagged).get(source)
        if training is None:
            continue
        mine = training.vectors(vocabulary)
        profiles: dict[str, Profile] = environment_profiles(run, "validation_tags", [step], judge, vocabulary, tagged)
        for environment in ordered_environments(profiles):
            theirs = profiles[environment].vectors(vocabulary)
            found[step, environment] = {signal: cosine(mine[signal], theirs[signal]) for signal in PROFILES}
            for signal in ("rubric_pos", "rubric_neg"):
                if not theirs[signal].any():
                    zero[environment, signal] = zero.get((environment, signal), 0) + 1
    return found


def _gradient_cosines(run: Run) -> dict[tuple[int, str], dict[str, float]]:
    """(step, environment) -> signal -> cosine; a cosine with a zero gradient is left out."""
    folder = run.path / GRADIENT_SIGNAL
    if not folder.is_dir():
        return {}
    names = {stored: signal for signal, stored in GRADIENTS.items()}
    rows = NotedReader(folder).scan("gradients", ["step", "environment", "split", "signal", "cosine"]).to_pylist()
    found: dict[tuple[int, str], dict[str, float]] = {}
    for row in rows:
        if row["split"] == "validation" and row["cosine"] is not None:
            found.setdefault((row["step"], row["environment"]), {})[names[row["signal"]]] = row["cosine"]
    return found
