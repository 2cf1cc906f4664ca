"""Estimators of the KL divergence to the reference from sampled tokens (METHODS §2).

Per token, with S the current and R the reference log-probability. Every method shares this regulariser, so it is a
setting of the method and not a piece.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from rised.methods.errors import MethodError
from rised.methods.streams import TokenLoss, TokenStreams

if TYPE_CHECKING:
    from torch import Tensor

EXPONENT_LIMIT = 20.0
"""Upper limit of R − S before ``exp`` in k3; its linear part is not limited, so that it always pulls back."""


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
    """exp(R − S) − (R − S) − 1 with R − S limited to 20 before ``exp``."""
    log_ratio = reference - current
    return log_ratio.clamp(max=EXPONENT_LIMIT).exp() - log_ratio - 1.0


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
