"""Text that other programs can take: what UTF-8 can store, and what a terminal or a page may show.

Everything else is kept as it came: no normalisation, no stripping.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

Value = TypeVar("Value")

TEXT_REPLACED = "text_replaced"
"""Key in the log of a turn (``Turn.info``) whose texts held a lone surrogate; its value is True."""
UNDECODABLE_IDS = "undecodable_ids"
"""Key in the log of a turn: how many of its sampled token ids the tokenizer has no text for; absent where none."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPES = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u([dD][89a-fA-F]..)|\\.")


def storable(value: Value) -> Value:
    """The value with U+FFFD for every lone surrogate in its texts, which neither UTF-8 nor Parquet can hold.

    Lists, tuples and dictionaries (keys too) are gone through; other values are returned as they are.
    """
    return _storable(value)  # type: ignore[no-any-return]


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_storable, value))
    return value


def printable(text: str) -> str:
    r"""The text with control and direction characters as escapes (``\x1b``, ``\u202e``); tab and line feed stay."""
    return _UNSHOWN.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def load_json(text: str) -> Any:
    """``json.loads`` that refuses what could not be stored again: a lone surrogate is a JSONDecodeError too."""
    for escape in _ESCAPES.finditer(text):
        if escape[1]:
            raise json.JSONDecodeError(f"\\u{escape[1]} is half a character; write all of it", text, escape.start())
    return json.loads(text)
