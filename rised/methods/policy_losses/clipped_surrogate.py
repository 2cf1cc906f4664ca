"""The clipped policy-gradient surrogate (PPO; METHODS §2)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from rised.config.settings import strict
from rised.methods.base import PieceSettings, TokenTerm
from rised.methods.errors import MethodError
from rised.methods.importance import LOG_RATIO_LIMIT, importance_diagnostics, weighted
from rised.methods.registry import piece
from rised.methods.streams import Reduction, TokenStreams

if TYPE_CHECKING:
    from torch import Tensor


@piece("policy_loss", "clipped_surrogate")
class ClippedSurrogate(TokenTerm):
    """L_t = − min( ρA, clip(ρ, 1 − low, 1 + high)·A ), and for A < 0 no more than dual_clip·|A|.

    ρ = exp(S − O) against the policy that sampled the token. With ``truncated_importance`` C set, ρ is taken against
    the trainer's own S before the update and the loss is weighted by min(exp(S_old − O), C): the engine's numerical
    difference then corrects the weight and never triggers the clip. One optimiser step per batch makes S_old = sg(S).
    Log-ratios are limited to ±20 before ``exp``; the limit lies outside the clip on every side where it has a gradient,
    except ρ with A < 0 and no dual clip.
    """

    class Settings(PieceSettings):
        """Weight, clip and reduction."""

        type: Literal["clipped_surrogate"] = strict(description="PPO's clipped surrogate.")
        coefficient: float = strict(1.0, ge=0.0, description="Weight of the loss; 0: no policy gradient (OPSD).")
        clip_low: float = strict(0.2, gt=0.0, lt=1.0, description="ρ is clipped below at 1 − clip_low.")
        clip_high: float = strict(0.2, gt=0.0, description="ρ is clipped above at 1 + clip_high (DAPO: 0.28).")
        dual_clip: float | None = strict(
            3.0, gt=1.0, description="For A < 0 the loss is at most this times |A|; null: no limit."
        )
        truncated_importance: float | None = strict(
            None,
            gt=0.0,
            description="Limit of the weight exp(S_old − O) against the engine, or the older weights that played; "
            "null: ρ against O.",
        )
        reduction: Reduction = strict(Reduction.TOKEN_MEAN, description="From token losses to one number.")
        constant_length: int | None = strict(None, ge=1, description="L of the reduction constant_length, in tokens.")
        micro_batch_sequences: int | None = strict(
            None, ge=1, description="Sequences in a part of the reduction micro_batch_token_mean."
        )

        @model_validator(mode="after")
        def _length_with_its_reduction(self) -> Self:
            if (self.reduction is Reduction.CONSTANT_LENGTH) != (self.constant_length is not None):
                raise ValueError("constant_length must be given exactly when reduction is constant_length")
            if (self.reduction is Reduction.MICRO_BATCH_TOKEN_MEAN) != (self.micro_batch_sequences is not None):
                raise ValueError("micro_batch_sequences must be given exactly when reduction is micro_batch_token_mean")
            return self

    def token_loss(self, streams: TokenStreams) -> Tensor:
        if streams.advantage is None:
            raise MethodError("clipped_surrogate needs advantages: the term must declare Need.ADVANTAGE")
        advantage, settings = streams.advantage, self.settings
        old = self._old(streams)
        ratio = (streams.current - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        clipped = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
        loss = (-ratio * advantage).maximum(-clipped * advantage)
        if settings.dual_clip is not None:
            loss = loss.where(advantage >= 0, loss.minimum(-settings.dual_clip * advantage))
        return weighted(loss, streams, settings.truncated_importance)

    def diagnostics(self, streams: TokenStreams) -> dict[str, Tensor]:
        """``clip_share``: 1 where the clip takes the gradient away (dual clip apart), else 0; with
        ``truncated_importance`` also the weight's own (:func:`importance_diagnostics`).
        """
        assert streams.advantage is not None
        log_ratio = streams.current.detach() - self._old(streams)
        high, low = math.log1p(self.settings.clip_high), math.log1p(-self.settings.clip_low)
        above = (log_ratio > high) & (streams.advantage > 0)
        below = (log_ratio < low) & (streams.advantage < 0)
        weight = importance_diagnostics(streams, self.settings.truncated_importance)
        return {"clip_share": (above | below).to(log_ratio.dtype)} | weight

    def _old(self, streams: TokenStreams) -> Tensor:
        return streams.sampled if self.settings.truncated_importance is None else streams.current.detach()
