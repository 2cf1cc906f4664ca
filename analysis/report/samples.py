"""A sample of rollouts to read: one success and one failure per method, environment, split and chosen step.

Each comes with its turns, its tags at the turn that shows them, and what the selector did with its group. Taken
from the first seed of each method; the first and the last step that has such rollouts. Runs that were compacted
keep no texts and give no sample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from analysis.formatting import number
from analysis.frames import Frames
from analysis.names import environment_name, method_name
from analysis.runs import Run
from rised.records.errors import RecordError
from rised.rubrics.vocabulary import Vocabulary, load_vocabulary

TEXT_COLUMNS = [
    "rollout_id",
    "task_id",
    "group_id",
    "step",
    "environment",
    "success",
    "reward",
    "reward_valid",
    "stop_reason",
    "turns",
    "final_observation",
    "steering_text",
    "token_count",
    "split",
]
LONGEST = 1600
"""Characters of one observation that are shown; the cut is marked."""


@dataclass(frozen=True, slots=True)
class TagChip:
    """A tag as shown: ``state`` demonstrates, violates or error."""

    rubric: str
    state: str
    definition: str


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """One turn; ``mapped`` is empty where the action was executed as written."""

    index: int
    observation: str
    action: str
    mapped: str
    valid: bool
    truncated: bool
    tags: Sequence[TagChip]


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout ready for the page. ``outcome``: success, failure or invalid."""

    method: str
    method_label: str
    seed: int
    environment: str
    environment_label: str
    split: str
    step: int
    task_id: str
    outcome: str
    reward: str
    stop_reason: str
    tokens: int
    steering: str
    turns: Sequence[ShownTurn]
    final_observation: str
    whole_tags: Sequence[TagChip]
    absent: int
    tagged: bool
    selection: str


def sample(frames: Frames) -> list[Sample]:
    """Samples of every method in the experiment's order; empty where no texts are stored."""
    vocabulary = load_vocabulary()
    found = []
    for method in frames.experiment.methods:
        run = frames.experiment.of(method)[0]
        for kind, tag_kind in (("validation", "validation_tags"), ("rollouts", "tags")):
            found += _samples_of(run, kind, tag_kind, frames, vocabulary)
    return found


def _samples_of(run: Run, kind: str, tag_kind: str, frames: Frames, vocabulary: Vocabulary) -> list[Sample]:
    episodes = frames.validation if kind == "validation" else frames.rollouts
    mine = episodes[(episodes["method"] == run.method) & (episodes["seed"] == run.seed)]
    if mine.empty:
        return []
    found = []
    for step in sorted({int(mine["step"].min()), int(mine["step"].max())}):
        here = mine[mine["step"] == step].sort_values(["environment", "task_id", "rollout_index"])
        chosen = (
            here[here["reward_valid"]].groupby(["environment", "success"], sort=True)["rollout_id"].first().tolist()
        )
        try:
            table = run.reader.scan(kind, TEXT_COLUMNS, pc.field("rollout_id").isin(chosen), steps=[step])
            tags = _tags(run, tag_kind, step, chosen)
        except RecordError:
            # A compacted run has no texts; that there is no sample is said on the page.
            return []
        selections = _selections(run, step) if kind == "rollouts" else {}
        for row in table.to_pylist():
            found.append(
                _shown(run, row, tags.get(row["rollout_id"], []), selections.get(row["group_id"], ""), vocabulary)
            )
    return found


def _tags(run: Run, kind: str, step: int, rollout_ids: list[str]) -> dict[str, list[dict[str, Any]]]:
    table = run.reader.scan(kind, None, pc.field("rollout_id").isin(rollout_ids), steps=[step])
    by_rollout: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in table.to_pylist():
        by_rollout[row["rollout_id"]].append(row)
    return by_rollout


def _selections(run: Run, step: int) -> dict[str, str]:
    """group id -> a sentence on what the selector did."""
    sentences = {}
    for row in run.reader.scan("selections", steps=[step]).to_pylist():
        text = (
            f"selected as number {row['order'] + 1}"
            if row["selected"] and row["order"] is not None
            else ("selected" if row["selected"] else "not selected")
        )
        figures = [
            f"{name} {number(row[name])}" for name in ("similarity", "redundancy", "score") if row[name] is not None
        ]
        sentences[row["group_id"]] = f"Its group was {text}" + (f" ({', '.join(figures)})" if figures else "") + "."
    return sentences


def _shown(run: Run, row: dict[str, Any], tags: list[dict[str, Any]], selection: str, vocabulary: Vocabulary) -> Sample:
    chips: dict[int | None, list[TagChip]] = defaultdict(list)
    for tag in tags:
        state = tag["state"] if tag["status"] == "ok" else "error"
        if state != "absent":
            definition = vocabulary[tag["rubric_id"]].definition if tag["rubric_id"] in vocabulary else ""
            chips[tag["evidence_turn"]].append(TagChip(tag["rubric_id"], state, definition or tag["reason"]))
    turns = [
        ShownTurn(
            index=i,
            observation=_cut(turn["observation"]),
            action=turn["action_raw"],
            mapped=turn["action_mapped"] if turn["action_mapped"] != turn["action_raw"].strip() else "",
            valid=turn["action_valid"],
            truncated=turn["truncated"],
            tags=chips.pop(i, []),
        )
        for i, turn in enumerate(row["turns"])
    ]
    outcome = "invalid" if not row["reward_valid"] else "success" if row["success"] else "failure"
    return Sample(
        method=run.method,
        method_label=method_name(run.method),
        seed=run.seed,
        environment=row["environment"],
        environment_label=environment_name(row["environment"]),
        split="validation" if row["split"] == "validation" else "training",
        step=row["step"],
        task_id=row["task_id"],
        outcome=outcome,
        reward=number(row["reward"], 2),
        stop_reason=row["stop_reason"].replace("_", " "),
        tokens=row["token_count"],
        steering=row["steering_text"],
        turns=turns,
        final_observation=_cut(row["final_observation"]),
        whole_tags=[chip for rest in chips.values() for chip in rest],
        absent=sum(tag["state"] == "absent" for tag in tags),
        tagged=bool(tags),
        selection=selection,
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … [{len(text) - LONGEST:,} characters not shown]"
