"""The shape of a decoder of the Llama and Qwen family: what its size in memory follows from. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rised.config import Settings, operational
from rised.models.errors import ModelError

FAMILY = ("qwen2", "qwen3", "llama", "mistral")
"""Values of ``model_type`` whose parameters and activations are counted here."""


class ModelShape(Settings):
    """As the model's own ``config.json`` says it."""

    vocabulary_size: int = operational(ge=1, description="Tokens of the vocabulary, padding of the table included.")
    hidden_size: int = operational(ge=1, description="Width of the residual stream.")
    intermediate_size: int = operational(ge=1, description="Width of the feed-forward layers.")
    layers: int = operational(ge=1, description="Transformer layers.")
    heads: int = operational(ge=1, description="Query heads.")
    key_value_heads: int = operational(ge=1, description="Heads of keys and values.")
    head_size: int = operational(ge=1, description="Width of a head.")
    tied_head: bool = operational(description="Whether the output layer is the embedding.")
    attention_bias: bool = operational(False, description="Whether queries, keys and values have biases (Qwen2).")
    query_key_norm: bool = operational(False, description="Whether queries and keys are normalised (Qwen3).")

    @property
    def query_size(self) -> int:
        return self.heads * self.head_size

    @property
    def key_size(self) -> int:
        return self.key_value_heads * self.head_size

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        attention = self.hidden_size * (2 * self.query_size + 2 * self.key_size)
        attention += (self.query_size + 2 * self.key_size) * self.attention_bias
        attention += 2 * self.head_size * self.query_key_norm
        return attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding alone."""
        return self.vocabulary_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All parameters, a tied output layer once."""
        embeddings = self.embedding_parameters * (1 if self.tied_head else 2)
        return embeddings + self.layers * self.layer_parameters + self.hidden_size

    def cache_bytes(self, tokens: int, number_bytes: int) -> int:
        """Keys and values of so many tokens."""
        return 2 * self.layers * self.key_size * number_bytes * tokens


def shape_of_config(document: Mapping[str, Any], source: str = "config.json") -> ModelShape:
    """The shape that a Hugging Face configuration describes. ModelError for a family that is not counted here."""
    kind = document.get("model_type")
    if kind not in FAMILY:
        raise ModelError(
            f"{source}: the memory of a model of type {kind!r} is not known here, only of {', '.join(FAMILY)}"
        )
    try:
        heads, width = int(document["num_attention_heads"]), int(document["hidden_size"])
        return ModelShape(
            vocabulary_size=document["vocab_size"],
            hidden_size=width,
            intermediate_size=document["intermediate_size"],
            layers=document["num_hidden_layers"],
            heads=heads,
            key_value_heads=document.get("num_key_value_heads") or heads,
            head_size=document.get("head_dim") or width // heads,
            tied_head=bool(document.get("tie_word_embeddings", False)),
            attention_bias=kind == "qwen2" or bool(document.get("attention_bias")),
            query_key_norm=kind == "qwen3",
        )
    except KeyError as error:
        raise ModelError(f"{source} has no {error.args[0]}: it is not a model's whole configuration") from None


def shape_of_folder(folder: Path) -> ModelShape | None:
    """The shape of the model in a Hugging Face directory; None if there is none."""
    file = folder / "config.json"
    if not file.is_file():
        return None
    return shape_of_config(json.loads(file.read_text(encoding="utf-8")), str(file))
