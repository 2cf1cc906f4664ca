"""RISED's self-distillation on the sampled tokens (METHODS §1.4)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, TokenTerm
from rised.methods.errors import MethodError
from rised.methods.registry import piece
from rised.methods.streams import TokenStreams

if TYPE_CHECKING:
    from torch import Tensor


@piece("distillation", "sampled_gap")
class SampledGap(TokenTerm):
    """L_t = − sg( clip(T − S, −5, 5) · min(ρ, 2) ) · S,  ρ = exp(S − O).

    A policy gradient whose per-token advantage is how much likelier the teacher finds the sampled token. S − O is
    limited at ln 2 before ``exp``, so that an extreme ratio never becomes inf. [ours where the paper is silent]
    """

    class Settings(PieceSettings):
        """Weight and limits."""

        type: Literal["sampled_gap"] = strict(description="Teacher-student gap on the sampled tokens.")
        coefficient: float = strict(0.01, ge=0.0, description="Weight of the loss, c_sd.")
        gap_limit: float = strict(5.0, gt=0.0, description="Limit of |T − S|, in nats.")
        ratio_limit: float = strict(2.0, gt=0.0, description="Upper limit of ρ.")

    @classmethod
    def uncorrected(cls, settings: Any) -> str | None:
        """None: ρ, limited, is the weight."""
        return None

    def token_loss(self, streams: TokenStreams) -> Tensor:
        if streams.teacher is None:
            raise MethodError("sampled_gap needs the teacher's log-probabilities: the term must declare Need.TEACHER")
        settings = self.settings
        student = streams.current.detach()
        gap = (streams.teacher.detach() - student).clamp(-settings.gap_limit, settings.gap_limit)
        ratio = (student - streams.sampled).clamp(max=math.log(settings.ratio_limit)).exp()
        return -(gap * ratio) * streams.current

    def diagnostics(self, streams: TokenStreams) -> dict[str, Tensor]:
        """``gap``: T − S in nats; ``gap_limited_share``: 1 where its limit cuts it."""
        assert streams.teacher is not None
        gap = streams.teacher - streams.current.detach()
        return {"gap": gap, "gap_limited_share": (gap.abs() > self.settings.gap_limit).to(gap.dtype)}
