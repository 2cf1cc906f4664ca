"""Hidden states and the output head of a causal language model, apart.

Scoring and generation need logits at a few positions only, and in float32; calling the decoder and the head separately
gives both for any transformers model whose head is one linear layer. Models that do more to their logits (soft
caps, scaling) are recognised and refused instead of being scored wrongly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from rised.models.errors import ModelError


def hidden_states(model: PreTrainedModel, **inputs: Any) -> torch.Tensor:
    """Last hidden states [B, T, D] of the decoder, before the head."""
    states: torch.Tensor = model.base_model(**inputs).last_hidden_state
    return states


def embedding_count(model: PreTrainedModel) -> int:
    """Rows of the input embeddings: ids below it can be fed. Whole also where the weights are sharded."""
    return int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]


def refuse_foreign_ids(model: PreTrainedModel, highest: int) -> None:
    """ModelError if a token id is beyond the model's embeddings: on a GPU the kernel would fail without a reason."""
    count = embedding_count(model)
    if highest >= count:
        raise ModelError(
            f"token id {highest} is beyond the {count} embeddings of {model.name_or_path or type(model).__name__}: the "
            "ids come from another tokenizer; use the model and the tokenizer that they were made with"
        )


def logits_float32(head: nn.Linear, hidden_ND: torch.Tensor) -> torch.Tensor:
    """Logits [N, V] computed and returned in float32, also under autocast (bfloat16 logits lose two digits)."""
    with torch.autocast(hidden_ND.device.type, enabled=False):
        bias = None if head.bias is None else head.bias.float()
        return functional.linear(hidden_ND.float(), head.weight.float(), bias)


def output_head(model: PreTrainedModel) -> nn.Linear:
    """The model's linear output layer; raises :class:`ModelError` if its logits are not just that."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise ModelError(f"{type(model).__name__} has no linear output layer; this project cannot score it")
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            probe = torch.tensor([[1, 2, 3]], device=model.device) % head.out_features
            whole = model(input_ids=probe, use_cache=False).logits.float()
            parts = head(hidden_states(model, input_ids=probe, use_cache=False)).float()
    finally:
        model.train(training)
    if not torch.allclose(whole, parts, rtol=1e-3, atol=1e-3):
        raise ModelError(
            f"{type(model).__name__} changes its logits after the output layer (soft cap or scaling); "
            "it would be scored wrongly here"
        )
    return head
