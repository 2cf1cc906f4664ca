"""The benchmark's verdicts, as published: comparison of answers and hashes of tables.

The rules are AgentBench's to the letter, its oddities included (empty, null and NaN answers equal 0; several words
compare as a set, several numbers as a multiset); only ``eval`` is replaced by literal parsing. Nothing here touches
a database: rows and answers come in as values.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Sequence

FLOAT_TOLERANCE = 1e-2
GROUP_CONCAT_MAX_BYTES = 1024
"""MySQL cuts a ``group_concat`` here, silently: golds made there of more than 170 rows are hashes of the cut text."""
ROW_HASH_CHARS = 5

_AS_ZERO = {"none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity", ""}
_PARSE_ERRORS = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)

Answer = str | Sequence[object] | None


def answers_equal(answer: Answer, gold: Answer) -> bool:
    """The published comparison of an answer to a question. Text that defeats the cleaning is a wrong answer."""
    try:
        return _equal(clean_answer(answer), clean_answer(gold))
    except _PARSE_ERRORS:
        return False


def _equal(answer: list[str], gold: list[str]) -> bool:
    if len(answer) == 1 and len(gold) == 1:
        if _is_float(answer[0]) and _is_float(gold[0]):
            return _close(answer[0], gold[0])
        return answer[0] == gold[0]
    if all(map(_is_float, answer)) and all(map(_is_float, gold)):
        return _same_multiset(answer, gold)
    return set(answer) == set(gold)


def _same_multiset(answer: list[str], gold: list[str]) -> bool:
    if len(answer) != len(gold):
        return False
    open_golds = list(gold)
    for value in answer:
        match = next((index for index, other in enumerate(open_golds) if _close(value, other)), None)
        if match is None:
            return False
        del open_golds[match]
    return True


def null_counts_as_zero(answer: Answer, gold: Answer) -> bool:
    """Whether an accepted answer was accepted only because the published rule reads an empty one as 0.

    [ours] The benchmark does not tell these apart; we count them.
    """
    try:
        if not _equal(clean_answer(answer), clean_answer(gold)):
            return False
        return _equal(clean_answer(answer, "<null>"), clean_answer(gold, "<null>")) is False
    except _PARSE_ERRORS:
        return False


def clean_answer(answer: Answer, null: str = "0") -> list[str]:
    """The values of an answer: a bare value, a Python-like list, or the text of a MySQL result."""
    if answer is None:
        return [null]
    if not isinstance(answer, str):
        return [_clean_item(item, null) for item in answer]
    result = _clean_result_text(answer)
    if result is not None:
        return [_normalise(value, null) for value in result]
    answer = answer.strip()
    if not (answer.startswith("[") and answer.endswith("]")):
        return [_normalise(_unquote(answer), null)]
    try:
        parsed = ast.literal_eval(answer)
    except _PARSE_ERRORS:
        return _split_by_hand(answer[1:-1], null)
    return [_clean_item(item, null) for item in parsed]


def _clean_result_text(text: str) -> list[str] | None:
    """Values of ``[(v,), …]``; rows of several columns are dropped, as published. None: not such a text."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        parsed = ast.literal_eval(text)
        if isinstance(parsed, list) and all(isinstance(row, tuple) for row in parsed):
            return [_unquote(str(row[0])) for row in parsed if len(row) == 1]
    except _PARSE_ERRORS:
        pass
    inner = text.strip("[]")
    if inner.count("(") == 1 and inner.startswith("(") and inner.endswith(",)"):
        return [_unquote(inner[1:-2])]
    return None


def _clean_item(item: object, null: str) -> str:
    if isinstance(item, tuple) and len(item) == 1:
        item = item[0]
    return _normalise(_unquote(str(item)), null)


def _split_by_hand(inner: str, null: str) -> list[str]:
    """Split at commas outside quotes; the quotes vanish wherever they stand (so a lone apostrophe vanishes too)."""
    items: list[str] = []
    current = ""
    in_quotes = False
    for char in inner:
        if char in "\"'":
            in_quotes = not in_quotes
        elif char == "," and not in_quotes:
            if current:
                items.append(current)
            current = ""
        else:
            current += char
    if current:
        items.append(current)
    return [_normalise(_unquote(item), null) for item in items]


def _unquote(text: str) -> str:
    return text.strip().strip("'\"")


def _normalise(value: str, null: str) -> str:
    value = value.strip()
    if value.endswith("%"):
        return value[:-1].strip()
    if not value.startswith("[") and not value.endswith("]"):
        value = value.replace(",", "")
    return null if value.lower() in _AS_ZERO else value


def _is_float(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _close(a: str, b: str) -> bool:
    return abs(float(a) - float(b)) <= FLOAT_TOLERANCE


def table_hash(rows: Iterable[Sequence[str | None]], max_bytes: int | None = None) -> str | None:
    """MD5 of the sorted row hashes; None for an empty table, as the database's NULL.

    A row's hash is the first five characters of the MD5 of its non-NULL cells joined by commas. ``max_bytes`` cuts the
    joined hashes as MySQL's ``group_concat_max_len`` does.
    """
    hashes = sorted(
        hashlib.md5(",".join(cell for cell in row if cell is not None).encode()).hexdigest()[:ROW_HASH_CHARS]
        for row in rows
    )
    if not hashes:
        return None
    return hashlib.md5(",".join(hashes).encode()[:max_bytes]).hexdigest()


def combined_hash(hashes: Iterable[str | None]) -> str:
    """One hash for all tables of a record: sorted and joined by underscores; NULL is written ``None``."""
    return "_".join(sorted(str(value) for value in hashes))


def hashes_equal(value: str, gold: str) -> bool:
    """Compare a combined hash with the recorded ``answer_md5`` (which is the text of a MySQL result)."""
    return clean_answer(value) == clean_answer(gold)
