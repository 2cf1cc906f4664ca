"""Prompt files of discovery: ``# System``, ``# User`` and ``# Again``, with places in double braces."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rised.rubrics.judge_prompt import REPOSITORY, Messages
from rubric_discovery.errors import DiscoveryError

HEADINGS = ("System", "User", "Again")
_SECTION = re.compile(r"^# (System|User|Again)$", re.MULTILINE)
_PLACE = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One version of one prompt. ``version``: the file's name and the beginning of its hash."""

    version: str
    system: str
    user: str
    again: str

    def messages(self, values: Mapping[str, str]) -> Messages:
        """The chat that is sent."""
        return [
            {"role": "system", "content": _filled(self.system, values)},
            {"role": "user", "content": _filled(self.user, values)},
        ]

    def asked_again(self, messages: Messages, reply: str, reason: str) -> Messages:
        """The chat goes on after a reply that was none, with the reason."""
        said = _filled(self.again, {"reason": reason})
        return [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": said}]


def load_prompt(path: str, places: frozenset[str]) -> Prompt:
    """Read a prompt file, relative to the repository root. DiscoveryError says what it lacks.

    ``places``: what System and User must hold between them; Again holds ``reason``.
    """
    file = Path(path) if Path(path).is_file() else REPOSITORY / path
    try:
        data = file.read_bytes()
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DiscoveryError(f"the prompt {path} cannot be read: {error}") from None
    _, *pieces = _SECTION.split(text)
    if tuple(pieces[::2]) != HEADINGS:
        raise DiscoveryError(f"{path}: a prompt has the headings # System, # User, # Again, once each in this order")
    system, user, again = (piece.strip() for piece in pieces[1::2])
    found = set(_PLACE.findall(system)) | set(_PLACE.findall(user))
    if found != places or set(_PLACE.findall(again)) != {"reason"}:
        raise DiscoveryError(
            f"{path}: System and User hold the places {sorted(found)}, they must hold {sorted(places)}; Again holds "
            "{{reason}}"
        )
    return Prompt(f"{file.stem}-{hashlib.sha256(data).hexdigest()[:8]}", system, user, again)


def _filled(template: str, values: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda place: values[place[1]], template)
