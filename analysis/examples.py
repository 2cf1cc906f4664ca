"""Examples of rubrics, picked from stored rollouts by a fixed rule: no example is chosen for looking good.

The rule [ours]: among the rollouts of one environment whose tag shows the behaviour and names a turn, the one of the
latest update; at equal updates the first by rollout id. A pair is picked likewise among the groups (one task, one
update) of which one rollout shows the first rubric and another the second. Updates whose texts are kept go before
others: a compacted run has those of its last update at most. Counts of tags say where to look, so that only the tags
of updates that show a rubric are read, and texts for the picked rollouts alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.frames import Frames, only_judge
from analysis.names import PROPOSED
from analysis.runs import Run
from rised.rubrics.vocabulary import Polarity, load_vocabulary

LONGEST = 90
"""Characters of a printed action; longer ones end in an ellipsis."""
NO_TEXT = "what was said is not kept for this update"


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
    """Runs of the proposed method first, then the others; those that keep what was said before those that do not."""
    runs = frames.experiment.runs
    return sorted(runs, key=lambda run: (text_kind(run) is None, run.method != PROPOSED))


def text_kind(run: Run) -> str | None:
    """The kind of record that holds whole rollouts: all of them, or those of a compacted run's last update."""
    return next((kind for kind in ("rollouts", "rollout_texts") if "turns" in run.reader.columns(kind)), None)


def quoted_steps(run: Run) -> set[int] | None:
    """The updates of which texts are kept; None: all."""
    if text_kind(run) != "rollout_texts":
        return None if text_kind(run) else set()
    return set(pc.unique(run.reader.scan("rollout_texts", ["step"])["step"]).to_pylist())


def tagged(run: Run, rubrics: Sequence[str], environment: str, step: int) -> pd.DataFrame:
    """One update's valid tags of the rubrics joined to their rollouts: rollout_id, rubric_id, state, evidence_turn,
    step, group_id, task_id, success."""
    columns = ["rollout_id", "rubric_id", "state", "evidence_turn"]
    valid = pc.field("rubric_id").isin(pa.array(rubrics, pa.string())) & (pc.field("status") == "ok")
    steps = None if run.reader.compacted and "tags" not in run.reader.step_rows else [step]
    tags: pa.Table = run.reader.scan("tags", columns, valid, steps=steps, judge=only_judge([run]))
    episodes = ["rollout_id", "step", "group_id", "task_id", "success"]
    rollouts = run.reader.scan("rollouts", episodes, pc.field("environment") == environment, steps=[step])
    joined: pa.Table = tags.join(rollouts, "rollout_id", join_type="inner")
    return joined.to_pandas()


def counts(frames: Frames, run: Run, environment: str) -> pd.DataFrame:
    """The run's tags of an environment counted by step and rubric; no rows where it is not tagged."""
    judge = only_judge([run])
    found = frames.tag_counts(run, judge) if judge is not None else pd.DataFrame(columns=["environment"])
    return found[found["environment"] == environment]


def pick(frames: Frames, rubric_id: str, environment: str) -> tuple[Shown | None, Counted]:
    """The example of a rubric, and how often it was shown."""
    found: Shown | None = None
    shown = total = 0
    for run in runs_to_read(frames):
        rows = counts(frames, run, environment)
        rows = rows[rows["rubric_id"] == rubric_id] if len(rows) else rows
        total += int(rows[["demonstrates", "violates", "absent"]].to_numpy().sum()) if len(rows) else 0
        shown += int(rows[shows(rubric_id)].sum()) if len(rows) else 0
        if found is None and len(rows):
            found = _latest(run, rubric_id, environment, rows.loc[rows[shows(rubric_id)] > 0, "step"])
    return found, Counted(shown, total)


def _latest(run: Run, rubric_id: str, environment: str, steps: Iterable[int]) -> Shown | None:
    for step in _in_order(run, steps):
        rows = tagged(run, [rubric_id], environment, step)
        evident = rows[rows["state"] == shows(rubric_id)].dropna(subset=["evidence_turn"])
        if len(evident):
            return _shown(run, evident.sort_values("rollout_id").iloc[0].to_dict())
    return None


def _in_order(run: Run, steps: Iterable[int]) -> list[int]:
    """Updates whose texts are kept first, then the latest first."""
    quoted = quoted_steps(run)
    return sorted({int(step) for step in steps}, key=lambda step: (quoted is not None and step not in quoted, -step))


def pick_pair(frames: Frames, first: str, second: str, environment: str) -> tuple[Shown, Shown] | None:
    """Two rollouts of one group, of which one shows ``first`` and the other ``second`` and not the reverse."""
    for run in runs_to_read(frames):
        rows = counts(frames, run, environment)
        if rows.empty:
            continue
        sets = [set(rows.loc[(rows["rubric_id"] == r) & (rows[shows(r)] > 0), "step"]) for r in (first, second)]
        for step in _in_order(run, sets[0] & sets[1]):
            pair = _pair(tagged(run, [first, second], environment, step), first, second)
            if pair is not None:
                return _shown(run, pair[0]), _shown(run, pair[1])
    return None


def _pair(rows: pd.DataFrame, first: str, second: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The first group's two rows among one update's tags."""
    present = rows[rows["state"] == rows["rubric_id"].map({r: shows(r) for r in (first, second)})]
    present = present.dropna(subset=["evidence_turn"]).sort_values("rollout_id")
    both = set(present.loc[present["rubric_id"] == first, "rollout_id"]) & set(
        present.loc[present["rubric_id"] == second, "rollout_id"]
    )
    apart = present[~present["rollout_id"].isin(both)]
    groups = apart.groupby("group_id")["rubric_id"].nunique()
    candidates = apart[apart["group_id"].isin(groups.index[groups == 2])]
    if candidates.empty:
        return None
    group = candidates[candidates["group_id"] == candidates["group_id"].min()]
    a, b = (group[group["rubric_id"] == rubric].iloc[0].to_dict() for rubric in (first, second))
    return a, b


def _shown(run: Run, row: dict[str, Any]) -> Shown:
    turn, step = int(row["evidence_turn"]), int(row["step"])
    action = reply = None
    kind, quoted = text_kind(run), quoted_steps(run)
    if kind is not None and (quoted is None or step in quoted):
        chosen = pc.field("rollout_id") == row["rollout_id"]
        table = run.reader.scan(kind, ["turns", "final_observation"], chosen, steps=[step])
        (record,) = table.to_pylist()
        action = _short(record["turns"][turn]["action_raw"])
        later = record["turns"][turn + 1 :]
        reply = _short(later[0]["observation"] if later else record["final_observation"])
    success = row["success"]
    return Shown(
        run.method,
        run.seed,
        step,
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
