"""Nobody: for variants that use a bundle without regard to what it says of the rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup
from rised.methods.bundles.base import Desk, Draft, Scored, Verifier
from rised.methods.registry import piece


@piece("verifier", "none")
class NoVerifier(Verifier):
    """No scores; no choice by alignment is possible."""

    class Settings(PieceSettings):
        """No settings."""

        type: Literal["none"] = strict(description="No verifier.")

    def scored(self, drafts: Sequence[tuple[PromptGroup, Draft]], desk: Desk) -> list[Scored]:
        return [Scored((), "") for _ in drafts]
