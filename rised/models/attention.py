"""Attention of one new token per row, as two batched matrix products.

On a CPU the fused kernel that transformers calls handles a single query per row badly, and grouped-query models copy
their whole cache once per head group. Here the queries of one key/value head are the rows of one small product,
so keys and values are read once. Passes of several tokens go to transformers' own function.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "rised_rows"


def rows_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of ``query`` [n, Hq, T, D] over ``key`` and ``value`` [n, H, S, D]; returns [n, T, Hq, D].

    ``attention_mask`` is additive, [n, 1, T, S].
    """
    if query.shape[2] != 1 or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **arguments)
    rows, query_heads, _, size = query.shape
    heads, visible = key.shape[1], key.shape[2]
    group = query_heads // heads
    mask = attention_mask.expand(rows, heads, group, visible).reshape(rows * heads, group, visible)
    scores = torch.baddbmm(
        mask,
        query.reshape(rows * heads, group, size),
        key.flatten(0, 1).transpose(1, 2),
        alpha=size**-0.5 if scaling is None else scaling,
    )
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
    return torch.bmm(weights, value.flatten(0, 1)).view(rows, 1, query_heads, size), None


@contextmanager
def rows_attention_in(model: PreTrainedModel) -> Iterator[None]:
    """Use :func:`rows_attention` in ``model`` for a while."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


AttentionInterface.register(NAME, rows_attention)
