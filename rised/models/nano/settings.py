"""Settings of the nano policy's shape, tokenizer and supervised warm start."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rised.config import Settings, operational, strict


class NanoShape(Settings):
    """Shape of the Qwen2 model. About 3.8 M parameters by default."""

    hidden_size: int = strict(256, description="Width of the residual stream.", gt=0)
    layers: int = strict(4, description="Transformer layers.", gt=1)
    heads: int = strict(4, description="Attention heads (no grouped queries).", gt=0)
    feed_forward_size: int = strict(768, description="Width of the gated feed-forward layer.", gt=0)
    max_positions: int = strict(2048, description="Longest sequence in tokens.", gt=0)
    vocabulary_size: int = strict(1536, description="Most BPE tokens; rounded up to a multiple of 64.", gt=300)
    copy_initialisation: bool = strict(True, description="Start with previous-token and induction heads.")


class Lesson(Settings):
    """A stretch of supervised training: its length, its learning rate, and under which blocks it shows transcripts."""

    total_tokens: int = strict(description="Tokens seen in all; decides the number of steps.", gt=0)
    learning_rate: float = strict(1.5e-3, description="Peak learning rate (cosine to a tenth).", gt=0)
    warm_up_steps: int = strict(60, description="Linear warm-up.", ge=0)
    hint_share: float = strict(0.35, description="Share of demonstrations shown under a true hint block.", ge=0, le=1)
    few_share: float = strict(
        0.0,
        description="Share of the hints that name one to three telling rubrics; the others up to eight.",
        ge=0,
        le=1,
    )
    evidence_weight: float = strict(1.0, description="Loss weight of a reply that shows a telling rubric.", ge=0)
    avoid_share: float = strict(0.2, description="Share shown under an avoid block they stay clear of.", ge=0, le=1)


class WarmStartSettings(Settings):
    """Supervised warm start on expert and perturbed transcripts."""

    seed: int = strict(0, description="Seed of data order and initialisation.")
    demonstrations: dict[str, Annotated[int, Field(gt=0)]] = strict(description="Demonstrations per environment.")
    repeats: dict[str, Annotated[int, Field(gt=0)]] = strict(
        {}, description="How often an environment's demonstrations count per epoch."
    )
    noise: float = strict(0.13, description="Chance of a wasteful or wrong expert step.", ge=0, le=1)
    lessons: list[Lesson] = strict(description="Trained in turn, each with a fresh optimiser.", min_length=1)
    telling_prevalence: float = strict(
        0.8, description="A rubric that more transcripts of an environment show tells the policy nothing.", ge=0, le=1
    )
    batch_tokens: int = strict(2048, description="Tokens per optimiser step, padding included.", gt=0)
    observation_weight: float = strict(
        0.2, description="Loss weight of observation tokens; policy tokens have 1.", ge=0
    )
    weight_decay: float = strict(0.1, description="Decay of matrices.", ge=0)
    threads: int = operational(1, description="Torch threads.", gt=0)
    workers: int = operational(2, description="Processes that record demonstrations.", gt=0)
