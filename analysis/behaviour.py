"""How often chosen rubrics are shown in one environment's training rollouts, step by step; and when a rate halves.

Rates are shares of the rollouts with a valid tag: a tag error is in neither numerator nor denominator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.frames import Frames, only_judge

_KEYS = ["environment", "rubric_id"]
STATES = ("demonstrates", "violates", "absent", "error")
MIN_EVENTS = 5
"""An initial level of fewer events is chance: whether it has halved cannot be said."""


def rates(
    frames: Frames, methods: Sequence[str], rubrics: Sequence[str], environment: str, state: str, window: int
) -> pd.DataFrame:
    """The share of rollouts in ``state`` as a moving mean over ``window`` updates (weighted by rollouts).

    Columns method, seed, step, rubric_id, count, tagged, rate. The moving mean starts at the window's length, so that
    every value stands for as many updates.
    """
    columns = ["method", "seed", "step", "rubric_id", "count", "tagged", "rate"]
    runs = [run for method in methods for run in frames.experiment.of(method)]
    judge = only_judge(runs)
    parts = []
    for run in runs:
        counts = frames.tag_counts(run, judge) if judge is not None else pd.DataFrame(columns=_KEYS)
        counts = counts[(counts["environment"] == environment) & counts["rubric_id"].isin(list(rubrics))]
        if len(counts):
            parts.append(counts.assign(method=run.method, seed=run.seed))
    if not parts:
        return pd.DataFrame(columns=columns)
    data = pd.concat(parts, ignore_index=True).rename(columns={state: "count"})
    data["tagged"] = data[["count", *[s for s in STATES if s not in (state, "error")]]].sum(axis=1)
    data = data.sort_values(["method", "seed", "rubric_id", "step"], ignore_index=True)
    series = data.groupby(["method", "seed", "rubric_id"])[["count", "tagged"]]
    rolled = series.rolling(window, min_periods=window).sum().reset_index(drop=True)
    data["rate"] = rolled["count"] / rolled["tagged"].where(rolled["tagged"] > 0)
    return data[columns].reset_index(drop=True)


def half_level_step(block: pd.DataFrame, window: int) -> tuple[int | None, str]:
    """The update at which one run's rate of one rubric falls to half of its initial level and stays there.

    The initial level is the moving mean's first value [ours: the paper does not say how it smooths]. "Stays": this and
    the next values, ``window`` in all, are at or below half. Returns (step, "") or (None, reason).
    """
    known = block.dropna(subset=["rate"]).sort_values("step")
    if len(known) < 2:
        return None, f"fewer than {window + 1} updates"
    early = int(block.sort_values("step")["count"].iloc[:window].sum())
    if early < MIN_EVENTS:
        return None, f"{early} events at first"
    low = known["rate"].to_numpy() <= known["rate"].iloc[0] / 2
    for place in np.flatnonzero(low):
        if place + window <= low.size and low[place : place + window].all():
            return int(known["step"].iloc[place]), ""
    return None, "below half at the end only" if low[-1] else "not halved"
