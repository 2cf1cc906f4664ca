"""What an update needs in the memory of one device, part by part, from a model's shape and the learner's settings.

Counted, not measured: weights, gradients and optimiser as the engines hold them; activations as the tensors that a
layer of the Llama and Qwen family keeps for its backward pass. A test holds both against real passes on a CPU. What the
count leaves out (CUDA's context, fragmentation, communication buffers beyond ZeRO's gathering) is the reserve that the
planner keeps free. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass

from rised.learner.settings import DeepSpeedLearnerSettings, LearnerSettings
from rised.models.shape import ModelShape

FLOAT32, BFLOAT16 = 4, 2
MOMENTS = 2
MOST_GATHERED = 1_000_000_000
"""Parameters that ZeRO 3 holds gathered at a time (DeepSpeed's default of stage3_max_live_parameters)."""
REDUCTION_BUCKET = 500_000_000
"""Most numbers in the buffer through which ZeRO reduces gradients (DeepSpeed's default of reduce_bucket_size)."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes that one thing takes on a device while an update runs. ``why``: what they follow from, in few words."""

    name: str
    bytes: int
    why: str


def reduction_bucket(parameters: int) -> int:
    """Numbers in that buffer, which is allocated whole: no more than a model of so many parameters can fill."""
    return min(REDUCTION_BUCKET, parameters)


def number_bytes(dtype: str) -> int:
    """Bytes of one number."""
    return BFLOAT16 if dtype == "bfloat16" else FLOAT32


def learner_parts(
    shape: ModelShape, settings: LearnerSettings, ranks: int, tokens: int, *, with_reference: bool
) -> list[Part]:
    """Everything that a learner holds at the peak of the actor pass, on one of ``ranks`` devices.

    ``tokens``: of one pass, padding included.
    """
    sharded = isinstance(settings, DeepSpeedLearnerSettings)
    stage = settings.zero_stage if isinstance(settings, DeepSpeedLearnerSettings) else 0
    weights = number_bytes(settings.weights) if isinstance(settings, DeepSpeedLearnerSettings) else FLOAT32
    count = shape.parameters
    parts = [
        Part("weights", weights * count // (ranks if stage == 3 else 1), f"{count:,} parameters, ZeRO {stage}"),
        Part("gradients", _gradients(count, weights, stage, ranks), "float32 sums"),
    ]
    if stage == 3:
        gathered = weights * min(count, MOST_GATHERED) if ranks > 1 else 0
        parts.append(Part("gathered weights", gathered, "what ZeRO 3 holds whole at a time"))
    if stage > 0:
        parts.append(
            Part("reduction buffer", weights * reduction_bucket(count), "for all gradients, or a part of them")
        )
    masters = count * FLOAT32 if stage > 0 else 0
    optimiser = (MOMENTS * FLOAT32 * count + masters) // (ranks if stage > 0 else 1)
    offloaded = isinstance(settings, DeepSpeedLearnerSettings) and settings.offload_optimizer
    parts.append(
        Part("optimiser", 0 if offloaded else optimiser, "in host memory" if offloaded else "AdamW's moments, masters")
    )
    if with_reference:
        parts.append(_reference(count, settings, ranks, sharded))
    if settings.autocast == "bfloat16" and weights == FLOAT32:
        layers = 1 if settings.activation_checkpointing else shape.layers
        parts.append(Part("cast weights", BFLOAT16 * shape.layer_parameters * layers, "bfloat16 copies of a pass"))
    return [
        *parts,
        Part("activations", activation_bytes(shape, settings, tokens), f"{tokens:,} tokens a pass"),
        Part(
            "logits", logits_bytes(shape, settings, tokens, weights), "of a chunk or a layer's gradients; of the head"
        ),
    ]


def _gradients(count: int, weights: int, stage: int, ranks: int) -> int:
    whole = FLOAT32 * count // (ranks if stage >= 2 else 1)
    return whole + (count * weights if weights == BFLOAT16 and stage < 2 else 0)


def _reference(count: int, settings: LearnerSettings, ranks: int, sharded: bool) -> Part:
    placement = settings.reference if isinstance(settings, DeepSpeedLearnerSettings) else "resident"
    if placement == "offloaded":
        return Part("reference", 0, "in host memory beside its pass")
    parts = ranks if placement == "sharded" else 1
    return Part("reference", FLOAT32 * count // parts, placement)


def layer_activation_bytes(shape: ModelShape, settings: LearnerSettings) -> int:
    """What one layer keeps of one token for the backward pass."""
    half = settings.autocast == "bfloat16" or (
        isinstance(settings, DeepSpeedLearnerSettings) and settings.weights == "bfloat16"
    )
    number = BFLOAT16 if half else FLOAT32
    # the products' inputs in their precision; norms, residuals and the log-sum of each head in float32
    kept = number * (4 * shape.intermediate_size + 2 * shape.query_size + 2 * shape.key_size)
    kept += FLOAT32 * (6 * shape.hidden_size + shape.heads) + (BFLOAT16 * shape.hidden_size if half else 0)
    if settings.layout == "packed":
        kept += number * shape.query_size
    if shape.query_key_norm:
        kept += (FLOAT32 + (BFLOAT16 if half else FLOAT32)) * (shape.query_size + shape.key_size)
    return kept


def activation_bytes(shape: ModelShape, settings: LearnerSettings, tokens: int) -> int:
    """Kept for the backward pass over ``tokens``; with recomputation the layers' inputs and one whole layer."""
    layer = layer_activation_bytes(shape, settings)
    around = FLOAT32 * (4 * shape.hidden_size + 2 * shape.head_size)
    kept = (
        shape.layers * FLOAT32 * shape.hidden_size + layer
        if settings.activation_checkpointing
        else shape.layers * layer
    )
    return tokens * (kept + around)


def logits_bytes(shape: ModelShape, settings: LearnerSettings, tokens: int, weights: int) -> int:
    """Logits of a chunk twice (themselves and one intermediate), the output layer's gradient, a float32 copy of it.

    They are gone before the layers' backward passes begin, whose widest gradients may take more.
    """
    chunk = 2 * FLOAT32 * min(tokens, settings.logits_chunk_tokens) * shape.vocabulary_size
    gradients = FLOAT32 * 3 * shape.intermediate_size * tokens
    table = FLOAT32 * shape.embedding_parameters
    return max(chunk, gradients) + table + (table if weights != FLOAT32 else 0)
