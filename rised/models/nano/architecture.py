"""The nano policy's Qwen2 configuration and its copy initialisation.

What decides whether so small a model solves these environments is copying names out of the observation. From an
ordinary initialisation it does not learn to within millions of tokens; with one previous-token head and a few
induction heads in place it does. The architecture stays a plain Qwen2: any engine that loads Qwen2 loads it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rised.models.nano.settings import NanoShape

ROPE_THETA = 10_000.0


def build_nano(
    shape: NanoShape, vocabulary_size: int, pad_id: int, end_id: int, variants: Sequence[tuple[int, int]], seed: int
) -> Qwen2ForCausalLM:
    """A freshly initialised float32 model.

    ``variants``: token pairs ("word", " word") whose embeddings start correlated, so that a value quoted without a
    space can be copied from one with a space. ``vocabulary_size`` is rounded up to a multiple of 64.
    """
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=math.ceil(vocabulary_size / 64) * 64,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.feed_forward_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.max_positions,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        pad_token_id=pad_id,
        eos_token_id=end_id,
        bos_token_id=None,
        use_cache=True,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = 0.02 / math.sqrt(2 * shape.layers) if into_residual else 0.02
                parameter.normal_(0.0, scale)
            elif name.endswith(".bias"):
                parameter.zero_()
        if shape.copy_initialisation:
            _install_copy_heads(model, seed)
            embedding = model.model.embed_tokens.weight
            for bare, spaced in variants:
                embedding[bare] = 0.85 * embedding[spaced] + 0.5 * embedding[bare]
    return model


def _install_copy_heads(
    model: Qwen2ForCausalLM,
    seed: int,
    match_gain: float = 1.5,
    position_gain: float = 6.0,
    shift_gain: float = 0.04,
    copy_gain: float = 0.05,
) -> None:
    """Write a previous-token head into layer 0 and induction heads into the layers above.

    The previous-token head attends by position alone: constant query and key biases whose rotary phases agree at
    distance one. Its output is a rotated copy of the preceding token's embedding in a subspace R. The induction
    heads match the current token (projection P) with R in the slow rotary dimensions, where position hardly counts,
    and copy the attended token's embedding straight into the tied output space.
    """
    config = model.config
    width, heads = config.hidden_size, config.num_attention_heads
    head_size = width // heads
    half = head_size // 2
    generator = torch.Generator().manual_seed(seed)

    def orthonormal_rows(count: int) -> torch.Tensor:
        return torch.linalg.qr(torch.randn(width, count, generator=generator))[0].T.contiguous()

    frequencies = 1.0 / (ROPE_THETA ** (torch.arange(0, head_size, 2).float() / head_size))
    fast = torch.arange(half // 2)
    slow = torch.cat([torch.arange(half // 2, half), half + torch.arange(half // 2, half)])
    match_P = orthonormal_rows(len(slow))
    shifted_R = orthonormal_rows(len(slow))
    attention = model.model.layers[0].self_attn
    rows = slice(0, head_size)
    query_bias, key_bias = torch.zeros(head_size), torch.zeros(head_size)
    query_bias[fast] = position_gain * torch.cos(-frequencies[fast])
    query_bias[half + fast] = position_gain * torch.sin(-frequencies[fast])
    key_bias[fast] = position_gain
    attention.q_proj.weight[rows] = 0
    attention.k_proj.weight[rows] = 0
    attention.q_proj.bias[rows] = query_bias
    attention.k_proj.bias[rows] = key_bias
    value = torch.zeros(head_size, width)
    value[: len(slow)] = match_P
    output = torch.zeros(width, head_size)
    output[:, : len(slow)] = shift_gain * shifted_R.T
    attention.v_proj.weight[rows] = value
    attention.o_proj.weight[:, rows] = output

    for index, layer in enumerate(model.model.layers[1:], start=1):
        attention = layer.self_attn
        induction_heads = 2 if index < 3 else 1
        for head in range(induction_heads):
            rows = slice(head * head_size, (head + 1) * head_size)
            _write_matching_head(attention, rows, slow, match_gain * match_P, match_gain * shifted_R)
            copied = orthonormal_rows(head_size)
            attention.v_proj.weight[rows] = copied
            attention.o_proj.weight[:, rows] = copy_gain * copied.T
        if heads > 2:
            rows = slice(2 * head_size, 3 * head_size)
            _write_matching_head(attention, rows, slow, match_gain * match_P, match_gain * match_P)
            copied = orthonormal_rows(head_size)
            attention.v_proj.weight[rows] = copied
            attention.o_proj.weight[:, rows] = 0.5 * copy_gain * copied.T


def _write_matching_head(
    attention: Any, rows: slice, slow: torch.Tensor, query: torch.Tensor, key: torch.Tensor
) -> None:
    """Let one head compare ``query`` and ``key`` projections in the slow rotary dimensions only."""
    head_size = rows.stop - rows.start
    for projection, matrix in ((attention.q_proj, query), (attention.k_proj, key)):
        weight = torch.zeros(head_size, matrix.shape[1])
        weight[slow] = matrix
        projection.weight[rows] = weight
