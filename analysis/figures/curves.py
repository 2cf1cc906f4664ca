"""Means over seeds of curves, without ever averaging over different sets of runs."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd


def mean_over_seeds(frame: pd.DataFrame, finished: Collection[int], value: str) -> pd.DataFrame:
    """Mean, smallest and largest ``value`` per step of one method's ``frame`` (columns seed, step, value).

    Uses the finished seeds (all seeds where none is finished) and only steps that every one of them has, so that each
    point of the mean stands for the same runs. Returns columns step, mean, low, high, seeds.
    """
    used = [seed for seed in frame["seed"].unique() if seed in finished] or list(frame["seed"].unique())
    kept = frame[frame["seed"].isin(used)].dropna(subset=[value])
    grouped = (
        kept.astype({"step": "int64", value: "float64"})
        .groupby("step")[value]
        .agg(["mean", "min", "max", "size"])
        .reset_index()
    )
    whole = grouped[grouped["size"] == len(used)]
    return whole.rename(columns={"min": "low", "max": "high", "size": "seeds"}).reset_index(drop=True)
