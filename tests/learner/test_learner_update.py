"""One update: the loss against a float64 reference, batching, signals, empty batches and extreme values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from learner_examples import gradients, learner, measures, reference_loss, sequences, terms, tiny_model, weights

from rised.learner.errors import LearnerError
from rised.learner.learner import Learner
from rised.learner.measures import k3
from rised.learner.settings import LearnerSettings
from rised.learner.types import LossTerm, Reduction, TrainingSequence
from rised.models.scoring import sequence_logprobs

PINNED_LOSS = -0.0363879
"""Of the first update of the tiny model; equal to the float64 reference, so a change means other mathematics."""


def updated(
    batch: list[TrainingSequence], **settings: Any
) -> tuple[dict[str, float | None], torch.Tensor, torch.Tensor]:
    """Measures, gradients before the clip, and weights after one update of a fresh tiny model."""
    chosen = {"gradient_clip": None} | settings
    loss_terms = chosen.pop("terms", terms())
    one = learner(**chosen)
    report = one.update(batch, loss_terms)
    return measures(report), gradients(one.model), weights(one.model)


def test_the_loss_and_its_gradient_are_those_of_a_float64_reference_without_padding() -> None:
    model = tiny_model()
    batch = sequences(model)
    found, gradient, _ = updated(batch)
    exact = tiny_model().double()
    loss = reference_loss(exact, tiny_model(seed=9).double(), batch)
    loss.backward()
    assert found["loss/total"] == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close(gradient.double(), gradients(exact), rtol=1e-4, atol=1e-6)


def test_the_loss_at_a_fixed_seed_is_a_pinned_number() -> None:
    found, _, _ = updated(sequences(tiny_model()))
    assert found["loss/total"] == pytest.approx(PINNED_LOSS, rel=1e-5)


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("reduction", list(Reduction))
def test_neither_micro_batches_nor_packing_nor_chunks_change_loss_or_gradient(
    reduction: Reduction, layout: str
) -> None:
    batch = sequences(tiny_model())
    whole, one_gradient, _ = updated(batch, micro_batch_tokens=100_000, terms=terms(reduction))
    for tokens, chunk in ((1, 1024), (64, 7), (200, 1), (100_000, 1024)):
        cut, gradient, _ = updated(
            batch, micro_batch_tokens=tokens, logits_chunk_tokens=chunk, layout=layout, terms=terms(reduction)
        )
        assert cut["loss/total"] == pytest.approx(whole["loss/total"], rel=1e-5)
        assert (gradient - one_gradient).norm() <= 1e-5 * one_gradient.norm()


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_activation_checkpointing_changes_no_bit_of_an_update(layout: str) -> None:
    batch = sequences(tiny_model())
    kept, _, weights_kept = updated(batch, layout=layout, gradient_share_every=1)
    recomputed, _, weights_recomputed = updated(
        batch, layout=layout, gradient_share_every=1, activation_checkpointing=True
    )
    assert recomputed == kept and torch.equal(weights_recomputed, weights_kept)


def test_padding_never_enters_the_denominator() -> None:
    """A long companion without any token of its own pads the others to its length."""
    batch = sequences(tiny_model())
    alone, gradient, _ = updated(batch, micro_batch_tokens=100_000)
    silent = dataclasses.replace(
        batch[0],
        rollout_id="silent",
        token_ids=(1,) * 150,
        policy_mask=(False,) * 150,
        sampled_logprobs=np.zeros(0),
        advantages=np.zeros(0),
        teacher_prefix_ids=None,
    )
    longer = dataclasses.replace(
        batch[1], token_ids=batch[1].token_ids + (1,) * 130, policy_mask=batch[1].policy_mask + (False,) * 130
    )
    padded, padded_gradient, _ = updated([silent, batch[0], longer, *batch[2:]], micro_batch_tokens=100_000)
    assert padded["loss/total"] == pytest.approx(alone["loss/total"], rel=1e-5)
    torch.testing.assert_close(padded_gradient, gradient, rtol=1e-4, atol=1e-6)


def test_each_stream_has_its_own_denominator() -> None:
    model = tiny_model()
    batch = sequences(model, advantages=(1.0, None, 0.5, None, 0.0, 2.0))
    found, _, _ = updated(batch)
    counts = [s.policy_token_count for s in batch]
    assert found["tokens/rl"] == sum(c for s, c in zip(batch, counts, strict=True) if s.advantages is not None)
    assert found["tokens/distill"] == sum(c for s, c in zip(batch, counts, strict=True) if s.teacher_prefix_ids)
    assert found["tokens/reference_kl"] == sum(counts)
    fewer_taught = [dataclasses.replace(s, teacher_prefix_ids=None) if i == 0 else s for i, s in enumerate(batch)]
    changed, _, _ = updated(fewer_taught)
    assert changed["loss/rl"] == pytest.approx(found["loss/rl"], rel=1e-6)
    assert changed["loss/reference_kl"] == pytest.approx(found["loss/reference_kl"], rel=1e-6)
    assert changed["loss/distill"] != pytest.approx(found["loss/distill"], rel=1e-3)


def only(name: str) -> list[LossTerm]:
    return [term for term in terms() if term.name == name]


def test_zero_variance_groups_give_no_policy_gradient() -> None:
    batch = sequences(tiny_model(), advantages=(0.0,))
    found, gradient, after = updated(batch, terms=only("rl"), weight_decay=0.1)
    assert found["loss/total"] == 0.0 and not gradient.any()
    assert torch.equal(after, weights(tiny_model()))


def test_zero_variance_groups_with_a_teacher_give_a_gradient_that_depends_on_the_teacher() -> None:
    batch = sequences(tiny_model(), advantages=(0.0,))
    _, gradient, _ = updated(batch, terms=only("rl") + only("distill"))
    assert gradient.abs().max() > 1e-3
    other = [dataclasses.replace(s, teacher_prefix_ids=s.teacher_prefix_ids and (7, 7, 7)) for s in batch]
    _, changed, _ = updated(other, terms=only("rl") + only("distill"))
    assert (changed - gradient).abs().max() > 1e-3
    none = [dataclasses.replace(s, teacher_prefix_ids=None) for s in batch]
    _, silent, _ = updated(none, terms=only("rl") + only("distill"))
    assert not silent.any()


def test_a_perturbed_teacher_changes_the_gradient_in_proportion_to_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """T = S + c on every token: the gradient of the distillation is c times that of c = 1."""
    batch = sequences(tiny_model(), advantages=(0.0,), noise=0.0)
    found = []
    for gap in (0.0, 1.0, -2.0):

        def teacher(
            self: Learner, batch: list[TrainingSequence], trained: list[int], gap: float = gap
        ) -> dict[int, Any]:
            taught = [b for b in trained if batch[b].teacher_prefix_ids is not None]
            return {b: torch.tensor(batch[b].sampled_logprobs + gap, dtype=torch.float32) for b in taught}

        monkeypatch.setattr(Learner, "_teacher_pass", teacher)
        found.append(updated(batch, terms=only("distill"))[1])
    assert found[0].abs().max() < 1e-4
    torch.testing.assert_close(found[2], -2 * found[1], rtol=1e-3, atol=1e-4)


def test_sequences_without_any_gradient_are_counted_and_not_passed_through_the_actor() -> None:
    batch = sequences(tiny_model(), advantages=(1.0, 0.0, 0.5, 0.0, 0.0, 2.0), taught=(False,))
    some, _, _ = updated(batch, terms=only("rl"))
    assert (some["trained_sequences"], some["skipped_sequences"]) == (3, 3)
    with_kl, _, _ = updated(batch, terms=only("rl") + only("reference_kl"))
    assert (with_kl["trained_sequences"], with_kl["skipped_sequences"]) == (6, 0)
    assert with_kl["loss/rl"] == pytest.approx(some["loss/rl"], rel=1e-5)
    cheaper, _, _ = updated(batch, terms=terms(only_with_signal=True))
    assert (cheaper["trained_sequences"], cheaper["skipped_sequences"]) == (3, 3)
    assert cheaper["tokens/reference_kl"] == sum(batch[i].policy_token_count for i in (0, 2, 5))


@pytest.mark.parametrize("batch", ["no sequences", "no policy tokens", "no signal"])
def test_an_empty_batch_has_loss_zero_and_zero_gradients_and_moves_nothing(batch: str) -> None:
    silent = sequences(tiny_model(), advantages=(None,), taught=(False,))
    if batch == "no policy tokens":
        nothing = {"policy_mask": (False,) * 10, "sampled_logprobs": np.zeros(0), "advantages": np.zeros(0)}
        silent = [dataclasses.replace(silent[0], **nothing)]
    one = learner(weight_decay=0.1)
    one.update(sequences(one.model), terms())
    before, moments = (
        weights(one.model),
        {k: v.clone() for k, v in one.optimizer.state[next(one.model.parameters())].items()},
    )
    report = one.update([] if batch == "no sequences" else silent, only("rl") + only("distill"))
    found = measures(report)
    assert report.empty and found["loss/total"] == 0.0 and found["empty_updates"] == 1
    assert all(p.grad is not None and not p.grad.any() for p in one.model.parameters())
    assert torch.equal(weights(one.model), before)
    state = one.optimizer.state[next(one.model.parameters())]
    assert all(torch.equal(state[key], value) for key, value in moments.items())
    for name in (
        "sampler_difference_mean",
        "sampler_difference_max",
        "sampler_k3",
        "entropy_estimate",
        "gradient_norm",
        "learning_rate",
    ):
        assert found[name] is None, name


def test_the_loss_of_an_empty_batch_requires_grad() -> None:
    loss = learner().empty_loss()
    assert float(loss.detach()) == 0.0 and loss.requires_grad


def test_a_masked_sequence_beside_others_leaves_every_measure_finite() -> None:
    batch = sequences(tiny_model())
    nothing = {"policy_mask": (False,) * 10, "sampled_logprobs": np.zeros(0), "advantages": np.zeros(0)}
    found, gradient, _ = updated([dataclasses.replace(batch[0], **nothing), *batch[1:]])
    assert all(value is None or np.isfinite(value) for value in found.values())
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("sampled", [-1e4, -80.0, 0.0])
def test_extreme_ratios_leave_the_update_finite(sampled: float) -> None:
    batch = [
        dataclasses.replace(s, sampled_logprobs=np.full(s.policy_token_count, sampled)) for s in sequences(tiny_model())
    ]
    found, gradient, after = updated(batch)
    assert all(value is None or np.isfinite(value) for value in found.values())
    assert bool(torch.isfinite(gradient).all()) and bool(torch.isfinite(after).all())


def test_a_gradient_that_is_not_finite_stops_the_update_and_leaves_the_weights() -> None:
    broken = dataclasses.replace(only("rl")[0], token_loss=lambda streams: streams.current * float("nan"))
    one = learner()
    with pytest.raises(LearnerError, match="gradient is not finite"):
        one.update(sequences(one.model), [broken])
    assert torch.equal(weights(one.model), weights(tiny_model()))


def test_equal_updates_give_equal_bits() -> None:
    batch = sequences(tiny_model())
    first, second = updated(batch), updated(batch)
    assert first[0] == second[0] and torch.equal(first[2], second[2])


def test_measuring_gradient_shares_leaves_the_update_bit_for_bit_as_it_is() -> None:
    batch = sequences(tiny_model())
    plain, with_shares = learner(), learner(gradient_share_every=1)
    plain.update(batch, terms())
    found = measures(with_shares.update(batch, terms()))
    assert torch.equal(weights(plain.model), weights(with_shares.model))
    shares = [found[f"gradient_share/{name}"] for name in ("rl", "reference_kl", "distill")]
    assert sum(share or 0.0 for share in shares) == pytest.approx(1.0)
    for name in ("rl", "reference_kl", "distill"):
        _, gradient, _ = updated(batch, terms=only(name))
        assert found[f"gradient_norm/{name}"] == pytest.approx(float(gradient.norm()), rel=1e-4)


def test_the_learning_rate_rises_over_the_warm_up_and_empty_updates_do_not_count() -> None:
    one = learner(warmup_updates=4)
    rates = [
        measures(one.update(batch, terms()))["learning_rate"]
        for batch in (sequences(one.model), [], *[sequences(one.model)] * 4)
    ]
    assert rates == pytest.approx([0.00025, None, 0.0005, 0.00075, 0.001, 0.001])


def test_the_gradient_is_clipped_to_its_limit() -> None:
    one = learner(gradient_clip=1e-3)
    found = measures(one.update(sequences(one.model), terms()))
    assert found["gradient_norm"] is not None and found["gradient_norm"] > 1e-3
    assert float(gradients(one.model).norm()) == pytest.approx(1e-3, rel=1e-3)


def test_an_update_makes_better_tokens_likelier_and_worse_ones_less_likely() -> None:
    one = learner()
    batch = sequences(one.model, noise=0.0, advantages=(1.0, -1.0), taught=(False,))
    one.update(batch, only("rl"))
    ids, masks = [s.token_ids for s in batch], [s.policy_mask for s in batch]
    with torch.no_grad():
        after = sequence_logprobs(one.model, ids, masks, 0.8)
    for sequence, logprobs in zip(batch, after, strict=True):
        assert sequence.advantages is not None
        assert (float(logprobs.mean()) - sequence.sampled_logprobs.mean()) * sequence.advantages[0] > 0


def test_bfloat16_autocast_stays_close_to_float32() -> None:
    batch = sequences(tiny_model())
    exact, gradient, _ = updated(batch)
    rough, rough_gradient, _ = updated(batch, autocast="bfloat16")
    assert rough["loss/total"] == pytest.approx(exact["loss/total"], abs=0.1)
    assert float(torch.cosine_similarity(gradient, rough_gradient, dim=0)) > 0.97


def test_a_missing_reference_and_a_temperature_of_zero_are_refused() -> None:
    model = tiny_model()
    with pytest.raises(LearnerError, match="temperature 0"):
        Learner(model, None, LearnerSettings(), temperature=0.0)
    with pytest.raises(LearnerError, match="give the learner a reference model"):
        Learner(model, None, LearnerSettings(), temperature=0.8).update(sequences(model), terms())


def test_the_reference_never_changes() -> None:
    one = learner()
    assert one.reference_model is not None
    before = weights(one.reference_model)
    one.update(sequences(one.model), terms())
    assert torch.equal(weights(one.reference_model), before)
    assert all(p.grad is None for p in one.reference_model.parameters())


def test_the_divergence_of_sampler_and_learner_is_k3_over_the_trained_tokens_in_float64() -> None:
    one = learner()
    batch = sequences(one.model, noise=0.3)
    with torch.no_grad():
        own = sequence_logprobs(
            one.model, [s.token_ids for s in batch], [s.policy_mask for s in batch], one.temperature
        )
    found = measures(one.update(batch, terms()))
    differences = [
        float(s) - float(np.float32(o))
        for current, sequence in zip(own, batch, strict=True)
        for s, o in zip(current, sequence.sampled_logprobs, strict=True)
    ]
    assert found["trained_sequences"] == len(batch)
    reference = math.fsum(math.expm1(d) - d for d in differences) / len(differences)
    assert found["sampler_k3"] == pytest.approx(reference, rel=1e-5) and reference > 1e-3


def test_k3_stays_exact_where_sampler_and_learner_nearly_agree() -> None:
    """d²/2 + d³/6: a subtraction of exp(d) − 1 − d in float32, or in float64 without expm1, would be noise."""
    d = 1e-7
    assert float(k3(torch.tensor([d], dtype=torch.float64))) == pytest.approx(d * d / 2, rel=1e-2)
    assert float(k3(torch.tensor([-30.0, 5.0])).min()) > 0


def test_k3_over_tokens_of_the_sampler_estimates_its_divergence_from_the_learner() -> None:
    sampler = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    trained = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    exact = float((sampler * (sampler / trained).log()).sum())
    assert float((sampler * k3(trained.log() - sampler.log())).sum()) == pytest.approx(exact)
