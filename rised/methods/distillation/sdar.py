"""SDAR's gated distillation loss (METHODS §5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, TokenTerm
from rised.methods.errors import MethodError
from rised.methods.importance import importance_diagnostics, weighted
from rised.methods.registry import piece
from rised.methods.streams import TokenStreams

if TYPE_CHECKING:
    from torch import Tensor


@piece("distillation", "sdar")
class SDAR(TokenTerm):
    """L_t = g · (T − S), g = sg σ(β (T − S)) (arXiv 2605.15155).

    The gradient is −g · ∇S: every sampled token is made likelier, most where the teacher finds it likelier than the
    student. The teacher acts through the gate alone; with β = 0 it does not act at all.
    """

    class Settings(PieceSettings):
        """Weight and gate."""

        type: Literal["sdar"] = strict(description="Sampled tokens, gated by the teacher's gap.")
        coefficient: float = strict(0.01, ge=0.0, description="Weight of the loss (SDAR: 0.01).")
        gate_slope: float = strict(5.0, ge=0.0, description="β of the gate, per nat (SDAR: 5).")
        truncated_importance: float | None = strict(
            None,
            gt=0.0,
            in_hash_at_default=False,
            description="Limit of the weight exp(S_old − O) of tokens that older weights sampled; null: no weight.",
        )

    @property
    def uses_sampled(self) -> bool:
        """Only for the importance weight."""
        return self.settings.truncated_importance is not None

    def token_loss(self, streams: TokenStreams) -> Tensor:
        if streams.teacher is None:
            raise MethodError("sdar needs the teacher's log-probabilities: the term must declare Need.TEACHER")
        loss = self._gate(streams) * (streams.teacher.detach() - streams.current)
        return weighted(loss, streams, self.settings.truncated_importance)

    def diagnostics(self, streams: TokenStreams) -> dict[str, Tensor]:
        """``gap``: T − S in nats; ``gate``: g, between 0 and 1; with ``truncated_importance`` the weight's own."""
        assert streams.teacher is not None
        found = {"gap": streams.teacher - streams.current.detach(), "gate": self._gate(streams)}
        return found | importance_diagnostics(streams, self.settings.truncated_importance)

    def _gate(self, streams: TokenStreams) -> Tensor:
        assert streams.teacher is not None
        return (self.settings.gate_slope * (streams.teacher - streams.current).detach()).sigmoid()
