"""Final results by method and environment, and how a table prints them: mean over seeds, coverage, what is ranked.

A method with fewer seeds than planned, or with fewer than 98% valid episodes, is printed but not ranked: its mean
stands for other runs or other episodes than those beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import statistics as st
from analysis.formatting import MISSING, Cell, mean_std_text, number
from analysis.frames import Frames
from analysis.runs import Run
from rised.statistics.pass_rates import LOWEST_COVERAGE

COLUMNS = ["method", "environment", "mean", "std", "n", "n_planned", "valid", "planned", "strict"]
NOTE = (
    f"Not ranked: values of fewer seeds than planned, and values of fewer than {LOWEST_COVERAGE:.0%} valid episodes. "
    "Strict: the rate with lost episodes as failures."
)
"""Below every table that ranks our own results."""


def final_results(frames: Frames) -> pd.DataFrame:
    """One row per method of the experiment and environment (overall last), null where nothing is known.

    ``mean`` and ``std`` over ``n`` of ``n_planned`` seeds; ``valid`` of ``planned`` episodes of the final evaluations
    and the ``strict`` mean rate (lost episodes as failures), null without stored episodes.
    """
    planned, rows = len(frames.experiment.seeds), []
    for method in frames.experiment.methods:
        runs, step = frames.final_runs(method), frames.final_step
        covered = {environment: _coverage(frames, runs, environment) for environment in frames.environments}
        covered["overall"] = _overall(list(covered.values()))
        for environment, coverage in covered.items():
            found = st.mean_std([frames.rate(run, step, environment) for run in runs] if step is not None else [])
            mean, std, n = (found.mean, found.std, found.n) if found else (None, None, 0)
            counts = (coverage.valid, coverage.planned, coverage.strict) if coverage else (None, None, None)
            rows.append((method, environment, mean, std, n, planned, *counts))
    frame = pd.DataFrame(rows, columns=COLUMNS)
    frame = frame.astype(dict.fromkeys(("mean", "std", "strict"), "float64"))
    return frame.astype(dict.fromkeys(("n", "n_planned", "valid", "planned"), "Int64"))


def result_cell(row: Mapping[str, Any] | None, scale: float = 1.0, digits: int = 3) -> Cell:
    """A row of ``final_results`` as a table prints it; ``scale`` 100 for percent."""
    if row is None or pd.isna(row["mean"]):
        return Cell(MISSING)
    std = None if pd.isna(row["std"]) else scale * float(row["std"])
    text = mean_std_text(st.MeanStd(scale * float(row["mean"]), std, int(row["n"])), digits)
    if is_thin(row):
        text += f" (strict {number(scale * float(row['strict']), digits)})"
    return Cell(text, scale * float(row["mean"]) if is_ranked(row) else None)


def is_thin(row: Mapping[str, Any]) -> bool:
    """Whether fewer than 98% of the planned episodes are valid."""
    return not pd.isna(row["planned"]) and bool(row["valid"] < LOWEST_COVERAGE * row["planned"])


def is_ranked(row: Mapping[str, Any]) -> bool:
    """Whether the value stands for all planned seeds and nearly all episodes."""
    return bool(row["n"] == row["n_planned"]) and not is_thin(row)


def coverage_text(row: Mapping[str, Any] | None) -> str:
    """For example "328 / 330"; a dash without stored episodes."""
    known = row is not None and not pd.isna(row["planned"])
    return f"{int(row['valid']):,} / {int(row['planned']):,}" if row is not None and known else MISSING


@dataclass(frozen=True, slots=True)
class Coverage:
    """Episodes of final evaluations, and the mean rate with lost ones as failures."""

    valid: int
    planned: int
    strict: float


def _coverage(frames: Frames, runs: Sequence[Run], environment: str) -> Coverage | None:
    """Of one environment over runs; None unless all have stored episodes."""
    found = [each for run in runs if (each := frames.coverage(run, environment)) is not None]
    if not found or len(found) < len(runs):
        return None
    return Coverage(
        sum(each["valid"] for each in found),
        sum(each["planned"] for each in found),
        float(np.mean([each["strict"] for each in found])),
    )


def _overall(parts: Sequence[Coverage | None]) -> Coverage | None:
    """Of all environments: episodes added up, the rates' unweighted mean; None unless all are known."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return Coverage(
        sum(part.valid for part in known),
        sum(part.planned for part in known),
        float(np.mean([part.strict for part in known])),
    )
