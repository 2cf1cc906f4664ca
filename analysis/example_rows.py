"""Rows of Tables 3 and 4: the paper's illustration beside an example of ours, and the frame behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from analysis import scale
from analysis.examples import NO_TEXT, Counted, Shown
from analysis.formatting import MISSING, percent
from analysis.frames import Frames
from analysis.names import method_name

COLUMNS = [
    "environment",
    "skill",
    "rubric",
    "polarity",
    "published_illustration",
    "share",
    "tagged",
    *[f for f in Shown.__dataclass_fields__ if f != "rubric_id"],
]
RULE = (
    "Example: of the rollouts whose tag shows the rubric and names a turn, the latest update's first by "
    "id (RISED's runs "
    "first); picked by rule, not by looks. Action and the environment's answer, shortened."
)


def example_text(found: Shown | None, counted: Counted | None = None) -> str:
    """ "action → answer (GRPO-64 seed 0, update 40, turn 3)", or why there is none."""
    if found is None:
        return "not tagged in these runs" if counted is None or not counted.tagged else "never shown in these runs"
    place = f"{method_name(found.method)} seed {found.seed}, update {found.step}, turn {found.turn}, {found.task_id}"
    if found.action is None:
        return f"({NO_TEXT}; {place})"
    return f"“{found.action}” → “{found.reply}” ({place})"


def share_text(counted: Counted) -> str:
    """Share of the validly tagged training rollouts that show it."""
    return percent(counted.shown / counted.tagged, 1) if counted.tagged else MISSING


def record(published_row: dict[str, str], found: Shown | None, counted: Counted) -> dict[str, object]:
    """A row of the CSV."""
    values = asdict(found) if found else {}
    values.pop("rubric_id", None)
    return {
        "environment": published_row["environment"],
        "skill": published_row["skill"],
        "rubric": published_row["rubric"],
        "polarity": published_row["polarity"],
        "published_illustration": published_row["illustration"],
        "share": counted.shown / counted.tagged if counted.tagged else None,
        "tagged": counted.tagged,
        **values,
    }


def frame_of(records: Sequence[dict[str, object]]) -> pd.DataFrame:
    frame = pd.DataFrame(records).reindex(columns=COLUMNS)
    whole = dict.fromkeys(("seed", "step", "turn", "tagged"), "Int64")
    return frame.astype(whole)


def notes(frames: Frames) -> list[str]:
    """What stands below both tables."""
    return [
        RULE,
        "Share: of this experiment's validly tagged training rollouts in that environment, all methods together. Tags "
        "are the judge's word; the names are the paper's.",
        f"Runs: {scale.describe(frames.experiment)}.",
    ]
