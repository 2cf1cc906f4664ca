"""No steering: every training rollout sees the original prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, Steering
from rised.methods.registry import piece

if TYPE_CHECKING:
    from rised.rubrics.windows import TagWindow


@piece("steering", "none")
class NoSteering(Steering):
    """Never steers."""

    class Settings(PieceSettings):
        """No settings."""

        type: Literal["none"] = strict(description="Original prompts in training too.")

    def next_step(self, window: TagWindow) -> dict[str, tuple[str, ...]]:
        return {}
