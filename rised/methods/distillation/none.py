"""No distillation loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, TokenTerm
from rised.methods.registry import piece
from rised.methods.streams import TokenStreams

if TYPE_CHECKING:
    from torch import Tensor


@piece("distillation", "none")
class NoDistillation(TokenTerm):
    """Coefficient 0: the composition drops the term and with it the teacher pass."""

    class Settings(PieceSettings):
        """No settings."""

        type: Literal["none"] = strict(description="No distillation loss.")

        @property
        def coefficient(self) -> float:
            """Always 0."""
            return 0.0

    def token_loss(self, streams: TokenStreams) -> Tensor:
        return streams.current * 0.0
