"""What is counted while an update runs, and how it becomes measures.

Means run over the tokens that were really passed through the actor. Where there was none the measure is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rised.learner.ranks import LearnerRanks
from rised.learner.types import LossTerm, Measure, TokenStreams
from rised.methods.importance import LOG_RATIO_LIMIT

SAMPLER_K3 = "sampler_k3"
"""Name of the measure that an alarm hears of."""


def k3(log_ratio_N: Tensor) -> Tensor:
    """exp(d) − 1 − d of d = S − O, float64, shape (N,), never negative.

    Its mean over tokens sampled with O estimates KL(sampler ‖ learner) without bias (Schulman's third estimator). d is
    limited at 20 above, as ratios are elsewhere, so that one token that the sampler took for impossible stays a number.
    """
    d_N = log_ratio_N.detach().double().clamp(max=LOG_RATIO_LIMIT)
    return torch.expm1(d_N) - d_N


class _Mean:
    """A running mean in float64 that knows when it has nothing."""

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def add(self, values_N: Tensor) -> None:
        self.total += float(values_N.detach().double().sum())
        self.count += values_N.numel()

    def join(self, other: _Mean) -> None:
        self.total += other.total
        self.count += other.count

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


class Tally:
    """Sums of one update. ``shares``: also measure the gradient norm that each term brings on its own."""

    def __init__(self, terms: Sequence[LossTerm], shares: bool) -> None:
        self.gradient_norm: float | None = None
        self._shares = shares
        self._losses: dict[str, float] = {term.name: 0.0 for term in terms}
        self._coefficients = {term.name: term.coefficient for term in terms}
        self._token_counts = {term.name: 0 for term in terms}
        self._diagnostics: dict[str, _Mean] = {}
        self._gradients: dict[str, list[Tensor]] = {}
        self._sampler_difference = _Mean()
        self._sampler_difference_max: float | None = None
        self._sampler_divergence = _Mean()
        self._negative_logprob = _Mean()

    def add_tokens(self, current_N: Tensor, sampled_N: Tensor) -> None:
        """Policy tokens of one trained sequence; those without a finite O count in the entropy alone."""
        log_ratio_N = (current_N.detach() - sampled_N)[sampled_N.isfinite()]
        difference_N = log_ratio_N.abs()
        self._sampler_difference.add(difference_N)
        if len(difference_N):
            self._sampler_difference_max = max(self._sampler_difference_max or 0.0, float(difference_N.max()))
        self._sampler_divergence.add(k3(log_ratio_N))
        self._negative_logprob.add(-current_N)

    def add_term(self, term: LossTerm, loss: Tensor, streams: TokenStreams) -> None:
        """A term's loss in one micro-batch, coefficient and token weights included."""
        self._losses[term.name] += float(loss.detach())
        self._token_counts[term.name] += streams.current.numel()
        with torch.no_grad():
            for name, values_N in term.diagnostics(streams).items():
                self._diagnostics.setdefault(f"{term.name}/{name}", _Mean()).add(values_N)

    def add_gradients(self, losses: Mapping[str, Tensor], parameters: Sequence[Tensor]) -> None:
        """Each term's own gradient of one micro-batch, if shares are measured. The graph is kept."""
        if not self._shares:
            return
        for name, loss in losses.items():
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            found = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
            total = self._gradients.get(name)
            self._gradients[name] = found if total is None else [a + b for a, b in zip(total, found, strict=True)]

    def add_up(self, ranks: LearnerRanks, parameters: Sequence[Tensor]) -> None:
        """Make it the tally of all ranks."""
        if ranks.count == 1:
            return
        gradients = self._gradients
        if self._shares:
            for name in self._losses:
                own = gradients.get(name) or [torch.zeros_like(p) for p in parameters]
                ranks.add_up(own)
                gradients[name] = own
        self._gradients = {}
        whole, *others = ranks.gather(self)  # in rank order on all ranks, so that sums are equal to the last bit
        for other in others:
            whole._join(other)
        vars(self).update(vars(whole))
        self._gradients = gradients
        for name, count in self._token_counts.items():
            if count == 0:
                self._gradients.pop(name, None)

    def _join(self, other: Tally) -> None:
        for name in self._losses:
            self._losses[name] += other._losses[name]
            self._token_counts[name] += other._token_counts[name]
        for name, mean in other._diagnostics.items():
            self._diagnostics.setdefault(name, _Mean()).join(mean)
        self._sampler_difference.join(other._sampler_difference)
        self._sampler_divergence.join(other._sampler_divergence)
        self._negative_logprob.join(other._negative_logprob)
        largest = [m for m in (self._sampler_difference_max, other._sampler_difference_max) if m is not None]
        self._sampler_difference_max = max(largest, default=None)

    def losses(self) -> dict[str, float]:
        """term -> loss so far, coefficient included."""
        return dict(self._losses)

    def measures(
        self,
        *,
        learning_rate: float | None,
        nonfinite: Mapping[str, int],
        trained_sequences: int,
        skipped_sequences: int,
        trained_tokens: int,
        empty_updates: int,
    ) -> tuple[Measure, ...]:
        """All measures of the update; names are stable, so that every step has the same columns.

        ``nonfinite``: term -> tokens that it leaves out for a log-probability that is not finite.
        """
        found = [Measure("loss/total", sum(self._losses.values()), "nats")]
        for name, loss in self._losses.items():
            found.append(Measure(f"loss/{name}", loss / self._coefficients[name], "nats"))
            found.append(Measure(f"tokens/{name}", float(self._token_counts[name]), "tokens"))
            found.append(Measure(f"nonfinite_logprob/{name}", float(nonfinite.get(name, 0)), "tokens"))
        found += [
            Measure(name, mean.value, "nats" if name.endswith("gap") else "1" if name.endswith("ratio") else "fraction")
            for name, mean in self._diagnostics.items()
        ]
        found += self._gradient_measures()
        found += [
            Measure("sampler_difference_mean", self._sampler_difference.value, "nats"),
            Measure("sampler_difference_max", self._sampler_difference_max, "nats"),
            Measure(SAMPLER_K3, self._sampler_divergence.value, "nats"),
            Measure("entropy_estimate", self._negative_logprob.value, "nats"),
            Measure("learning_rate", learning_rate, "1"),
            Measure("trained_sequences", float(trained_sequences), "count"),
            Measure("skipped_sequences", float(skipped_sequences), "count"),
            Measure("trained_tokens", float(trained_tokens), "tokens"),
            Measure("empty_updates", float(empty_updates), "count"),
        ]
        return tuple(found)

    def _gradient_measures(self) -> list[Measure]:
        norms = {
            name: float(torch.sqrt(torch.stack([g.double().square().sum() for g in gradients]).sum()))
            for name, gradients in self._gradients.items()
        }
        found = [Measure("gradient_norm", self.gradient_norm, "1")]
        if self._shares:
            total = sum(norms.values())
            for name in self._losses:
                found.append(Measure(f"gradient_norm/{name}", norms.get(name), "1"))
                share = norms[name] / total if name in norms and total > 0 else None
                found.append(Measure(f"gradient_share/{name}", share, "fraction"))
        return found
