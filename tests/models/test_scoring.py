"""Scoring stored tokens: padding, prefixes and batching never change a log-probability."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import llama, qwen2

from rised.models.engine import TransformersEngine
from rised.models.scoring import micro_batch_logprobs, plan_micro_batches, sequence_logprobs

MODEL = qwen2()


def episodes(count: int, seed: int) -> tuple[list[list[int]], list[list[bool]]]:
    rng = np.random.default_rng(seed)
    ids = [[int(t) for t in rng.integers(5, 420, size=int(rng.integers(2, 70)))] for _ in range(count)]
    masks = [[False] + [bool(rng.random() < 0.4) for _ in sequence[1:]] for sequence in ids]
    return ids, masks


def plainly(
    model: torch.nn.Module, ids: list[int], mask: list[bool], temperature: float, prefix: list[int]
) -> list[float]:
    """Log-probabilities from a pass over the single unpadded sequence."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prefix + ids]), use_cache=False).logits[0].float() / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    return [float(logprobs[len(prefix) + t - 1, ids[t]]) for t in range(len(ids)) if mask[t]]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7), st.sampled_from([64, 200, 4096]), st.sampled_from([1.0, 0.6]))
def test_batching_and_padding_change_nothing(seed: int, count: int, budget: int, temperature: float) -> None:
    ids, masks = episodes(count, seed)
    prefixes = [[7] * (seed % 5)] * count
    with torch.no_grad():
        scored = sequence_logprobs(MODEL, ids, masks, temperature, prefixes, micro_batch_tokens=budget)
    assert len(scored) == count
    for sequence, mask, values in zip(ids, masks, scored, strict=True):
        assert values.tolist() == pytest.approx(plainly(MODEL, sequence, mask, temperature, prefixes[0]), abs=1e-4)


def test_scores_agree_with_the_log_probabilities_that_were_sampled() -> None:
    model = llama()
    session = TransformersEngine(model, 1).session(4, temperature=0.8)
    rng = np.random.default_rng(0)
    masks: list[list[bool]] = [[] for _ in range(4)]
    sampled: list[list[float]] = [[] for _ in range(4)]
    for _ in range(3):
        new = [[int(t) for t in rng.integers(5, 420, size=6 + row)] for row in range(4)]
        for row, reply in enumerate(session.generate(range(4), new, [9] * 4, [rng.random(9) for _ in range(4)])):
            masks[row] += [False] * len(new[row]) + [True] * len(reply.token_ids)
            sampled[row] += reply.logprobs
    scored = sequence_logprobs(model, [session.token_ids(row) for row in range(4)], masks, 0.8)
    for row in range(4):
        assert scored[row].tolist() == pytest.approx(sampled[row], abs=1e-4)


def test_gradients_equal_those_of_single_sequences() -> None:
    model = qwen2(5)
    ids, masks = episodes(5, 3)
    sum(values.sum() for values in sequence_logprobs(model, ids, masks, micro_batch_tokens=4096)).backward()
    together = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    for sequence, mask in zip(ids, masks, strict=True):
        micro_batch_logprobs(model, [sequence], [mask])[0].sum().backward()
    for parameter, expected in zip(model.parameters(), together, strict=True):
        assert torch.allclose(parameter.grad, expected, atol=1e-3)


def test_a_prefix_changes_scores_and_is_never_scored() -> None:
    ids, masks = episodes(3, 1)
    with torch.no_grad():
        plain = sequence_logprobs(MODEL, ids, masks)
        hinted = sequence_logprobs(MODEL, ids, masks, prefix_ids=[[9, 8, 7]] * 3)
    for a, b, mask in zip(plain, hinted, masks, strict=True):
        assert len(a) == len(b) == sum(mask)
        assert not torch.allclose(a, b)


def test_an_episode_without_policy_tokens_scores_to_nothing() -> None:
    scored = sequence_logprobs(MODEL, [[5, 6], [5, 6, 7]], [[False, False], [False, True, True]])
    assert [len(values) for values in scored] == [0, 2]
    assert [len(values) for values in sequence_logprobs(MODEL, [[5, 6]], [[False, False]])] == [0]


def test_autocast_does_not_reach_the_output_layer() -> None:
    ids, masks = episodes(2, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        values = torch.cat(sequence_logprobs(MODEL, ids, masks))
    assert values.dtype == torch.float32
    assert not torch.equal(values, values.bfloat16().float())


@given(st.lists(st.integers(1, 300), max_size=40), st.integers(32, 1000))
def test_micro_batches_hold_every_sequence_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = plan_micro_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        width = -(-max(lengths[i] for i in batch) // 32) * 32
        assert len(batch) == 1 or width * len(batch) <= budget


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="temperature"):
        sequence_logprobs(MODEL, [[5, 6]], [[False, True]], temperature=0.0)
    with pytest.raises(ValueError, match="sequence 0 has 2 tokens and a mask of 1"):
        sequence_logprobs(MODEL, [[5, 6]], [[False]])
    with pytest.raises(ValueError, match="first token"):
        sequence_logprobs(MODEL, [[5, 6]], [[True, True]])
