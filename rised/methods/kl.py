"""Estimators of the KL divergence to the reference from sampled tokens (METHODS §2).

Per token, with S the current and R the reference log-probability. Every method shares this regulariser, so it is a
setting of the method and not a piece.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from rised.methods.errors import MethodError
from rised.methods.streams import Diagnostics, TokenLoss, TokenStreams

if TYPE_CHECKING:
    from torch import Tensor

EXPONENT_LIMIT = 20.0
"""R − S from which k3 goes on as a straight line: its gradient stays that of the limit, finite in fp32."""


class KLEstimator(StrEnum):
    """Which estimator of KL(current ‖ reference)."""

    K1 = "k1"
    """S − R: unbiased as a value; its gradient has expectation 0, so it does not regularise as a loss."""
    K2 = "k2"
    """½ (S − R)²: biased as a value, and its gradient is that of the divergence."""
    K3 = "k3"
    """exp(R − S) − (R − S) − 1: unbiased and never negative."""


def k1(current: Tensor, reference: Tensor) -> Tensor:
    """S − R."""
    return current - reference


def k2(current: Tensor, reference: Tensor) -> Tensor:
    """½ (S − R)²."""
    return 0.5 * (current - reference).square()


def k3(current: Tensor, reference: Tensor) -> Tensor:
    """exp(R − S) − (R − S) − 1; where R − S > 20, ``exp`` goes on along its tangent, so that k3 always pulls back."""
    log_ratio = reference - current
    limited = log_ratio.clamp(max=EXPONENT_LIMIT)
    return limited.exp() * (1.0 + log_ratio - limited) - log_ratio - 1.0


ESTIMATORS: dict[KLEstimator, Callable[[Tensor, Tensor], Tensor]] = {
    KLEstimator.K1: k1,
    KLEstimator.K2: k2,
    KLEstimator.K3: k3,
}


def kl_token_loss(estimator: KLEstimator) -> TokenLoss:
    """The estimator as a token loss of the learner."""
    divergence = ESTIMATORS[estimator]

    def token_loss(streams: TokenStreams) -> Tensor:
        if streams.reference is None:
            raise MethodError("the KL term needs the reference's log-probabilities: it must declare Need.REFERENCE")
        return divergence(streams.current, streams.reference)

    return token_loss


def kl_diagnostics(estimator: KLEstimator) -> Diagnostics:
    """Of k3 ``limited_share``: 1 where R − S is beyond the limit."""

    def diagnostics(streams: TokenStreams) -> dict[str, Tensor]:
        if estimator is not KLEstimator.K3 or streams.reference is None:
            return {}
        beyond = streams.reference - streams.current.detach() > EXPONENT_LIMIT
        return {"limited_share": beyond.to(streams.current.dtype)}

    return diagnostics
