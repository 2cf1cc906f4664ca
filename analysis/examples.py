"""Examples of rubrics, picked from stored rollouts by a fixed rule: no example is chosen for looking good.

The rule [ours]: among the rollouts of one environment whose tag shows the behaviour and names a turn, the one of the
latest update; at equal updates the first by rollout id. A pair is picked likewise among the groups (one task, one
update) of which one rollout shows the first rubric and another the second. Texts are read for the picked rollouts
alone; compacted runs keep none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.frames import Frames, only_judge
from analysis.names import PROPOSED
from analysis.runs import Run
from rised.records.shards import check_file
from rised.rubrics.vocabulary import Polarity, load_vocabulary

LONGEST = 90
"""Characters of a printed action; longer ones end in an ellipsis."""
NO_TEXT = "texts are not kept in compacted runs"


@dataclass(frozen=True, slots=True)
class Shown:
    """A rubric in one rollout. ``action``: the reply at ``turn`` (from 1); None where texts are not kept."""

    method: str
    seed: int
    step: int
    task_id: str
    rollout_id: str
    rubric_id: str
    turn: int
    action: str | None
    reply: str | None
    success: bool | None


@dataclass(frozen=True, slots=True)
class Counted:
    """How often a rubric was shown in an environment's training rollouts, over all runs read."""

    shown: int
    tagged: int


def shows(rubric_id: str) -> str:
    """The state that says that the behaviour occurred."""
    return "demonstrates" if load_vocabulary().polarity(rubric_id) is Polarity.POSITIVE else "violates"


def runs_to_read(frames: Frames) -> list[Run]:
    """Runs of the proposed method first, then the others; those with texts before compacted ones."""
    runs = frames.experiment.runs
    return sorted(runs, key=lambda run: (not keeps_texts(run), run.method != PROPOSED))


def keeps_texts(run: Run) -> bool:
    """Whether the run's rollouts are stored whole."""
    shards = run.reader.shards("rollouts")
    return bool(shards) and check_file(run.path / shards[0].path, None) == "rollouts"


def tagged(run: Run, rubrics: Sequence[str], environment: str) -> pd.DataFrame:
    """Valid tags of the rubrics joined to their rollouts: rollout_id, rubric_id, state, evidence_turn, "
    "step, task_id…"""
    columns = ["rollout_id", "rubric_id", "state", "evidence_turn"]
    judge = only_judge([run])
    valid = pc.field("rubric_id").isin(list(rubrics)) & (pc.field("status") == "ok")
    tags = run.reader.scan("tags", columns, valid, judge=judge) if judge is not None else None
    episodes = ["rollout_id", "step", "group_id", "task_id", "success"]
    rollouts = run.reader.scan("rollouts", episodes, pc.field("environment") == environment)
    if tags is None or not tags.num_rows or not rollouts.num_rows:
        return pd.DataFrame(columns=[*columns, *episodes[1:]])
    joined: pa.Table = tags.join(rollouts, "rollout_id", join_type="inner")
    return joined.to_pandas()


def pick(frames: Frames, rubric_id: str, environment: str) -> tuple[Shown | None, Counted]:
    """The example of a rubric, and how often it was shown."""
    found: Shown | None = None
    shown = total = 0
    for run in runs_to_read(frames):
        rows = tagged(run, [rubric_id], environment)
        total += len(rows)
        present = rows[rows["state"] == shows(rubric_id)]
        shown += len(present)
        evident = present.dropna(subset=["evidence_turn"])
        if found is None and len(evident):
            best = evident.sort_values(["step", "rollout_id"], ascending=[False, True]).iloc[0]
            found = _shown(run, best.to_dict())
    return found, Counted(shown, total)


def pick_pair(frames: Frames, first: str, second: str, environment: str) -> tuple[Shown, Shown] | None:
    """Two rollouts of one group, of which one shows ``first`` and the other ``second`` and not the reverse."""
    for run in runs_to_read(frames):
        rows = tagged(run, [first, second], environment)
        present = rows[rows["state"] == rows["rubric_id"].map({r: shows(r) for r in (first, second)})]
        present = present.dropna(subset=["evidence_turn"]).sort_values("rollout_id")
        both = set(present.loc[present["rubric_id"] == first, "rollout_id"]) & set(
            present.loc[present["rubric_id"] == second, "rollout_id"]
        )
        apart = present[~present["rollout_id"].isin(both)]
        groups = apart.groupby("group_id")["rubric_id"].nunique()
        candidates = apart[apart["group_id"].isin(groups.index[groups == 2])]
        if candidates.empty:
            continue
        ordered = candidates.sort_values(["step", "group_id"], ascending=[False, True])
        group = candidates[candidates["group_id"] == ordered.iloc[0]["group_id"]]
        a, b = (group[group["rubric_id"] == rubric].iloc[0].to_dict() for rubric in (first, second))
        return _shown(run, a), _shown(run, b)
    return None


def _shown(run: Run, row: dict[str, Any]) -> Shown:
    turn = int(row["evidence_turn"])
    action = reply = None
    if keeps_texts(run):
        chosen = pc.field("rollout_id") == row["rollout_id"]
        table = run.reader.scan("rollouts", ["turns", "final_observation"], chosen, steps=[int(row["step"])])
        (record,) = table.to_pylist()
        action = _short(record["turns"][turn]["action_raw"])
        later = record["turns"][turn + 1 :]
        reply = _short(later[0]["observation"] if later else record["final_observation"])
    success = row["success"]
    return Shown(
        run.method,
        run.seed,
        int(row["step"]),
        str(row["task_id"]),
        str(row["rollout_id"]),
        str(row["rubric_id"]),
        turn + 1,
        action,
        reply,
        None if pd.isna(success) else bool(success),
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
