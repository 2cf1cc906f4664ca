"""Models with random weights in the shape of a real one, for what needs a size and no skill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Qwen2Config

from rised.config.loader import read_plain
from rised.models.shape import ModelShape

END = 1
"""Token that ends a reply."""
SPREAD = 0.05
"""Standard deviation of the weights, twice the usual one, so that distributions are far from uniform; less where the
model is so wide that every layer would enlarge what bfloat16 rounds off."""
TINY = ModelShape(
    vocabulary_size=512,
    hidden_size=64,
    intermediate_size=128,
    layers=2,
    heads=2,
    key_value_heads=1,
    head_size=32,  # the least that vLLM computes on a CPU
    tied_head=True,
    attention_bias=True,
)


def model_config(shape: ModelShape) -> Qwen2Config:
    """A Qwen2 of this shape."""
    return Qwen2Config(
        vocab_size=shape.vocabulary_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        tie_word_embeddings=shape.tied_head,
        max_position_embeddings=32768,
        initializer_range=min(SPREAD, shape.hidden_size**-0.5),
        eos_token_id=END,
        pad_token_id=0,
        attn_implementation="sdpa",  # type: ignore[call-arg]
    )


def shape_named(name: str) -> ModelShape:
    """``tiny``, or the shape that a file of configs/models gives."""
    if name == "tiny":
        return TINY
    document: Any = read_plain(Path("configs/models") / f"{name}.yaml")
    return ModelShape(**document["model"]["shape"])
