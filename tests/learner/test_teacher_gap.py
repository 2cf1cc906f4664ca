"""The teacher's gap as the learner hands it to a term: by which weights, for which tokens, and what follows from it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from learner_examples import count_passes, gradients, learner, measures, piece_loss, sequences, tiny_model, weights
from transformers import Qwen2ForCausalLM

from rised.learner.types import LossTerm, Need, TokenStreams, TrainingSequence
from rised.methods.shaping import Shaped

ALPHA = 0.5


def shaped_term(alpha: float = ALPHA) -> LossTerm:
    piece = Shaped(piece_loss("policy_loss", type="clipped_surrogate"), alpha)
    needs = frozenset({Need.ADVANTAGE, Need.TEACHER_GAP})
    return LossTerm("rl", 1.0, piece.token_loss, needs, diagnostics=piece.diagnostics)


def logprobs(model: Qwen2ForCausalLM, ids: tuple[int, ...], mask: tuple[bool, ...]) -> torch.Tensor:
    """Float64, one sequence, no shared code."""
    logprobs_TV = (model(torch.tensor([ids])).logits[0].double() / 0.8).log_softmax(-1)
    return torch.stack([logprobs_TV[t - 1, ids[t]] for t in range(len(ids)) if mask[t]])


def reference_loss(model: Qwen2ForCausalLM, batch: list[TrainingSequence]) -> torch.Tensor:
    """ORSD's loss in float64: A + α (T − S), clipped, token mean over all sequences with advantages."""
    losses = []
    for s in batch:
        if s.advantages is None:
            continue
        current = logprobs(model, s.token_ids, s.policy_mask)
        advantage = torch.tensor(np.array(s.advantages))
        if s.teacher_prefix_ids is not None:
            prefix = s.teacher_prefix_ids
            with torch.no_grad():
                teacher = logprobs(model, prefix + s.token_ids, (False,) * len(prefix) + s.policy_mask)
                advantage = advantage + ALPHA * (teacher - current)
        ratio = (current - torch.tensor(s.sampled_logprobs)).exp()
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        losses.append(torch.where(advantage < 0, torch.minimum(loss, -3 * advantage), loss))
    return torch.cat(losses).mean()


def test_loss_and_gradient_are_those_of_a_float64_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = count_passes(monkeypatch)
    model = tiny_model()
    batch = sequences(model)
    expected = reference_loss(model, batch)
    expected.backward()
    wanted = gradients(model)
    model.zero_grad()
    one = learner(model, learning_rate=1e-12, gradient_clip=None)
    report = one.update(batch, [shaped_term()])
    assert measures(report)["loss/rl"] == pytest.approx(float(expected.detach()), abs=1e-6)
    torch.testing.assert_close(gradients(one.model), wanted, atol=1e-6, rtol=1e-4)
    assert passes == {"teacher": sum(s.teacher_prefix_ids is not None for s in batch)}, "and no reference pass"


def test_the_gap_is_that_of_the_weights_before_the_step_and_nan_without_a_teacher() -> None:
    seen: list[TokenStreams] = []
    term = shaped_term()

    def token_loss(streams: TokenStreams) -> torch.Tensor:
        seen.append(streams)
        return term.token_loss(streams)

    model = tiny_model()
    before = tiny_model()
    batch = sequences(model)
    one = learner(model, learning_rate=0.1, micro_batch_tokens=32)
    one.update(batch, [dataclasses.replace(term, token_loss=token_loss)])
    assert not torch.equal(weights(one.model), weights(before)) and len(seen) > 1
    expected = []
    for s in batch:
        prefix = s.teacher_prefix_ids
        with torch.no_grad():
            plain = logprobs(before, s.token_ids, s.policy_mask)
            if prefix is None:
                expected.append(torch.full_like(plain, torch.nan))
            else:
                expected.append(logprobs(before, prefix + s.token_ids, (False,) * len(prefix) + s.policy_mask) - plain)
    found = sorted((tuple(g.tolist()) for g in (s.gap for s in seen) if g is not None), key=len)
    assert sum(map(len, found)) == sum(map(len, expected))
    finite = torch.tensor(sorted(v for row in found for v in row if v == v), dtype=torch.float64)
    wanted = torch.cat(expected)
    torch.testing.assert_close(finite, wanted[wanted.isfinite()].sort().values, atol=1e-5, rtol=1e-4)
    assert sum(v != v for row in found for v in row) == int(wanted.isnan().sum()) > 0


def test_the_gradient_of_the_shaped_advantage_depends_on_what_the_teacher_reads() -> None:
    model = tiny_model()
    batch = sequences(model, advantages=(0.0,), taught=(True,))
    found = []
    for prefix in ((3, 4, 5), (9, 8, 7)):
        one = learner(tiny_model())
        one.update([dataclasses.replace(s, teacher_prefix_ids=prefix) for s in batch], [shaped_term()])
        found.append(gradients(one.model))
    assert float((found[0] - found[1]).norm()) > 1e-3 * float(found[0].norm()) > 0


def test_a_rollout_of_advantage_zero_is_trained_where_it_has_a_teacher_and_skipped_where_not() -> None:
    model = tiny_model()
    batch = sequences(model, count=4, advantages=(0.0,), taught=(True, False))
    found = measures(learner(model).update(batch, [shaped_term()]))
    assert (found["trained_sequences"], found["skipped_sequences"]) == (2, 2)
    assert found["rl/corrected_share"] == 1.0 and (found["rl/absolute_gap"] or 0) > 0
    untaught = [dataclasses.replace(s, teacher_prefix_ids=None) for s in batch]
    assert learner(tiny_model()).update(untaught, [shaped_term()]).empty


def test_tokens_without_a_teacher_stay_in_the_denominator() -> None:
    model = tiny_model()
    batch = sequences(model, count=4, advantages=(0.0,), taught=(True, False), noise=0.0)
    alone = [s for s in batch if s.teacher_prefix_ids is not None]
    share = sum(s.policy_token_count for s in alone) / sum(s.policy_token_count for s in batch)
    losses = [measures(learner(tiny_model()).update(b, [shaped_term()]))["loss/rl"] for b in (batch, alone)]
    assert losses[0] == pytest.approx(share * (losses[1] or 0), rel=1e-5) and losses[0] != 0


def test_without_a_teacher_the_shaped_term_is_the_plain_one_bit_for_bit() -> None:
    plain = piece_loss("policy_loss", type="clipped_surrogate")
    ends = []
    for term in (shaped_term(), LossTerm("rl", 1.0, plain.token_loss, frozenset({Need.ADVANTAGE}))):
        model = tiny_model()
        batch = sequences(model, taught=(False,))
        one = learner(model)
        one.update(batch, [term])
        ends.append(weights(one.model))
    assert torch.equal(*ends)
