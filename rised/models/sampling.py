"""Choosing tokens from logits.

Sampling inverts the cumulative distribution at a uniform that belongs to (episode, token position), so neither the
batch nor the order of rows touches an episode's randomness. Episodes know no top-p and no top-k: the stored
log-probability is that of the distribution that was sampled from. Texts that are not trained on may be drawn by top-p.
"""

from __future__ import annotations

import torch


def sample(
    logits_NV: torch.Tensor, temperature: float, uniforms_N: torch.Tensor, top_p: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sampled ids [N] and their log-probabilities [N] (float32) at ``temperature``.

    Temperature 0 takes the most likely token and reports its log-probability at temperature 1. ``top_p`` below 1 draws
    from the fewest likeliest tokens that hold at least that share; the log-probabilities are those of the whole.
    """
    scaled = logits_NV if temperature in (0.0, 1.0) else logits_NV / temperature
    logprobs_NV = torch.log_softmax(scaled.float(), dim=-1)
    if temperature == 0.0:
        ids_N = logprobs_NV.argmax(dim=-1)
    else:
        probabilities_NV = logprobs_NV.exp()
        if top_p < 1.0:
            probabilities_NV = probabilities_NV * _nucleus(probabilities_NV, top_p)
        cumulative = probabilities_NV.cumsum(dim=-1, dtype=torch.float64)
        total = cumulative[:, -1]
        # Strictly below the total, so that rounding never picks a token of probability 0 behind the last possible one.
        target = torch.minimum(uniforms_N.double() * total, torch.nextafter(total, torch.zeros_like(total)))
        ids_N = torch.searchsorted(cumulative, target.unsqueeze(1), right=True).squeeze(1)
    return ids_N, logprobs_NV.gather(1, ids_N.unsqueeze(1)).squeeze(1)


def _nucleus(probabilities_NV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Which tokens are drawn from, bool [N, V]: those before which less than ``top_p`` lies, likeliest first."""
    ordered, places = probabilities_NV.double().sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    return torch.zeros_like(probabilities_NV, dtype=torch.bool).scatter(-1, places, before < top_p)
