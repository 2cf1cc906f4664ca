"""Records as rows of a table and back: the plain values that a schema's columns hold.

JSON texts and nested structures are made and read here; a row that holds no such record raises ValueError or TypeError.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from rised.records.errors import RecordError
from rised.records.text import TEXT_REPLACED, storable
from rised.records.types import (
    BundleStatus,
    CreditState,
    Gradient,
    JudgeAudit,
    JudgeReply,
    Metric,
    Reselection,
    Rollout,
    RubricBundle,
    Selection,
    SelectionAudit,
    StopReason,
    Tag,
    TagState,
    TagStatus,
    Timing,
    Turn,
)

_ROLLOUT_TEXTS = ("system_prompt", "steering_text", "final_observation")
TASK_FIELDS = ("environment", "split", "task_id", "seed", "payload", "content_hash")
"""Of a task, which travels as a plain dictionary. Its row has a ``row_hash`` of them beside."""


def _json(value: Any, where: str) -> str:
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{where} cannot be stored as JSON: {error}. Use text, finite numbers, lists.") from None


def _check_rollout(rollout: Rollout) -> None:
    problem = None
    if len(rollout.token_ids) != len(rollout.policy_mask):
        problem = f"{len(rollout.token_ids)} token_ids but {len(rollout.policy_mask)} entries of policy_mask"
    elif len(rollout.logprobs) != sum(rollout.policy_mask):
        problem = f"{len(rollout.logprobs)} logprobs for {sum(rollout.policy_mask)} policy tokens"
    elif rollout.reward_valid != (rollout.reward is not None):
        problem = f"reward_valid is {rollout.reward_valid} but reward is {rollout.reward}"
    elif rollout.reward is not None and not math.isfinite(rollout.reward):
        problem = f"reward is {rollout.reward}"
    if problem:
        raise RecordError(f"rollout {rollout.rollout_id!r}: {problem}")


def _storable_rollout(rollout: Rollout) -> Rollout:
    """The rollout with lone surrogates replaced, noted in the turn concerned, or in the first one for other texts."""
    turns = []
    for turn in rollout.turns:
        fields = {name: storable(getattr(turn, name)) for name in Turn.__slots__}
        stored = Turn(**fields)
        turns.append(turn if stored == turn else replace(stored, info=stored.info | {TEXT_REPLACED: True}))
    fields = {name: storable(getattr(rollout, name)) for name in _ROLLOUT_TEXTS}
    if turns and any(fields[name] != getattr(rollout, name) for name in _ROLLOUT_TEXTS):
        turns[0] = replace(turns[0], info=turns[0].info | {TEXT_REPLACED: True})
    return replace(rollout, turns=tuple(turns), **fields)


def _rollout_row(rollout: Rollout) -> dict[str, Any]:
    _check_rollout(rollout)
    rollout = _storable_rollout(rollout)
    row = {name: getattr(rollout, name) for name in Rollout.__slots__}
    row["turns"] = [
        {name: getattr(turn, name) for name in Turn.__slots__}
        | {"info": _json(turn.info, f"info of turn {index} of rollout {rollout.rollout_id!r}")}
        for index, turn in enumerate(rollout.turns)
    ]
    row["messages"] = rollout.messages
    row["stop_reason"] = StopReason(rollout.stop_reason).value
    row["turn_count"], row["token_count"] = len(rollout.turns), len(rollout.token_ids)
    return row


def _rollout(row: dict[str, Any]) -> Rollout:
    for derived in ("messages", "turn_count", "token_count"):
        del row[derived]
    row["turns"] = tuple(Turn(**turn | {"info": json.loads(turn["info"])}) for turn in row["turns"])
    for name in ("steering_rubrics", "token_ids", "policy_mask", "logprobs"):
        row[name] = tuple(row[name])
    row["stop_reason"] = StopReason(row["stop_reason"])
    return Rollout(**row)


def _tag_row(tag: Tag) -> dict[str, Any]:
    if (tag.state is None) == (tag.status == TagStatus.OK):
        raise RecordError(
            f"tag {tag.rubric_id!r} of rollout {tag.rollout_id!r}: status {tag.status!s} with state {tag.state!s}; "
            "a state is given exactly when the status is ok"
        )
    row = {name: getattr(tag, name) for name in Tag.__slots__}
    row["state"] = None if tag.state is None else TagState(tag.state).value
    row["status"] = TagStatus(tag.status).value
    return row


def _tag(row: dict[str, Any]) -> Tag:
    row["state"] = None if row["state"] is None else TagState(row["state"])
    row["status"] = TagStatus(row["status"])
    return Tag(**row)


def _reply_row(reply: JudgeReply) -> dict[str, Any]:
    row = {name: getattr(reply, name) for name in JudgeReply.__slots__}
    return row | {"status": TagStatus(reply.status).value}


def _reply(row: dict[str, Any]) -> JudgeReply:
    return JudgeReply(**row | {"status": TagStatus(row["status"])})


def _selection_row(selection: Selection | Reselection) -> dict[str, Any]:
    if selection.selected != (selection.order is not None):
        raise RecordError(
            f"selection of group {selection.group_id!r} in step {selection.step}: selected is {selection.selected} "
            f"but order is {selection.order}; a group has an order exactly when it is selected"
        )
    return {name: getattr(selection, name) for name in type(selection).__slots__}


def _bundle_row(bundle: RubricBundle) -> dict[str, Any]:
    numbers = [*(score for row in bundle.scores for score in row), *bundle.satisfaction, bundle.alignment]
    if not all(number is None or math.isfinite(number) for number in numbers):
        raise RecordError(
            f"bundle {bundle.index} of group {bundle.group_id!r} in step {bundle.step} holds a number that is not "
            "finite; an undefined one is None"
        )
    if len(bundle.rubric_ids) != len(bundle.criteria) or len(bundle.scores) not in (0, len(bundle.rollout_ids)):
        raise RecordError(
            f"bundle {bundle.index} of group {bundle.group_id!r} in step {bundle.step}: {len(bundle.criteria)} "
            f"criteria with {len(bundle.rubric_ids)} rubric_ids, {len(bundle.rollout_ids)} rollouts with "
            f"{len(bundle.scores)} rows of scores"
        )
    return {name: getattr(bundle, name) for name in RubricBundle.__slots__} | {
        "status": BundleStatus(bundle.status).value,
        "group_state": CreditState(bundle.group_state).value,
    }


def _bundle(row: dict[str, Any]) -> RubricBundle:
    lists = {name: tuple(row[name]) for name in ("criteria", "rubric_ids", "rollout_ids", "satisfaction")}
    states = {"status": BundleStatus(row["status"]), "group_state": CreditState(row["group_state"])}
    return RubricBundle(**row | lists | states | {"scores": tuple(tuple(scores) for scores in row["scores"])})


def _gradient_row(gradient: Gradient) -> dict[str, Any]:
    numbers = (gradient.norm, *([] if gradient.cosine is None else [gradient.cosine]), *gradient.vector)
    if not all(map(math.isfinite, numbers)):
        raise RecordError(
            f"the gradient of {gradient.environment} ({gradient.split}, {gradient.signal}) at step {gradient.step} "
            "is not finite; an undefined cosine is None"
        )
    return {name: getattr(gradient, name) for name in Gradient.__slots__}


def _gradient(row: dict[str, Any]) -> Gradient:
    return Gradient(**row | {"vector": tuple(row["vector"])})


def _audit_row(audit: JudgeAudit | SelectionAudit) -> dict[str, Any]:
    row = {name: getattr(audit, name) for name in type(audit).__slots__}
    wrong = [name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
    if wrong:
        raise RecordError(f"an audit of {audit.judge}: {wrong[0]} is not finite; an undefined one is None")
    return row


def _measure_row(record: Metric | Timing) -> dict[str, Any]:
    if record.value is not None and not math.isfinite(record.value):
        raise RecordError(f"{record.name!r} of step {record.step} is {record.value}: an undefined metric is None")
    return {name: getattr(record, name) for name in type(record).__slots__}


def _task_row(task: Mapping[str, Any]) -> dict[str, Any]:
    missing = [name for name in TASK_FIELDS if name not in task]
    surplus = [name for name in task if name not in TASK_FIELDS]
    if missing or surplus:
        raise RecordError(
            f"task {task.get('task_id', '(no task_id)')!r}: missing fields {missing}, unknown fields {surplus}; "
            f"a task has {', '.join(TASK_FIELDS)}"
        )
    row = dict(task) | {"payload": _json(task["payload"], f"payload of task {task['task_id']!r}")}
    return row | {"row_hash": _row_hash(row)}


def _row_hash(row: Mapping[str, Any]) -> str:
    """SHA-256 of a stored task; ``content_hash`` covers only what makes two tasks the same one."""
    return hashlib.sha256(json.dumps([row[name] for name in TASK_FIELDS]).encode()).hexdigest()


def _task(row: dict[str, Any]) -> dict[str, Any]:
    stored = row.pop("row_hash", None)
    if stored is not None and stored != _row_hash(row):
        raise ValueError("it was changed after it was written (its row_hash differs)")
    payload = json.loads(row["payload"])
    if not isinstance(payload, dict):
        raise ValueError(f"the payload of task {row['task_id']!r} is no mapping")
    return row | {"payload": payload}


class Conversion(NamedTuple):
    record_type: type
    to_row: Callable[[Any], dict[str, Any]]
    from_row: Callable[[dict[str, Any]], Any]


CONVERSIONS: dict[str, Conversion] = {
    "rollouts": Conversion(Rollout, _rollout_row, _rollout),
    "tags": Conversion(Tag, _tag_row, _tag),
    "judge_replies": Conversion(JudgeReply, _reply_row, _reply),
    "selections": Conversion(Selection, _selection_row, lambda row: Selection(**row)),
    "reselections": Conversion(Reselection, _selection_row, lambda row: Reselection(**row)),
    "rubric_bundles": Conversion(RubricBundle, _bundle_row, _bundle),
    "gradients": Conversion(Gradient, _gradient_row, _gradient),
    "judge_audits": Conversion(JudgeAudit, _audit_row, lambda row: JudgeAudit(**row)),
    "selection_audits": Conversion(SelectionAudit, _audit_row, lambda row: SelectionAudit(**row)),
    "metrics": Conversion(Metric, _measure_row, lambda row: Metric(**row)),
    "timings": Conversion(Timing, _measure_row, lambda row: Timing(**row)),
    "tasks": Conversion(Mapping, _task_row, _task),
}
