"""Prompt files: named sections with places in double braces, checked when they are read.

What fills a place, and the model's own reply in a chat that continues, is data: :func:`without_control_tokens` makes
sure that a served model's tokenizer finds no control token in it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rised.config.paths import shipped
from rised.rubrics.base import RubricError

Messages = list[dict[str, str]]
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_OPENS_CONTROL_TOKEN = re.compile(r"<(?!\s)|\[(?=/?[A-Za-z_]*[A-Z]{2}[A-Za-z_]*\])(?!SEP\])")
"""``<|im_end|>``, ``</s>``, ``<start_of_turn>``, ``<think>``, ``<<SYS>>`` and the like begin with ``<``; ``[INST]``,
``[/INST]``, ``[TOOL_CALLS]``, ``[gMASK]`` are capitals in brackets. WebShop's separator ``[SEP]`` ends no turn."""


@dataclass(frozen=True, slots=True)
class PromptFile:
    """``hash``: SHA-256 (hex) of the file's bytes; ``sections``: heading -> text."""

    name: str
    hash: str
    sections: Mapping[str, str]

    @property
    def version(self) -> str:
        """``judge_v1-1a2b3c4d``: the file's name and the beginning of its hash."""
        return f"{self.name}-{self.hash[:8]}"


def read_prompt(
    path: Path | str, places: Mapping[str, set[str]], required: Mapping[str, set[str]], what: str
) -> PromptFile:
    """Read a file whose headings are the keys of ``places``, in their order; relative paths are of the repository.

    ``places``: heading -> the places that may stand under it, ``required``: those that must. ``what`` names the prompt
    in errors ("the judge's prompt"). RubricError says what the file lacks.
    """
    file = shipped(path)
    try:
        data = file.read_bytes()
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RubricError(f"{what} {path} cannot be read: {error}") from None
    _, *pieces = re.split(rf"^# ({'|'.join(places)})$", text, flags=re.MULTILINE)
    sections = dict(zip(pieces[::2], (piece.strip() for piece in pieces[1::2]), strict=True))
    if len(pieces) != 2 * len(places) or list(sections) != list(places):
        headings = ", ".join(f"`# {heading}`" for heading in places)
        raise RubricError(f"{path}: {what} has the headings {headings}, once each and in this order")
    for heading, section in sections.items():
        found, needed = placed(section), required.get(heading, set())
        if found - places[heading] or needed - found:
            known = ", ".join(f"{{{{{name}}}}}" for name in sorted(places[heading])) or "none"
            raise RubricError(
                f"{path}: under `# {heading}` stand the places {sorted(found)}; {sorted(needed)} must be there, and "
                f"only {known} are known"
            )
    return PromptFile(file.stem, hashlib.sha256(data).hexdigest(), sections)


def placed(template: str) -> set[str]:
    """The places that stand in it."""
    return set(_PLACE.findall(template))


def filled(template: str, values: Mapping[str, str]) -> str:
    """One pass, so that a transcript that holds a place is left alone. Values lose their control tokens."""
    return _PLACE.sub(lambda place: without_control_tokens(values[place[1]]), template)


def asked_again(messages: Messages, reply: str, said: str) -> Messages:
    """The chat continued with a model's unusable reply and what is said to it."""
    return [
        *messages,
        {"role": "assistant", "content": without_control_tokens(reply)},
        {"role": "user", "content": said},
    ]


def without_control_tokens(text: str) -> str:
    """The text with the first character of everything that could be a control token as a JSON escape.

    Servers encode prompts with control tokens recognised, so that ``<|im_end|>`` in an observation would end the user
    turn. The escape means the same to a reader of JSON and is no token of any tokenizer. Equal when applied twice.
    """
    return _OPENS_CONTROL_TOKEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
