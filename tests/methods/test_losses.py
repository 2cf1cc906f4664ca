"""Token losses against formulas in float64, their gradients, and extreme values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as run_with
from hypothesis import strategies as st
from method_examples import vocabulary
from torch import Tensor

from rised.methods.base import TokenTerm
from rised.methods.kl import KLEstimator, k3, kl_diagnostics, kl_token_loss
from rised.methods.registry import build, piece_settings
from rised.methods.shaping import Shaped
from rised.methods.streams import TokenStreams

logprob = st.floats(-30, 0)


def loss(kind: str, **settings: Any) -> TokenTerm:
    built: TokenTerm = build(kind, piece_settings(kind, settings), vocabulary=vocabulary())
    return built


def tensor(*values: float, gradient: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=gradient)


def gradient_of(values: Tensor, current: Tensor) -> list[float]:
    (found,) = torch.autograd.grad(values.sum(), current)
    return [float(g) for g in found]


@given(logprob, logprob, logprob)
def test_sampled_gap_is_its_formula_and_its_gradient_is_minus_the_weight(s: float, o: float, t: float) -> None:
    current = tensor(s, gradient=True)
    values = loss("distillation", type="sampled_gap").token_loss(TokenStreams(current, tensor(o), teacher=tensor(t)))
    weight = max(-5.0, min(5.0, t - s)) * min(math.exp(min(s - o, 700.0)), 2.0)
    assert float(values.detach()) == pytest.approx(-weight * s, rel=1e-12, abs=1e-12)
    assert gradient_of(values, current) == pytest.approx([-weight], rel=1e-12, abs=1e-12)


def test_the_gradient_of_sampled_gap_depends_on_the_teacher_and_vanishes_where_both_agree() -> None:
    found = []
    for teacher in (-1.0, -2.0, -3.0):
        current = tensor(-2.0, gradient=True)
        streams = TokenStreams(current, tensor(-2.0), teacher=tensor(teacher))
        found += gradient_of(loss("distillation", type="sampled_gap").token_loss(streams), current)
    assert found == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize("piece", ["sampled_gap", "opsd", "sdar"])
def test_no_gradient_reaches_the_teacher(piece: str) -> None:
    teacher = tensor(-1.0, gradient=True)
    current = tensor(-2.0, gradient=True)
    values = loss("distillation", type=piece).token_loss(TokenStreams(current, tensor(-2.0), teacher=teacher))
    values.sum().backward()
    assert teacher.grad is None and current.grad is not None and current.grad.item() != 0


@given(logprob, logprob)
def test_opsd_is_its_formula_and_its_gradient_is_minus_the_gap(s: float, t: float) -> None:
    current = tensor(s, gradient=True)
    values = loss("distillation", type="opsd").token_loss(TokenStreams(current, tensor(0.0), teacher=tensor(t)))
    assert float(values.detach()) == pytest.approx(-(t - s) * s, rel=1e-12, abs=1e-12)
    assert gradient_of(values, current) == pytest.approx([-(t - s)], rel=1e-12, abs=1e-12)


def test_opsds_gradient_is_that_of_the_reverse_kl_over_the_policys_own_samples() -> None:
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    student = logits.log_softmax(0)
    exact = (student.exp() * (student - teacher)).sum()
    (wanted,) = torch.autograd.grad(exact, logits, retain_graph=True)
    values = loss("distillation", type="opsd").token_loss(TokenStreams(student, student.detach(), teacher=teacher))
    (found,) = torch.autograd.grad((student.detach().exp() * values).sum(), logits)
    torch.testing.assert_close(found, wanted)


def test_opsds_limit_cuts_the_gap_on_both_sides() -> None:
    piece = loss("distillation", type="opsd", gap_limit=2.0)
    for teacher, gradient in ((-1.0, -2.0), (-4.0, -1.0), (-9.0, 2.0)):
        current = tensor(-5.0, gradient=True)
        streams = TokenStreams(current, tensor(-5.0), teacher=tensor(teacher))
        assert gradient_of(piece.token_loss(streams), current) == [gradient]
        assert float(piece.diagnostics(streams)["gap"]) == -gradient


@given(logprob, logprob, st.floats(0, 8))
def test_sdar_is_its_formula_and_its_gradient_is_minus_the_gate(s: float, t: float, slope: float) -> None:
    current = tensor(s, gradient=True)
    piece = loss("distillation", type="sdar", gate_slope=slope)
    streams = TokenStreams(current, tensor(0.0), teacher=tensor(t))
    gate = 1 / (1 + math.exp(-min(700.0, max(-700.0, slope * (t - s)))))
    values = piece.token_loss(streams)
    assert float(values.detach()) == pytest.approx(gate * (t - s), rel=1e-12, abs=1e-12)
    assert gradient_of(values, current) == pytest.approx([-gate], rel=1e-12, abs=1e-12)
    assert float(piece.diagnostics(streams)["gate"]) == pytest.approx(gate, rel=1e-12)


@pytest.mark.parametrize("kind", ["opsd", "sdar", "sampled_gap"])
def test_every_distillation_gradient_depends_on_the_teacher(kind: str) -> None:
    found = []
    for teacher in (-1.0, -2.0, -3.0):
        current = tensor(-2.0, gradient=True)
        streams = TokenStreams(current, tensor(-2.0), teacher=tensor(teacher))
        found += gradient_of(loss("distillation", type=kind).token_loss(streams), current)
    assert found[0] < found[1] < found[2], "likelier to the teacher, likelier made"


def test_with_a_slope_of_zero_sdars_gradient_does_not_depend_on_the_teacher_at_all() -> None:
    for teacher in (-0.1, -2.0, -30.0):
        current = tensor(-2.0, gradient=True)
        streams = TokenStreams(current, tensor(-2.0), teacher=tensor(teacher))
        assert gradient_of(loss("distillation", type="sdar", gate_slope=0.0).token_loss(streams), current) == [-0.5]


def shaped(weight: float, **settings: Any) -> Shaped:
    return Shaped(loss("policy_loss", type="clipped_surrogate", **settings), weight)


@given(st.floats(-3, 3), st.floats(-2, 2), st.floats(-30, 30))
def test_a_shaped_advantage_is_the_advantage_plus_the_weighted_gap(a: float, log_ratio: float, gap: float) -> None:
    current = tensor(-5.0 + log_ratio, gradient=True)
    streams = TokenStreams(current, tensor(-5.0), advantage=tensor(a), gap=tensor(gap))
    values = shaped(0.05).token_loss(streams)
    assert float(values.detach()) == pytest.approx(surrogate(math.exp(log_ratio), a + 0.05 * gap), rel=1e-9, abs=1e-12)


def test_where_the_gap_is_not_finite_the_token_keeps_its_advantage() -> None:
    current = tensor(-5.0, -5.0, -5.0, gradient=True)
    gap = tensor(2.0, math.nan, -math.inf)
    streams = TokenStreams(current, tensor(-5.0, -5.0, -5.0), advantage=tensor(1.0, 1.0, 1.0), gap=gap)
    piece = shaped(0.25)
    assert gradient_of(piece.token_loss(streams), current) == [-1.5, -1.0, -1.0]
    found = piece.diagnostics(streams)
    assert found["corrected_share"].tolist() == [1.0, 0.0, 0.0]
    assert found["absolute_gap"].tolist() == [2.0] and found["correction_share"].tolist() == [0.5 / 1.5]


def test_a_shaped_loss_gives_the_teacher_no_gradient() -> None:
    gap = tensor(2.0, gradient=True)
    current = tensor(-5.0, gradient=True)
    shaped(0.25).token_loss(TokenStreams(current, tensor(-5.0), advantage=tensor(0.0), gap=gap)).sum().backward()
    assert gap.grad is None and current.grad is not None and float(current.grad) == -0.5


def surrogate(ratio: float, a: float, low: float = 0.2, high: float = 0.2, dual: float | None = 3.0) -> float:
    value = -min(ratio * a, max(1 - low, min(1 + high, ratio)) * a)
    return min(value, -dual * a) if dual is not None and a < 0 else value


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_the_clipped_surrogate_is_its_formula(log_ratio: float, a: float) -> None:
    streams = TokenStreams(tensor(-5.0 + log_ratio), tensor(-5.0), advantage=tensor(a))
    for settings, expected in (
        ({}, surrogate(math.exp(log_ratio), a)),
        ({"clip_high": 0.28, "dual_clip": None}, surrogate(math.exp(log_ratio), a, high=0.28, dual=None)),
    ):
        found = loss("policy_loss", type="clipped_surrogate", **settings).token_loss(streams)
        assert float(found) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("log_ratio", "a", "gradient"),
    [
        (0.0, 1.0, -1.0),
        (0.0, -1.0, 1.0),
        (0.5, 1.0, 0.0),
        (-0.5, 1.0, -math.exp(-0.5)),
        (-0.5, -1.0, 0.0),
        (0.5, -1.0, math.exp(0.5)),
        (1.5, -1.0, 0.0),
        (0.0, 0.0, 0.0),
    ],
)
def test_clip_and_dual_clip_take_the_gradient_away_on_their_side_only(
    log_ratio: float, a: float, gradient: float
) -> None:
    current = tensor(-5.0 + log_ratio, gradient=True)
    streams = TokenStreams(current, tensor(-5.0), advantage=tensor(a))
    piece = loss("policy_loss", type="clipped_surrogate")
    assert gradient_of(piece.token_loss(streams), current) == pytest.approx([gradient])
    clipped = piece.diagnostics(streams)["clip_share"]
    assert float(clipped) == float((log_ratio > 0.2 and a > 0) or (log_ratio < -0.2 and a < 0))


def test_truncated_importance_weighs_the_plain_policy_gradient_by_the_limited_ratio_to_the_sampler() -> None:
    piece = loss("policy_loss", type="clipped_surrogate", truncated_importance=2.0)
    for log_ratio in (-1.0, 0.0, 0.5, 4.0):
        current = tensor(-5.0 + log_ratio, gradient=True)
        streams = TokenStreams(current, tensor(-5.0), advantage=tensor(1.5))
        assert gradient_of(piece.token_loss(streams), current) == pytest.approx([-1.5 * min(math.exp(log_ratio), 2.0)])


@pytest.mark.parametrize("name", ["opsd", "sdar"])
def test_a_distillation_of_older_samples_is_weighed_by_the_limited_ratio_to_the_sampler(name: str) -> None:
    plain, weighed = (loss("distillation", type=name, truncated_importance=limit) for limit in (None, 2.0))
    for log_ratio in (-1.0, 0.0, 0.5, 4.0):
        current = tensor(-5.0 + log_ratio, gradient=True)
        streams = TokenStreams(current, tensor(-5.0), teacher=tensor(-3.0))
        without, found = (gradient_of(piece.token_loss(streams), current) for piece in (plain, weighed))
        assert found == pytest.approx([without[0] * min(math.exp(log_ratio), 2.0)]) and found[0] != 0.0


@pytest.mark.parametrize("kind, name", [("policy_loss", "clipped_surrogate"), ("distillation", "opsd")])
def test_a_limited_weight_reports_the_ratio_before_its_limit_and_the_share_that_it_cuts(kind: str, name: str) -> None:
    current, sampled = tensor(-1.0, -1.0, -1.0, -1.0), tensor(-1.0, -0.5, -3.0, -1.5)
    streams = TokenStreams(current, sampled, teacher=tensor(*[-1.0] * 4), advantage=tensor(*[1.0] * 4))
    found = loss(kind, type=name, truncated_importance=2.0).diagnostics(streams)
    assert found["importance_ratio"].tolist() == pytest.approx([1.0, math.exp(-0.5), math.exp(2.0), math.exp(0.5)])
    assert found["truncated_share"].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert "truncated_share" not in loss(kind, type=name).diagnostics(streams)


@given(logprob, logprob)
def test_kl_estimators_are_their_formulas(s: float, r: float) -> None:
    streams = TokenStreams(tensor(s), tensor(s), reference=tensor(r))
    k3 = math.exp(min(20.0, r - s)) * (1 + max(0.0, r - s - 20.0)) - (r - s) - 1
    expected = {"k1": s - r, "k2": 0.5 * (s - r) ** 2, "k3": k3}
    for name, value in expected.items():
        assert float(kl_token_loss(KLEstimator(name))(streams)) == pytest.approx(value, rel=1e-9, abs=1e-9)


def test_k1_and_k3_are_unbiased_over_the_policys_own_samples_and_k3_is_never_negative() -> None:
    policy, reference = (
        torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64),
        torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64),
    )
    exact = float((policy * (policy / reference).log()).sum())
    streams = TokenStreams(policy.log(), policy.log(), reference=reference.log())
    for estimator in (KLEstimator.K1, KLEstimator.K3):
        assert float((policy * kl_token_loss(estimator)(streams)).sum()) == pytest.approx(exact)
    assert bool((kl_token_loss(KLEstimator.K3)(streams) >= 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@run_with(deadline=None)
@given(difference=st.floats(-200, 200, width=32))
def test_k3_pulls_back_with_a_finite_gradient_however_far_the_policy_went(
    dtype: torch.dtype, difference: float
) -> None:
    current = torch.tensor([0.0], dtype=dtype, requires_grad=True)
    values = k3(current, torch.tensor([difference], dtype=dtype))
    (gradient,) = gradient_of(values, current)
    exact = 1.0 - math.exp(min(difference, 20.0))
    assert gradient == pytest.approx(exact, rel=1e-5, abs=1e-6)
    assert math.isfinite(float(values.detach())) and float(values.detach()) >= -1e-6


@pytest.mark.parametrize(("difference", "slope"), [(19.0, -1.785e8), (21.0, -4.852e8), (100.0, -4.852e8)])
def test_k3s_gradient_keeps_its_sign_beyond_the_limit_and_the_tokens_are_counted(
    difference: float, slope: float
) -> None:
    current = torch.tensor([-101.0], requires_grad=True)
    streams = TokenStreams(current, current.detach(), reference=torch.tensor([difference - 101.0]))
    assert gradient_of(kl_token_loss(KLEstimator.K3)(streams), current) == pytest.approx([slope], rel=1e-3)
    assert kl_diagnostics(KLEstimator.K3)(streams)["limited_share"].tolist() == [float(difference > 20)]


@pytest.mark.parametrize("far", [-1e4, -200.0, -1.0])
@pytest.mark.parametrize("sampled", [-1e4, -200.0, -1.0])
def test_extreme_ratios_leave_losses_and_gradients_finite_in_fp32(far: float, sampled: float) -> None:
    pieces = {
        **{name: loss("distillation", type=name).token_loss for name in ("sampled_gap", "opsd", "sdar")},
        "shaped": shaped(0.01).token_loss,
        "clipped": loss("policy_loss", type="clipped_surrogate").token_loss,
        "unclipped": loss("policy_loss", type="clipped_surrogate", dual_clip=None).token_loss,
        "corrected": loss("policy_loss", type="clipped_surrogate", truncated_importance=2.0).token_loss,
        **{estimator.value: kl_token_loss(estimator) for estimator in KLEstimator},
    }
    for name, token_loss in pieces.items():
        for advantage in (-2.0, 2.0):
            current = torch.tensor([-1.0, far], requires_grad=True)
            streams = TokenStreams(
                current,
                torch.tensor([sampled, sampled]),
                teacher=torch.tensor([far, -1.0]),
                reference=torch.tensor([far, -1.0]),
                advantage=torch.tensor([advantage, advantage]),
                gap=torch.tensor([far, math.nan]),
            )
            values = token_loss(streams)
            values.sum().backward()
            assert bool(torch.isfinite(values).all()), name
            assert current.grad is not None and bool(torch.isfinite(current.grad).all()), name
