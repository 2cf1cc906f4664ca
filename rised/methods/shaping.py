"""A policy loss whose advantages a teacher corrects, token by token (METHODS §4).

Which teacher and with which weight is decided by the method's pieces; the difference itself comes from the learner.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rised.methods.base import TokenTerm
from rised.methods.errors import MethodError
from rised.methods.streams import TokenStreams

if TYPE_CHECKING:
    from torch import Tensor


class Shaped:
    """``term`` with A + ``weight`` · gap in place of A, where the gap is finite. No gradient flows through the gap."""

    def __init__(self, term: TokenTerm, weight: float) -> None:
        self.term, self.weight = term, weight

    def token_loss(self, streams: TokenStreams) -> Tensor:
        """Losses of shape (N,)."""
        return self.term.token_loss(self._shaped(streams))

    def diagnostics(self, streams: TokenStreams) -> dict[str, Tensor]:
        """The term's, and ``corrected_share``: 1 where the gap is used; ``absolute_gap``: |T − S| of those, in nats;
        ``correction_share``: |weight · gap| / (|A| + |weight · gap|) of those with either."""
        gap, used = self._gap(streams)
        assert streams.advantage is not None
        correction = self.weight * gap[used].abs()
        whole = streams.advantage[used].abs() + correction
        return self.term.diagnostics(self._shaped(streams)) | {
            "corrected_share": used.to(gap.dtype),
            "absolute_gap": gap[used].abs(),
            "correction_share": (correction / whole)[whole > 0],
        }

    def _shaped(self, streams: TokenStreams) -> TokenStreams:
        gap, used = self._gap(streams)
        assert streams.advantage is not None
        return replace(streams, advantage=streams.advantage + self.weight * gap.where(used, gap.new_zeros(())))

    def _gap(self, streams: TokenStreams) -> tuple[Tensor, Tensor]:
        if streams.advantage is None or streams.gap is None:
            raise MethodError("a shaped advantage needs advantages and the teacher's gap: Need.TEACHER_GAP")
        gap = streams.gap.detach()
        return gap, gap.isfinite()
