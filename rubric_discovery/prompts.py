"""Prompt files of discovery: ``# System``, ``# User`` and ``# Again``, with places in double braces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rised.rubrics.base import RubricError
from rised.rubrics.prompt_file import Messages, PromptFile, asked_again, filled, placed, read_prompt
from rubric_discovery.errors import DiscoveryError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One version of one prompt."""

    file: PromptFile

    @property
    def version(self) -> str:
        """The file's name and the beginning of its hash."""
        return self.file.version

    def messages(self, values: Mapping[str, str]) -> Messages:
        """The chat that is sent."""
        return [
            {"role": "system", "content": filled(self.file.sections["System"], values)},
            {"role": "user", "content": filled(self.file.sections["User"], values)},
        ]

    def asked_again(self, messages: Messages, reply: str, reason: str) -> Messages:
        """The chat goes on after a reply that was none, with the reason."""
        return asked_again(messages, reply, filled(self.file.sections["Again"], {"reason": reason}))


def load_prompt(path: str, places: frozenset[str]) -> Prompt:
    """Read a prompt file, relative to the repository root. DiscoveryError says what it lacks.

    ``places``: what System and User must hold between them; Again holds ``reason``.
    """
    known = {"System": set(places), "User": set(places), "Again": {"reason"}}
    try:
        prompt = Prompt(read_prompt(path, known, {"Again": {"reason"}}, "the prompt"))
    except RubricError as error:
        raise DiscoveryError(str(error)) from None
    missing = places - placed(prompt.file.sections["System"]) - placed(prompt.file.sections["User"])
    if missing:
        raise DiscoveryError(f"{path}: System and User lack the places {sorted(missing)}")
    return prompt
