"""A tiny Qwen2, random sequences and the loss terms of a RISED-like method; synthetic."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rised.learner import learner as learner_module
from rised.learner.learner import Learner
from rised.learner.settings import LearnerSettings
from rised.learner.types import LossTerm, Need, Reduction, TrainingSequence, UpdateReport
from rised.methods.kl import KLEstimator, kl_token_loss
from rised.methods.registry import build, piece_settings
from rised.models.scoring import sequence_logprobs

VOCABULARY_SIZE = 48


def tiny_model(seed: int = 0, tied: bool = True) -> Qwen2ForCausalLM:
    """About 20 thousand parameters, weights from a seed; wide enough initialised that logits differ."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.2,
    )
    return Qwen2ForCausalLM(config).eval()


def sequences(
    model: Qwen2ForCausalLM,
    count: int = 6,
    seed: int = 1,
    advantages: tuple[float | None, ...] = (1.0, -1.0, 0.5, -0.5, 0.0, 2.0),
    taught: tuple[bool, ...] = (True, True, False, False, True, False),
    noise: float = 0.1,
) -> list[TrainingSequence]:
    """Random token ids in two turns, sampled log-probabilities near the model's own."""
    rng = np.random.default_rng(seed)
    ids = [tuple(int(t) for t in rng.integers(1, VOCABULARY_SIZE, 10 + 7 * i)) for i in range(count)]
    masks = [tuple(3 <= t < 6 or t >= 8 for t in range(len(row))) for row in ids]
    with torch.no_grad():
        own = sequence_logprobs(model, ids, masks, 0.8)
    found = []
    for i, (row, mask, logprobs) in enumerate(zip(ids, masks, own, strict=True)):
        advantage = advantages[i % len(advantages)]
        found.append(
            TrainingSequence(
                group_id=f"g{i // 2}",
                rollout_id=f"g{i // 2}/{i}",
                environment="alfworld",
                token_ids=row,
                policy_mask=mask,
                sampled_logprobs=np.minimum(logprobs.double().numpy() + rng.normal(0, noise, len(logprobs)), 0.0),
                advantages=None if advantage is None else np.full(len(logprobs), advantage),
                teacher_prefix_ids=tuple(int(t) for t in rng.integers(1, VOCABULARY_SIZE, 5 + i))
                if taught[i % len(taught)]
                else None,
            )
        )
    return found


def piece_loss(kind: str, **settings: Any) -> Any:
    return build(kind, piece_settings(kind, settings), vocabulary=None)


def terms(
    reduction: Reduction = Reduction.TOKEN_MEAN, kl: float = 0.05, distill: float = 0.1, only_with_signal: bool = False
) -> list[LossTerm]:
    policy = piece_loss("policy_loss", type="clipped_surrogate")
    gap = piece_loss("distillation", type="sampled_gap")
    length = 20 if reduction is Reduction.CONSTANT_LENGTH else None
    return [
        LossTerm(
            "rl",
            1.0,
            policy.token_loss,
            frozenset({Need.ADVANTAGE}),
            reduction,
            length,
            diagnostics=policy.diagnostics,
            micro_batch_sequences=2 if reduction is Reduction.MICRO_BATCH_TOKEN_MEAN else None,
        ),
        LossTerm(
            "reference_kl",
            kl,
            kl_token_loss(KLEstimator.K3),
            frozenset({Need.REFERENCE}),
            only_with_signal=only_with_signal,
        ),
        LossTerm("distill", distill, gap.token_loss, frozenset({Need.TEACHER}), diagnostics=gap.diagnostics),
    ]


def learner(model: Qwen2ForCausalLM | None = None, **settings: Any) -> Learner:
    defaults: dict[str, Any] = {"learning_rate": 1e-3, "gradient_share_every": 0, "micro_batch_tokens": 128}
    return Learner(model or tiny_model(), tiny_model(seed=9), LearnerSettings(**(defaults | settings)), temperature=0.8)


def count_passes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Sequences that learners score without gradient from now on, by "reference" and "teacher"; counts as they go."""
    counted: Counter[str] = Counter()
    score = learner_module.scored_without_gradient

    def counting(scorer: Any, batch: Any, *arguments: Any, with_prefix: bool = False, **options: Any) -> Any:
        counted["teacher" if with_prefix else "reference"] += len(batch)
        return score(scorer, batch, *arguments, with_prefix=with_prefix, **options)

    monkeypatch.setattr(learner_module, "scored_without_gradient", counting)
    return counted


def measures(report: UpdateReport) -> dict[str, float | None]:
    return {m.name: m.value for m in report.metrics}


def weights(model: torch.nn.Module) -> torch.Tensor:
    """All parameters as one flat copy."""
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def gradients(model: torch.nn.Module) -> torch.Tensor:
    """All gradients as one flat copy; fails if a parameter has none."""
    return torch.cat([p.grad.detach().flatten().clone() for p in model.parameters() if p.grad is not None])


def reference_loss(
    model: Qwen2ForCausalLM,
    reference: Qwen2ForCausalLM,
    batch: list[TrainingSequence],
    kl: float = 0.05,
    distill: float = 0.1,
) -> torch.Tensor:
    """The token-mean loss of :func:`terms` in float64, one sequence at a time and without padding or shared code."""

    def score(scorer: Qwen2ForCausalLM, ids: tuple[int, ...], mask: tuple[bool, ...]) -> torch.Tensor:
        logits = scorer(torch.tensor([ids])).logits[0].double() / 0.8
        logprobs = logits.log_softmax(-1)
        return torch.stack([logprobs[t - 1, ids[t]] for t in range(len(ids)) if mask[t]])

    rl, divergence, gap = [], [], []
    for s in batch:
        current, sampled = score(model, s.token_ids, s.policy_mask), torch.tensor(s.sampled_logprobs)
        log_ratio = current - sampled
        if s.advantages is not None:
            a = torch.tensor(s.advantages)
            unclipped, clipped = log_ratio.exp() * a, log_ratio.exp().clamp(0.8, 1.2) * a
            loss = -torch.minimum(unclipped, clipped)
            rl.append(torch.where(a < 0, torch.minimum(loss, -3 * a), loss))
        with torch.no_grad():
            anchor = score(reference, s.token_ids, s.policy_mask)
        divergence.append((anchor - current).exp() - (anchor - current) - 1)
        if s.teacher_prefix_ids is not None:
            prefix = s.teacher_prefix_ids
            with torch.no_grad():
                teacher = score(model, prefix + s.token_ids, (False,) * len(prefix) + s.policy_mask)
                weight = (teacher - current).clamp(-5, 5) * log_ratio.exp().clamp(max=2)
            gap.append(-weight * current)
    total = torch.cat(rl).mean() + kl * torch.cat(divergence).mean()
    return total + distill * torch.cat(gap).mean() if gap else total
