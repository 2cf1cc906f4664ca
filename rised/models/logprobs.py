"""Log-probabilities of chosen tokens without a vocabulary's worth of logits for all of them.

Logits are [tokens, vocabulary]: for 16 thousand tokens and a vocabulary of 150 thousand they alone are 10 GB in
float32, and their gradient as much again. Here they exist for one chunk of tokens at a time, in the forward pass and,
computed a second time, in the backward pass; what is kept between the two is one number a token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rised.models.errors import ModelError

LOGITS_CHUNK_TOKENS = 1024
"""Tokens whose logits stand in memory at once, where the caller does not say."""


class TokenLogprobs(nn.Module):
    """The model's output layer as a module that gives log-probabilities of given tokens.

    It shares the layer's parameters and owns none. A module of its own, so that whatever gathers partitioned
    parameters around a module's forward and backward pass (ZeRO 3) finds them.
    """

    bias: nn.Parameter | None

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.weight = head.weight
        self.bias = head.bias

    def forward(
        self, states_ND: Tensor, targets_N: Tensor, temperature: float, chunk_tokens: int = LOGITS_CHUNK_TOKENS
    ) -> Tensor:
        """Natural log-probability of each target token after its state, float32 of shape (N,).

        Computed in float32 from float32 copies of states and weights, also under autocast (bfloat16 logits lose two
        digits). Raises ModelError for a temperature that is not above 0 or a chunk of less than one token.
        """
        if temperature <= 0:
            raise ModelError(f"log-probabilities need a temperature above 0, got {temperature}")
        if chunk_tokens < 1:
            raise ModelError(f"logits are computed for {chunk_tokens} tokens at a time: give at least 1")
        found: Tensor = _Chunked.apply(states_ND, self.weight, self.bias, targets_N, temperature, chunk_tokens)
        return found


class _Chunked(torch.autograd.Function):
    """Forward keeps each token's log-sum-exp; backward computes the chunk's logits again from it."""

    @staticmethod
    def forward(
        ctx: Any,
        states_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        temperature: float,
        chunk_tokens: int,
    ) -> Tensor:
        logprobs_N = torch.empty(len(targets_N), dtype=torch.float32, device=states_ND.device)
        sums_N = torch.empty_like(logprobs_N)
        with torch.autocast(states_ND.device.type, enabled=False):
            weight, bias = _float(weight_VD), None if bias_V is None else _float(bias_V)
            for start in range(0, len(targets_N), chunk_tokens):
                part = slice(start, start + chunk_tokens)
                logits_CV = _logits(states_ND[part], weight, bias, temperature)
                chosen_C = logits_CV.gather(1, targets_N[part].unsqueeze(1)).squeeze(1)
                sums_N[part] = logits_CV.logsumexp(dim=-1)
                logprobs_N[part] = chosen_C - sums_N[part]
                del logits_CV  # before the next chunk's are made
        ctx.save_for_backward(states_ND, weight_VD, bias_V, targets_N, sums_N)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        return logprobs_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_N: Tensor) -> tuple[Tensor | None, ...]:
        states_ND, weight_VD, bias_V, targets_N, sums_N = ctx.saved_tensors
        wants_states, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        states_grad = torch.empty_like(states_ND) if wants_states else None
        with torch.autocast(states_ND.device.type, enabled=False):
            weight, bias = _float(weight_VD), None if bias_V is None else _float(bias_V)
            weight_grad = torch.zeros_like(weight) if wants_weight else None
            bias_grad = torch.zeros_like(bias) if wants_bias and bias is not None else None
            for start in range(0, len(targets_N), ctx.chunk_tokens):
                part = slice(start, start + ctx.chunk_tokens)
                # d logprob / d logit = (is the target) - probability, built in place of the logits
                by_logit_CV = _logits(states_ND[part], weight, bias, ctx.temperature)
                by_logit_CV.sub_(sums_N[part].unsqueeze(1)).exp_().neg_()
                by_logit_CV.scatter_add_(1, targets_N[part].unsqueeze(1), torch.ones_like(by_logit_CV[:, :1]))
                by_logit_CV.mul_(gradient_N[part].unsqueeze(1) / ctx.temperature)
                if states_grad is not None:
                    states_grad[part] = (by_logit_CV @ weight).to(states_grad.dtype)
                if weight_grad is not None:
                    weight_grad.addmm_(by_logit_CV.t(), _float(states_ND[part]))
                if bias_grad is not None:
                    bias_grad.add_(by_logit_CV.sum(0))
                del by_logit_CV
        if weight_grad is not None:
            weight_grad = weight_grad.to(weight_VD.dtype)
        if bias_grad is not None:
            bias_grad = bias_grad.to(bias_V.dtype)
        return states_grad, weight_grad, bias_grad, None, None, None


def _float(tensor: Tensor) -> Tensor:
    return tensor.detach().float()


def _logits(states_CD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, temperature: float) -> Tensor:
    logits_CV = functional.linear(_float(states_CD), weight_VD, bias_V)
    return logits_CV if temperature == 1.0 else logits_CV.div_(temperature)
