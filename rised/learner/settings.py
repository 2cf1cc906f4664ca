"""Settings of the learner. Not published by the paper: learning rate, optimiser, clip; the defaults are ours."""

from __future__ import annotations

from typing import Literal

from rised.config.settings import Settings, operational, strict


class LearnerSettings(Settings):
    """Optimiser, precision and batching; by itself the learner in plain torch, whose ranks hold all of everything.

    ``micro_batch_tokens``, ``layout``, ``logits_chunk_tokens`` and ``threads`` shape no formula, but they order
    floating-point sums: another value gives other last bits, so a resumed run must keep them.
    """

    type: Literal["torch"] = strict("torch", description="Every process holds all weights and the whole optimiser.")
    learning_rate: float = strict(1e-6, gt=0.0, description="Learning rate after the warm-up; constant from then on.")
    warmup_updates: int = strict(0, ge=0, description="Updates over which the learning rate rises linearly.")
    betas: tuple[float, float] = strict((0.9, 0.999), description="AdamW's decay rates of the two moments.")
    epsilon: float = strict(1e-8, gt=0.0, description="AdamW's epsilon.")
    weight_decay: float = strict(0.0, ge=0.0, description="AdamW's decoupled weight decay.")
    gradient_clip: float | None = strict(1.0, gt=0.0, description="Limit of the gradient's norm; null: no limit.")
    autocast: Literal["float32", "bfloat16"] = strict(
        "float32",
        description="Precision of matrix products; weights, optimiser and log-softmax stay in float32. bfloat16 is "
        "several times slower than float32 on a CPU without bfloat16 instructions.",
    )
    micro_batch_tokens: int = strict(
        8192,
        ge=1,
        description="Tokens of one forward and backward pass, padding included; a longer sequence passes alone.",
    )
    layout: Literal["padded", "packed"] = strict(
        "padded",
        description="How sequences share a pass: in rows padded to the longest, or one after the other in one row. "
        "Packed sequences do not see each other.",
    )
    logits_chunk_tokens: int = strict(
        1024, ge=1, description="Tokens whose logits (a vocabulary each) stand in memory at once, computed twice."
    )
    activation_checkpointing: bool = operational(
        False, description="Keep each layer's input only and compute the rest again in the backward pass."
    )
    threads: int | None = strict(None, ge=1, description="Torch's intra-op threads; null: leave torch's own choice.")
    gradient_share_every: int = operational(
        10,
        ge=0,
        description="Measure each term's gradient norm every so many updates (a backward pass each); 0: never.",
    )


class GradientSettings(Settings):
    """How the gradient signal of the correlation experiments is measured.

    That it is the gradient of one whole layer, or of all through a projection, is the paper's; the values are ours.
    """

    tasks: int = strict(16, ge=1, description="Tasks of each environment that are played at each checkpoint.")
    layer: int | None = strict(None, ge=0, description="Which transformer layer, from 0; null: the middle one.")
    projection: int = strict(
        8192, ge=0, description="Dimensions of the random projection of all layers' gradients; 0: without it."
    )
    seed: int = strict(0, description="Seed of the draws of the rollouts and of the projection.")
