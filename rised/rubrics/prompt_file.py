"""Prompt files: named sections with places in double braces, checked when they are read."""

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
    """One pass, so that a transcript that holds a place is left alone."""
    return _PLACE.sub(lambda place: values[place[1]], template)
