"""Reading the policy's replies: AgentBench's two patterns, our forgiving mode, and the compact grammar.

A reply is an operation (SQL), an answer, or invalid. What happens next is the environment's business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from rised.environments.thinking import without_thinking

INVALID_TEXT = "invalid action"
COMPACT_SEPARATOR = ";"


class Reply(NamedTuple):
    """``text`` is the SQL of an operation (on one line) or the text of an answer; empty when invalid."""

    kind: Literal["operation", "answer", "invalid"]
    text: str = ""


_INVALID = Reply("invalid")
_ACTION = re.compile(r"Action: (.*?)\n")
_BLOCK = re.compile(r"```sql\n([\s\S]*?)\n```")
_FINAL = re.compile(r"\nFinal Answer:(.*)")
_LENIENT_ACTION = re.compile(r"action:[ \t]*(operation|answer)[ \t]*(?:\n|$)", re.IGNORECASE)
_LENIENT_BLOCK = re.compile(r"```sql[ \t]*\n([\s\S]*?)\s*```", re.IGNORECASE)
_LENIENT_FINAL = re.compile(r"\n\s*final answer:[ \t]*(\[[\s\S]*?\](?=\s*(?:\n|$))|.*)", re.IGNORECASE)
_COMPACT = re.compile(r"(sql|answer):(.*)", re.IGNORECASE | re.DOTALL)


def _one_line(sql: str) -> str:
    return sql.strip().replace("\n", " ")


def match_published(reply: str) -> Reply:
    """The published patterns alone: the first Action line decides, an answer stands on one line."""
    action = _ACTION.search(reply)
    if action and action.group(1) == "Operation":
        block = _BLOCK.search(reply)
        return Reply("operation", _one_line(block.group(1))) if block else _INVALID
    final = _FINAL.search(reply)
    return Reply("answer", final.group(1).strip()) if final else _INVALID


def match_lenient(reply: str) -> Reply:
    """[ours] As published, but indifferent to case, blanks and line breaks inside a list; an Action line is needed."""
    action = _LENIENT_ACTION.search(reply)
    if not action:
        return _INVALID
    if action.group(1).lower() == "operation":
        block = _LENIENT_BLOCK.search(reply)
        return Reply("operation", _one_line(block.group(1))) if block else _INVALID
    final = _LENIENT_FINAL.search(reply)
    return Reply("answer", final.group(1).strip()) if final else _INVALID


def match_compact(reply: str) -> Reply:
    """[ours] ``sql: …`` or ``answer: …`` and nothing before it."""
    match = _COMPACT.fullmatch(reply.strip())
    if not match or not match.group(2).strip():
        return _INVALID
    text = match.group(2).strip()
    return Reply("operation", _one_line(text)) if match.group(1).lower() == "sql" else Reply("answer", text)


_MATCHERS = {"published": match_published, "lenient": match_lenient, "compact": match_compact}


def parse_reply(reply: str, form: Literal["published", "lenient", "compact"]) -> Reply:
    """Read one reply in the given form, its thinking removed first."""
    return _MATCHERS[form](without_thinking(reply))


def compact_values(text: str) -> str | list[str]:
    """The values of a compact answer, which copies a result: rows are parted by semicolons. A list stays a list."""
    if text.startswith("[") or COMPACT_SEPARATOR not in text:
        return text
    return [part.strip() for part in text.split(COMPACT_SEPARATOR)]


def write_operation(sql: str, style: str) -> str:
    """The reply that runs ``sql``, in the given prompt style."""
    return f"sql: {sql}" if style == "compact" else f"Action: Operation\n```sql\n{sql}\n```"


def write_answer(values: Sequence[str], style: str) -> str:
    """The reply that commits ``values`` as the answer, in the given prompt style."""
    if style == "compact":
        return "answer: " + f"{COMPACT_SEPARATOR} ".join(values)
    return f"Action: Answer\nFinal Answer: {json.dumps(list(values), ensure_ascii=False)}"
