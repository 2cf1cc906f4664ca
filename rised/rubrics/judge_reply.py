"""From a judge model's raw reply to verdicts: what counts as one, and why a reply is none.

A reply counts as a whole or not at all. The object is looked for in this order: thinking is removed, then a byte order
mark and outer white space; the whole text is tried as JSON; else the text is scanned for balanced braces (outside of
JSON strings), and all objects with a key ``tags`` must be equal. Nothing is repaired: a mended half of an object would
hide rubrics without a verdict. Duplicate keys, NaN, infinities and numbers that overflow are errors everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rised.environments.thinking import without_thinking
from rised.records.types import TagState
from rised.rubrics.base import Verdict
from rised.rubrics.judge_prompt import states_of
from rised.rubrics.vocabulary import Rubric

CUT = "length"
"""``finish_reason`` of a reply that ran into the limit of tokens."""


class ReplyError(ValueError):
    """Why a reply is no verdict: a word (``missing_ids``) and what exactly, for the tag's reason."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Verdicts:
    """One verdict per rubric, in the order asked. ``dropped_evidence``: absences that came with an evidence turn."""

    by_rubric: dict[str, Verdict]
    dropped_evidence: int


def reply_schema(rubrics: Sequence[Rubric], turn_count: int) -> dict[str, Any]:
    """JSON schema of a reply on an episode of ``turn_count`` turns: all that a grammar can enforce of the rule.

    Every rubric at its place: the turn that is the evidence, then the state that follows from it, since a model writes
    keys in the schema's order. A turn that exists goes with a state of the rubric's polarity, null with absent. Equal
    for episodes of one environment and length, so that a server compiles few grammars.
    """
    turn = {"type": "integer", "minimum": 0, "maximum": turn_count - 1}
    entries = []
    for rubric in rubrics:
        shown = [state for state in states_of(rubric) if state != TagState.ABSENT]
        entries.append(
            {"anyOf": [_entry(rubric, shown, turn), _entry(rubric, [TagState.ABSENT.value], {"type": "null"})]}
        )
    tags = {
        "type": "array",
        "prefixItems": entries,
        "items": False,
        "minItems": len(entries),
        "maxItems": len(entries),
    }
    return {"type": "object", "properties": {"tags": tags}, "required": ["tags"], "additionalProperties": False}


def _entry(rubric: Rubric, states: list[str], turn: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"id": {"const": rubric.id}, "evidence_turn": turn, "state": {"enum": states}},
        "required": ["id", "evidence_turn", "state"],
        "additionalProperties": False,
    }


def read_reply(text: str, finish_reason: str, rubrics: Sequence[Rubric], turn_count: int) -> Verdicts:
    """The verdicts of a reply on an episode of ``turn_count`` turns; ReplyError says why there are none.

    A reply cut by its limit of tokens counts if the object is complete all the same.
    """
    try:
        return _verdicts(find_object(text), rubrics, turn_count)
    except ReplyError as error:
        if finish_reason == CUT:
            raise ReplyError("finish_reason_length", f"the reply was cut by its limit of tokens ({error})") from None
        raise


def find_object(text: str, key: str = "tags") -> dict[str, Any]:
    """The one object with ``key`` in a reply, by the rule above."""
    plain = _without_thinking(text.lstrip("\ufeff").strip())
    if not plain:
        raise ReplyError("no_json", "the reply is empty")
    try:
        whole = parse(plain)
    except ReplyError as error:
        if error.code != "invalid_json":
            raise
    else:
        return _with_key(whole, key)
    found: list[dict[str, Any]] = []
    for piece in _balanced(plain):
        try:
            value = parse(piece)
        except ReplyError as error:
            if error.code == "invalid_json" and f'"{key}"' not in piece:
                continue  # braces in prose
            raise
        if key in value and value not in found:
            found.append(value)
    if not found:
        raise ReplyError("no_json", f"no JSON object with a key '{key}'")
    if len(found) > 1:
        raise ReplyError("ambiguous", f"{len(found)} different objects with a key '{key}'")
    return found[0]


def _without_thinking(text: str) -> str:
    """As in every reply, but for one that begins with its object: that may quote the tags."""
    if text.startswith(("{", "`")):
        return text
    spoken = without_thinking(text).lstrip("\ufeff").strip()
    if text and not spoken and not text.endswith(("</think>", "</thinking>")):
        raise ReplyError("unclosed_thinking")
    return spoken


def _with_key(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ReplyError("schema", f"a {type(value).__name__} instead of an object")
    if key not in value:
        raise ReplyError("schema", f"the object has no key '{key}'")
    return value


def parse(text: str) -> Any:
    """Strict JSON. ReplyError ``invalid_json``, ``duplicate_key``, ``not_finite`` or ``too_deep``."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_float=_finite, parse_constant=_refuse_constant)
    except RecursionError:
        raise ReplyError("too_deep") from None
    except ReplyError:
        raise
    except ValueError as error:
        raise ReplyError("invalid_json", str(error)) from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ReplyError("duplicate_key", repr(twice))
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ReplyError("not_finite", text)
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ReplyError("not_finite", name)


def _balanced(text: str) -> Iterator[str]:
    """The outermost ``{…}`` of a text. ReplyError ``invalid_json`` for one that is not closed: half an object."""
    start = text.find("{")
    while start >= 0:
        end = _closing(text, start)
        yield text[start:end]
        start = text.find("{", end)


def _closing(text: str, start: int) -> int:
    """Index after the brace that closes the one at ``start``; braces in JSON strings do not count."""
    depth, in_string, escaped = 0, False, False
    for index in range(start, len(text)):
        character = text[index]
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return index + 1
    raise ReplyError("unbalanced", "an object is not closed")


def _verdicts(reply: dict[str, Any], rubrics: Sequence[Rubric], turn_count: int) -> Verdicts:
    entries = reply["tags"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ReplyError("schema", "'tags' is no list of objects")
    known = {rubric.id: rubric for rubric in rubrics}
    found: dict[str, Verdict] = {}
    dropped = 0
    for entry in entries:
        rubric_id = entry.get("id")
        if not isinstance(rubric_id, str) or rubric_id not in known:
            raise ReplyError("unknown_id", repr(rubric_id)[:80])
        if rubric_id in found:
            raise ReplyError("duplicate_id", rubric_id)
        state = _state(entry.get("state"), known[rubric_id])
        turn = _turn(entry.get("evidence_turn"), rubric_id, turn_count)
        if state is TagState.ABSENT:
            dropped += turn is not None
            turn = None
        elif turn is None:
            raise ReplyError("evidence_missing", f"{rubric_id} {state.value} without an evidence turn")
        found[rubric_id] = Verdict(state, turn)
    missing = [rubric_id for rubric_id in known if rubric_id not in found]
    if missing:
        raise ReplyError("missing_ids", ", ".join(missing))
    return Verdicts({rubric_id: found[rubric_id] for rubric_id in known}, dropped)


def _state(value: Any, rubric: Rubric) -> TagState:
    if not isinstance(value, str) or value not in set(TagState):
        raise ReplyError("unknown_state", f"{rubric.id}: {value!r}"[:120])
    if value not in states_of(rubric):
        raise ReplyError("negative_demonstrated", f"{rubric.id} is a negative rubric")
    return TagState(value)


def _turn(value: Any, rubric_id: str, turn_count: int) -> int | None:
    """An evidence turn; 3.0 counts as 3."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ReplyError("evidence_type", f"{rubric_id}: {value!r}"[:120])
    if not 0 <= value < turn_count:
        raise ReplyError("evidence_out_of_range", f"{rubric_id}: turn {value} of {turn_count}")
    return int(value)
