"""OPSD's loss on the sampled tokens (METHODS §5)."""

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


@piece("distillation", "opsd")
class OPSD(TokenTerm):
    """L_t = − sg(T − S) · S: the sampled form of on-policy self-distillation (arXiv 2601.18734).

    Over the policy's own samples its gradient is, in expectation, that of KL(student ‖ teacher). Neither ratio nor
    limit; ``gap_limit`` adds one, ``truncated_importance`` the weight of samples of older weights. The paper's other
    form, a divergence over the whole vocabulary, is not here.
    """

    class Settings(PieceSettings):
        """Weight and limit."""

        type: Literal["opsd"] = strict(description="Sampled reverse KL to the teacher.")
        coefficient: float = strict(1.0, ge=0.0, description="Weight of the loss.")
        gap_limit: float | None = strict(None, gt=0.0, description="Limit of |T − S|, in nats; null: none.")
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
        return weighted(-self._gap(streams) * streams.current, streams, self.settings.truncated_importance)

    def diagnostics(self, streams: TokenStreams) -> dict[str, Tensor]:
        """``gap``: T − S in nats, as it enters the loss; with ``truncated_importance`` the weight's own."""
        return {"gap": self._gap(streams)} | importance_diagnostics(streams, self.settings.truncated_importance)

    def _gap(self, streams: TokenStreams) -> Tensor:
        if streams.teacher is None:
            raise MethodError("opsd needs the teacher's log-probabilities: the term must declare Need.TEACHER")
        gap = (streams.teacher - streams.current).detach()
        limit = self.settings.gap_limit
        return gap if limit is None else gap.clamp(-limit, limit)
