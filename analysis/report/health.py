"""What went wrong in the data, counted: tag errors, invalid episodes, truncations, stop reasons, sums that do not
agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.formatting import MISSING, Cell, Group, PrintedTable, number, percent
from analysis.frames import KEYS, Frames, judges
from analysis.runs import Run
from rised.records.types import StopReason

STOP_WORDS: dict[str, str] = {
    StopReason.ENVIRONMENT_DONE: "ended by the environment",
    StopReason.REPEATED_OUTPUT: "repeated output",
    StopReason.INVALID_FORMAT: "unreadable reply",
    StopReason.TURN_LIMIT: "turn limit",
    StopReason.EPISODE_TOKEN_LIMIT: "token limit",
    StopReason.ENVIRONMENT_ERROR: "environment error",
    StopReason.PREFIX_VIOLATION: "prefix violation",
}
TOLERANCE = 1e-9
"""Pass rates closer than this are equal: sums in another order differ in their last bits."""
TRUNCATED = (StopReason.TURN_LIMIT, StopReason.EPISODE_TOKEN_LIMIT)


@dataclass(frozen=True, slots=True)
class StopBar:
    """Shares of the stop reasons of one run's episodes: (reason, words, share) in a fixed order."""

    label: str
    episodes: int
    parts: Sequence[tuple[str, str, float]]


def health_table(frames: Frames) -> PrintedTable:
    """One row per run."""
    rows = []
    for run in frames.experiment.runs:
        train, validation = _of(frames.episode_counts, run), _of(frames.validation, run).assign(count=1)
        tags = tag_errors(frames, run)
        rows.append(
            [
                Cell(run.label),
                *_episode_cells(train),
                *_episode_cells(validation),
                Cell(MISSING if tags is None else f"{tags[1]:,}"),
                Cell(MISSING if tags is None or not tags[1] else percent(tags[0] / tags[1], 2)),
            ]
        )
    return PrintedTable(
        "health",
        "Episodes and tags that failed, by run.",
        [
            "Run",
            "Training episodes",
            "invalid",
            "cut off",
            "Validation episodes",
            "invalid",
            "cut off",
            "Training tags",
            "errors",
        ],
        [Group("", rows)],
        [
            "Invalid: the environment failed or the tokens broke their prefix; such an episode has no success and is "
            "left out of every rate. Cut off: at the turn or token limit, which counts as a failure. A tag error "
            "contributes no state; it is never “absent”.",
            *disagreements(frames),
        ],
    )


def _episode_cells(episodes: pd.DataFrame) -> list[Cell]:
    """How many, and the shares of those that are invalid and that were cut off."""
    total = int(episodes["count"].sum())
    if not total:
        return [Cell(MISSING)] * 3
    invalid = episodes.loc[episodes["success"].isna(), "count"].sum()
    cut_off = episodes.loc[episodes["stop_reason"].isin(TRUNCATED), "count"].sum()
    return [Cell(f"{total:,}"), Cell(percent(invalid / total, 1)), Cell(percent(cut_off / total, 1))]


def tag_errors(frames: Frames, run: Run) -> tuple[int, int] | None:
    """(errors, tags) over all judges of the run's training tags; None when nothing is tagged."""
    counts = [frames.rubric_counts(run, judge) for judge in judges(run)]
    if not any(len(frame) for frame in counts):
        return None
    whole = pd.concat(counts)
    errors = int(whole["error"].sum())
    return errors, errors + int(whole[["demonstrates", "violates", "absent"]].to_numpy().sum())


def stop_bars(frames: Frames) -> list[StopBar]:
    """Training episodes' stop reasons per run; empty where rollouts are not stored."""
    bars = []
    for run in frames.experiment.runs:
        counts = _of(frames.episode_counts, run).groupby("stop_reason")["count"].sum()
        total = int(counts.sum())
        if total:
            parts = [(r.value, STOP_WORDS[r], float(counts[r.value]) / total) for r in StopReason if r.value in counts]
            bars.append(StopBar(run.label, total, parts))
    return bars


def disagreements(frames: Frames) -> list[str]:
    """Runs whose stored pass rate differs from the one counted in their validation shards, which the tables print."""
    counted = frames.counted_rates[[*KEYS, "pass_rate"]].rename(columns={"pass_rate": "counted"})
    if counted.empty:
        return ["Pass rates could not be checked against episodes: no validation shards here."]
    both = frames.stored_rates.merge(counted, on=KEYS)
    absent = both["pass_rate"].isna() & both["counted"].isna()
    odd = both[~absent & ~((both["pass_rate"] - both["counted"]).abs() <= TOLERANCE)]
    if odd.empty:
        return [f"All {len(both):,} stored pass rates equal those counted in the validation episodes."]
    return [
        f"{row['method']} seed {row['seed']} update {row['step']} {row['environment']}: stored "
        f"{number(row['pass_rate'], 4)}, counted {number(row['counted'], 4)}; the tables print the counted one"
        for row in odd.to_dict("records")
    ]


def _of(frame: pd.DataFrame, run: Run) -> pd.DataFrame:
    return frame[(frame["method"] == run.method) & (frame["seed"] == run.seed)]
