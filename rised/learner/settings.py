"""Settings of the learner. Not published by the paper: learning rate, optimiser, clip; the defaults are ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from rised.config.settings import Settings, operational, strict

Share = Annotated[float, Field(ge=0.0, lt=1.0)]


class LearnerSettings(Settings):
    """Optimiser, precision and batching; by itself the learner in plain torch, whose ranks hold all of everything.

    ``micro_batch_tokens``, ``layout``, ``logits_chunk_tokens`` and ``threads`` shape no formula, but they order
    floating-point sums: another value gives other last bits, so a resumed run must keep them.
    """

    type: Literal["torch"] = strict("torch", description="Every process holds all weights and the whole optimiser.")
    learning_rate: float = strict(1e-6, gt=0.0, description="Learning rate after the warm-up; constant from then on.")
    warmup_updates: int = strict(0, ge=0, description="Updates over which the learning rate rises linearly.")
    betas: tuple[Share, Share] = strict((0.9, 0.999), description="AdamW's decay rates of the two moments, below 1.")
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

    @property
    def trains_in_place(self) -> bool:
        """Whether the model given to the learner stays whole and in float32, so that others may play with it."""
        return True

    @property
    def hands_over(self) -> Literal["float32", "bfloat16"]:
        """Precision of the weights that players are given; the state on disk is float32 in any case."""
        return "float32"


class DeepSpeedLearnerSettings(LearnerSettings):
    """The same learner on DeepSpeed: ZeRO shards optimiser, gradients and weights over the ranks.

    Loss and gradient are those of the plain learner at every stage. What is saved is too: a run may go on with another
    stage, another number of ranks, or in plain torch.
    """

    type: Literal["deepspeed"] = strict(  # type: ignore[assignment]
        description="DeepSpeed: optimiser, gradients and weights may be sharded over the processes."
    )
    zero_stage: Literal[0, 1, 2, 3] = strict(
        2, description="What is sharded: 0 nothing, 1 the optimiser, 2 also the gradients, 3 also the weights."
    )
    weights: Literal["float32", "bfloat16"] = strict(
        "float32",
        description="Precision of the weights in the passes; with bfloat16 the optimiser holds the float32 weights.",
    )
    offload_optimizer: bool = strict(False, description="Keep the optimiser in host memory and step on the CPU.")
    reference: Literal["resident", "offloaded", "sharded"] = operational(
        "resident",
        description="The reference model: on every device, in host memory between its passes, or sharded by ZeRO 3.",
    )

    @property
    def trains_in_place(self) -> bool:
        return self.zero_stage < 3 and self.weights == "float32"

    @property
    def hands_over(self) -> Literal["float32", "bfloat16"]:
        return self.weights

    @model_validator(mode="after")
    def _stages_allow_it(self) -> DeepSpeedLearnerSettings:
        if self.weights == "bfloat16" and self.zero_stage == 0:
            raise ValueError(
                "weights in bfloat16 need a sharded optimiser, which holds them in float32: zero_stage >= 1"
            )
        if self.offload_optimizer and self.zero_stage == 0:
            raise ValueError("offload_optimizer needs a sharded optimiser: zero_stage >= 1")
        if self.zero_stage == 3 and self.gradient_share_every > 0:
            raise ValueError(
                "with sharded weights the gradient of one term cannot be taken apart: gradient_share_every: 0"
            )
        return self


def _type_of(value: Any) -> Any:
    return value.get("type", "torch") if isinstance(value, Mapping) else getattr(value, "type", None)


AnyLearnerSettings = Annotated[
    Annotated[LearnerSettings, Tag("torch")] | Annotated[DeepSpeedLearnerSettings, Tag("deepspeed")],
    Discriminator(
        _type_of, custom_error_type="learner_type", custom_error_message="type should be 'torch' or 'deepspeed'"
    ),
]
"""The learners that a configuration may name by ``type``; without it the one in plain torch."""


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
