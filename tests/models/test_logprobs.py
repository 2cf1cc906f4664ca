"""Log-probabilities by chunks of tokens: equal to those from whole logits, and never a vocabulary for all tokens."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rised.models.logprobs as logprobs
from rised.models.errors import ModelError
from rised.models.logprobs import TokenLogprobs

TOKENS, WIDTH, VOCABULARY = 37, 16, 101


def example(bias: bool = False, dtype: torch.dtype = torch.float32) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """Output layer, states, targets, and a gradient from above."""
    torch.manual_seed(3)
    head = nn.Linear(WIDTH, VOCABULARY, bias=bias).to(dtype)
    states = torch.randn(TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    return head, states, torch.randint(VOCABULARY, (TOKENS,)), torch.randn(TOKENS)


def whole(head: nn.Linear, states: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """From all logits at once, in float64."""
    bias = None if head.bias is None else head.bias.double()
    logits = nn.functional.linear(states.double(), head.weight.double(), bias) / temperature
    return logits.log_softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1)


def results(values: Tensor, head: nn.Linear, states: Tensor, above: Tensor) -> list[Tensor]:
    head.zero_grad()
    states.grad = None
    values.backward(above.to(values.dtype))
    gradients = [states.grad, *(parameter.grad for parameter in head.parameters())]
    return [values.detach().double()] + [gradient.double() for gradient in gradients if gradient is not None]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk", [1, 10, 37, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_are_those_of_whole_logits_for_any_chunk(
    chunk: int, temperature: float, bias: bool
) -> None:
    head, states, targets, above = example(bias)
    expected = results(whole(head, states, targets, temperature), head, states, above)
    found = results(TokenLogprobs(head)(states, targets, temperature, chunk), head, states, above)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_logits_of_all_tokens_never_stand_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every logits tensor is gone before the next one is made, in the forward pass and in the backward pass."""
    made: list[weakref.ref[Tensor]] = []
    original = logprobs._logits

    def watched(*arguments: Any) -> Tensor:
        assert all(reference() is None for reference in made)
        logits = original(*arguments)
        assert logits.shape[0] <= 5
        made.append(weakref.ref(logits))
        return logits

    monkeypatch.setattr(logprobs, "_logits", watched)
    head, states, targets, above = example()
    values = TokenLogprobs(head)(states, targets, 1.0, 5)
    values.backward(above)
    assert len(made) == 2 * 8


def test_what_is_kept_for_the_backward_pass_has_no_vocabulary() -> None:
    head, states, targets, _ = example()
    kept: list[tuple[int, ...]] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        TokenLogprobs(head)(states, targets, 1.0, 5)
    assert sorted(kept) == sorted([(TOKENS, WIDTH), (VOCABULARY, WIDTH), (TOKENS,), (TOKENS,)])


def test_bfloat16_weights_and_autocast_still_give_float32_logits() -> None:
    head, states, targets, above = example(dtype=torch.bfloat16)
    expected = results(whole(head, states, targets, 1.0), head, states, above)
    with torch.autocast("cpu", torch.bfloat16):
        values = TokenLogprobs(head)(states, targets, 1.0, 8)
    assert values.dtype == torch.float32
    found = results(values, head, states, above)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[2], expected[2], rtol=1e-2, atol=1e-2)


def test_a_frozen_output_layer_gets_no_gradient() -> None:
    head, states, targets, above = example()
    head.requires_grad_(False)
    TokenLogprobs(head)(states, targets, 1.0, 8).backward(above)
    assert head.weight.grad is None and states.grad is not None


def test_extreme_logits_stay_finite() -> None:
    head, states, targets, above = example()
    with torch.no_grad():
        head.weight.mul_(1e4)
    values = TokenLogprobs(head)(states, targets, 1.0, 8)
    values.backward(above)
    assert torch.isfinite(values).all() and states.grad is not None and torch.isfinite(states.grad).all()


def test_a_temperature_of_0_and_an_empty_chunk_are_refused() -> None:
    head, states, targets, _ = example()
    with pytest.raises(ModelError, match="temperature above 0"):
        TokenLogprobs(head)(states, targets, 0.0)
    with pytest.raises(ModelError, match="at least 1"):
        TokenLogprobs(head)(states, targets, 1.0, 0)
