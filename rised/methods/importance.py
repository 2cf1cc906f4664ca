"""The weight of tokens that other numbers than the learner's sampled: an engine's, or those of older weights.

A loss over sampled tokens is about the policy as it stands before the update, S_old = sg(S). Tokens that were sampled
with O instead stand for it with the weight exp(S_old − O); its limit C trades a bias for a bounded variance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rised.methods.streams import TokenStreams

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Limit of |S − O| before ``exp``: e^20 is far beyond every clip and still finite in fp32."""


def importance_weight(streams: TokenStreams, limit: float) -> Tensor:
    """min(exp(S_old − O), ``limit``), shape (N,), without gradient."""
    return (streams.current.detach() - streams.sampled).clamp(max=math.log(limit)).exp()


def weighted(loss: Tensor, streams: TokenStreams, limit: float | None) -> Tensor:
    """A loss (N,) with the weight of its tokens; as it is where ``limit`` is None."""
    return loss if limit is None else loss * importance_weight(streams, limit)


def importance_diagnostics(streams: TokenStreams, limit: float | None) -> dict[str, Tensor]:
    """``importance_ratio``: exp(S_old − O) before its limit; ``truncated_share``: 1 where the limit cuts it, else 0.

    Empty without a limit: nothing is weighed.
    """
    if limit is None:
        return {}
    log_ratio = streams.current.detach() - streams.sampled
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return {"importance_ratio": ratio, "truncated_share": (log_ratio > math.log(limit)).to(ratio.dtype)}
