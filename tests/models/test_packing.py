"""Packed sequences: each one's log-probabilities and gradients are those it has alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import llama, qwen2
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

import rised.models.packing as packing
from rised.models.errors import ModelError
from rised.models.packing import check_packing
from rised.models.scoring import TokenScorer, lay_out, micro_batch_logprobs, plan_micro_batches, sequence_logprobs

SHAPE = {
    "vocab_size": 420,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
    "attn_implementation": "sdpa",
}


def qwen3() -> PreTrainedModel:
    torch.manual_seed(2)
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE)).eval()


MODELS = {"qwen2": qwen2, "llama": llama, "qwen3": qwen3}


def episodes(seed: int, count: int = 5) -> tuple[list[list[int]], list[list[bool]]]:
    rng = np.random.default_rng(seed)
    ids = [[int(t) for t in rng.integers(5, 420, size=int(rng.integers(2, 60)))] for _ in range(count)]
    return ids, [[False, *(bool(rng.random() < 0.5) for _ in row[1:])] for row in ids]


def with_gradients(model: PreTrainedModel, values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Log-probabilities one after the other, and the gradient of a sum in which each has another weight."""
    flat = torch.cat(values)
    model.zero_grad()
    (flat * torch.linspace(0.5, 1.5, len(flat))).sum().backward()
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return flat.detach(), found.clone()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_log_probabilities_and_gradients_of_a_packed_row_are_those_of_each_sequence_alone(name: str) -> None:
    model = MODELS[name]()
    ids, masks = episodes(1)
    alone = [micro_batch_logprobs(model, [row], [mask], 0.7)[0] for row, mask in zip(ids, masks, strict=True)]
    expected, gradient = with_gradients(model, alone)
    packed, packed_gradient = with_gradients(model, micro_batch_logprobs(model, ids, masks, 0.7, layout="packed"))
    torch.testing.assert_close(packed, expected, rtol=1e-5, atol=1e-5)
    assert (packed_gradient - gradient).norm() <= 1e-5 * gradient.norm()


def test_a_neighbour_in_the_row_changes_not_one_bit() -> None:
    model = qwen2()
    first, second, other = [7, 8, 9, 10], [20, 21, 22], [300, 301, 302]
    mask, short = [False, True, True, True], [False, True, True]
    with torch.no_grad():
        one = micro_batch_logprobs(model, [first, second, first], [mask, short, mask], layout="packed")
        two = micro_batch_logprobs(model, [first, other, first], [mask, short, mask], layout="packed")
    assert torch.equal(one[0], two[0]) and torch.equal(one[2], two[2])
    assert not torch.equal(one[1], two[1])
    torch.testing.assert_close(one[0], one[2], rtol=1e-5, atol=1e-5)


def test_without_segments_the_same_row_would_be_contaminated() -> None:
    """What the layout guards against is there: positions alone, with a plain causal mask, give other numbers."""
    model = qwen2()
    ids, masks = episodes(4)
    with torch.no_grad():
        packed = torch.cat(micro_batch_logprobs(model, ids, masks, layout="packed"))
        inputs = lay_out(ids, masks, layout="packed")
        mask = torch.ones(inputs.ids_BT.shape[1], inputs.ids_BT.shape[1]).tril().bool()[None, None]
        states = model.base_model(
            input_ids=inputs.ids_BT, position_ids=inputs.positions_BT, attention_mask=mask, use_cache=False
        ).last_hidden_state
        careless = TokenScorer(model).token_logprobs(states[0, inputs.places_N], inputs.targets_N, 1.0)
    assert (careless - packed).abs().max() > 0.01


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7), st.sampled_from([32, 64, 4096]))
def test_budgets_and_prefixes_change_nothing(seed: int, count: int, budget: int) -> None:
    model = MODEL
    ids, masks = episodes(seed, count)
    prefixes = [[7] * (i % 4) for i in range(count)]
    with torch.no_grad():
        padded = sequence_logprobs(model, ids, masks, 0.9, prefixes, budget)
        packed = sequence_logprobs(model, ids, masks, 0.9, prefixes, budget, "packed")
    for one, other in zip(packed, padded, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


MODEL = qwen2()


@given(st.lists(st.integers(1, 300), max_size=40), st.integers(32, 1000))
def test_packed_batches_hold_every_sequence_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = plan_micro_batches(lengths, budget, "packed")
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        total = -(-sum(lengths[i] for i in batch) // 32) * 32
        assert len(batch) == 1 or total <= budget


def test_packing_wastes_less_than_padding_on_uneven_lengths() -> None:
    lengths = [500, 90, 80, 70, 60, 50, 40, 30]
    packed = plan_micro_batches(lengths, 512, "packed")
    assert [sum(lengths[i] for i in batch) for batch in packed] == [500, 420]
    assert len(plan_micro_batches(lengths, 512)) > len(packed)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_recomputed_layers_give_the_same_bits_and_no_cache_is_lost_afterwards(layout: str) -> None:
    model = qwen2()
    ids, masks = episodes(2)
    kept = with_gradients(model, micro_batch_logprobs(TokenScorer(model), ids, masks, layout=layout))
    calls: list[int] = []
    original = model.base_model.layers[0].mlp.forward
    model.base_model.layers[0].mlp.forward = lambda x: calls.append(1) or original(x)
    recomputed = with_gradients(
        model, micro_batch_logprobs(TokenScorer(model, recompute=True), ids, masks, layout=layout)
    )
    assert len(calls) == 2, "once in the forward pass and once in the backward pass"
    assert all(torch.equal(one, other) for one, other in zip(kept, recomputed, strict=True))
    assert not any(module.training for module in model.modules())
    assert model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=True).past_key_values.get_seq_length() == 3
    assert model.config._attn_implementation == "sdpa"


def test_a_model_that_windows_its_attention_is_refused() -> None:
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=4)).eval()
    with pytest.raises(ModelError, match="windows its attention"):
        check_packing(model)


def test_a_model_that_mixes_tokens_outside_its_attention_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = qwen2()
    check_packing(model)
    norm = model.base_model.norm
    original = norm.forward
    monkeypatch.setattr(norm, "forward", lambda x: original(x) + 0.5 * x.roll(1, dims=1))
    with pytest.raises(ModelError, match="mixes packed sequences"):
        check_packing(model)


def test_segments_that_do_not_fill_the_row_are_an_error() -> None:
    model = qwen2()
    with packing.segments_attention_in(model), pytest.raises(ModelError, match="belong together"):
        model.base_model(input_ids=torch.tensor([[1, 2, 3]]), segment_lengths=(2,), use_cache=False)
