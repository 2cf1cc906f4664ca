"""Tokens with a log-probability that is not finite: out of the terms that read it, in numerator and denominator."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from learner_examples import gradients, learner, measures, piece_loss, sequences, terms, tiny_model, weights

from rised.learner.gradients import layer_parameters, term_gradient
from rised.learner.ranks import ALONE
from rised.learner.settings import LearnerSettings
from rised.learner.term_plan import Plan, make_plan, term_losses, weigh
from rised.learner.types import LossTerm, Need, Reduction, TrainingSequence
from rised.methods.kl import KLEstimator, kl_token_loss


def test_the_case_is_dropped_stream_by_stream(cases_dir: Path) -> None:
    case = json.loads((cases_dir / "30-non-finite-logprobs" / "tokens.json").read_text())
    found = {name: [math.nan if v is None else float(v) for v in case[name]] for name in "SOTR"}
    sequence = TrainingSequence("g", "r", "e", (1,) * 5, (False, *[True] * 4), np.array(found["O"]), np.ones(4), (1, 2))
    plan, loss_terms = make_plan([sequence], case_terms()), case_terms()
    plan.teacher, plan.reference = {0: torch.tensor(found["T"])}, {0: torch.tensor(found["R"])}
    weigh([sequence], loss_terms, plan, [0], ALONE)
    assert plan.nonfinite == {"rl": 2, "distill": 3, "reference_kl": 0}
    assert plan.tokens == {"rl": 2, "distill": 1, "reference_kl": 4}
    current = torch.tensor(found["S"], requires_grad=True)
    for term, loss, streams in term_losses([sequence], [0], {0: current}, loss_terms, plan):
        (gradient,) = torch.autograd.grad(loss, current)
        usable = next(v for k, v in case["usable_for"].items() if k.startswith(term.name))
        assert bool(torch.isfinite(gradient).all()) and (gradient[~torch.tensor(usable, dtype=torch.bool)] == 0).all()
        if term.name == "reference_kl":
            assert term.token_loss(streams)[:2].tolist() == case["k3_first_two"]
            assert float(term.token_loss(streams).detach()[2]) == pytest.approx(99.0) and gradient[3] < 0


def case_terms() -> list[LossTerm]:
    policy = piece_loss("policy_loss", type="clipped_surrogate")
    gap = piece_loss("distillation", type="sampled_gap")
    return [
        LossTerm("rl", 1.0, policy.token_loss, frozenset({Need.ADVANTAGE})),
        LossTerm("distill", 1.0, gap.token_loss, frozenset({Need.TEACHER})),
        LossTerm("reference_kl", 1.0, kl_token_loss(KLEstimator.K3), frozenset({Need.REFERENCE}), uses_sampled=False),
    ]


def only(name: str, reduction: Reduction = Reduction.TOKEN_MEAN) -> list[LossTerm]:
    return [term for term in terms(reduction) if term.name == name]


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf])
def test_the_other_tokens_gradient_is_that_of_a_batch_without_the_token(layout: str, value: float) -> None:
    """The token is its sequence's last, so that a batch without it can be made by cutting it off."""
    model = tiny_model()
    whole = sequences(model, 3)
    batch = [*whole[:2], dataclasses.replace(whole[2], sampled_logprobs=whole[2].sampled_logprobs.copy())]
    batch[2].sampled_logprobs[-1] = value
    last = whole[2]
    assert last.advantages is not None
    cut = dataclasses.replace(
        last,
        token_ids=last.token_ids[:-1],
        policy_mask=last.policy_mask[:-1],
        sampled_logprobs=last.sampled_logprobs[:-1],
        advantages=last.advantages[:-1],
    )
    found = []
    for given in (batch, [*whole[:2], cut]):
        one = learner(tiny_model(), layout=layout, gradient_clip=None)
        report = measures(one.update(given, only("rl")))
        found.append((gradients(one.model), report))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-7, rtol=1e-4)
    assert [report["nonfinite_logprob/rl"] for _, report in found] == [1.0, 0.0]
    for name in ("loss/rl", "tokens/rl", "sampler_difference_max", "sampler_k3"):
        assert found[0][1][name] == pytest.approx(found[1][1][name], abs=1e-6), name


def test_more_than_one_in_a_thousand_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    one = learner()
    batch = sequences(one.model)
    one.update(batch, terms())
    assert "not finite" not in capsys.readouterr().err
    batch[0].sampled_logprobs[0] = -math.inf
    found = measures(one.update(batch, terms()))
    assert all(value is None or math.isfinite(value) for value in found.values())
    assert found["nonfinite_logprob/reference_kl"] == 1.0, "of a term that was not said to do without O"
    said = capsys.readouterr().err
    assert "tokens have a log-probability that is not finite and are left out of the loss 'rl'" in said


def test_an_update_without_a_usable_token_changes_nothing() -> None:
    one = learner()
    batch = [dataclasses.replace(s, sampled_logprobs=s.sampled_logprobs * math.nan) for s in sequences(one.model)]
    before = weights(one.model)
    report = one.update(batch, terms())
    assert report.empty and torch.equal(weights(one.model), before)


def test_a_sequence_without_a_usable_token_is_no_sequence_of_a_mean_over_sequences() -> None:
    model, reduction = tiny_model(), Reduction.SEQUENCE_MEAN_TOKEN_MEAN
    whole = sequences(model, 3, advantages=(1.0,))
    lost = dataclasses.replace(whole[2], sampled_logprobs=np.full_like(whole[2].sampled_logprobs, math.nan))
    losses = [
        measures(learner(tiny_model()).update(batch, only("rl", reduction)))["loss/rl"]
        for batch in ([*whole[:2], lost], whole[:2])
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_what_another_rank_left_out_counts_here_too() -> None:
    class Pair:
        """Two ranks, of which the other left out two tokens of its sequence."""

        def gather(self, value: dict[tuple[str, int], int]) -> list[dict[tuple[str, int], int]]:
            return [value, {("rl", 1): 2}]

    batch = sequences(tiny_model(), 2)
    plan: Plan = make_plan(batch, only("rl"))
    weigh(batch, only("rl"), plan, [0], Pair())  # type: ignore[arg-type]
    count = sum(s.policy_token_count for s in batch) - 2
    assert plan.tokens == {"rl": count} and plan.weights["rl"].tolist() == [1 / count, 1 / count]


def test_the_gradient_signal_leaves_them_out() -> None:
    model = tiny_model()
    batch = sequences(model, 3)
    batch[1].sampled_logprobs[2] = math.nan
    (term,) = only("rl")
    found = term_gradient(model, batch, term, layer_parameters(model), LearnerSettings(), temperature=0.8)
    assert all(bool(torch.isfinite(g).all()) for g in found.values()) and any(bool(g.any()) for g in found.values())
