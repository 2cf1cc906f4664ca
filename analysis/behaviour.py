"""How often chosen rubrics are shown in one environment's training rollouts, step by step; and when a rate halves.

Rates are shares of the rollouts with a valid tag: a tag error is in neither numerator nor denominator. Read with the
rubric as a filter on the shards, so that a whole run's tags never lie in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from analysis.frames import Frames, only_judge
from analysis.runs import Run

STATES = ("demonstrates", "violates", "absent", "error")
MIN_EVENTS = 5
"""An initial level of fewer events is chance: whether it has halved cannot be said."""


def rubric_counts(run: Run, judge: str, rubrics: Sequence[str], environment: str) -> pd.DataFrame:
    """Columns step, rubric_id and a count for each of ``STATES``; no rows where nothing is tagged or stored."""
    columns = ["step", "rubric_id", *STATES]
    chosen = pc.field("rubric_id").isin(list(rubrics))
    tags = run.reader.scan("tags", ["rollout_id", "rubric_id", "state", "status"], chosen, judge=judge)
    here = pc.field("environment") == environment
    rollouts = run.reader.scan("rollouts", ["rollout_id", "step"], here)
    if not tags.num_rows or not rollouts.num_rows:
        return pd.DataFrame(columns=columns)
    joined = tags.join(rollouts, "rollout_id", join_type="inner")
    seen = pc.if_else(pc.equal(joined["status"], "ok"), joined["state"], "error")
    counted = joined.append_column("seen", seen).group_by(["step", "rubric_id", "seen"]).aggregate([([], "count_all")])
    wide = counted.to_pandas().pivot(index=["step", "rubric_id"], columns="seen", values="count_all")
    return wide.reset_index().reindex(columns=columns).fillna(0).astype(dict.fromkeys(STATES, "int64"))


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
        counts = rubric_counts(run, judge, rubrics, environment) if judge is not None else pd.DataFrame()
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
