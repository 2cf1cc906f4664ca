"""Several sequences in one row: who may attend to whom, and that a model keeps to it.

Packed sequences stand one after the other in a single row, each with positions from 0 on. Attention runs over each of
them alone (:func:`segments_attention`), so that no token of one ever meets another's: nothing is masked, because
nothing is there to be masked. :func:`check_packing` finds models that mix tokens in another way than by attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer

from rised.models.errors import ModelError

NAME = "rised_segments"


def segments_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    segment_lengths: Sequence[int] | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each segment of one row.

    ``query`` [1, Hq, T, D], ``key`` and ``value`` [1, H, T, D]; ``segment_lengths`` add up to T. Returns
    [1, T, Hq, D]. Raises ModelError where a model asks for another kind of attention.
    """
    if segment_lengths is None or query.shape[0] != 1 or sum(segment_lengths) != query.shape[2]:
        raise ModelError(
            f"{type(module).__name__} does not hand on which tokens belong together: set learner.layout: padded"
        )
    if softcap is not None or (sliding_window is not None and sliding_window < max(segment_lengths)):
        raise ModelError(f"{type(module).__name__} caps or windows its attention: set learner.layout: padded")
    parts = [
        sdpa_attention_forward(module, q, k, v, None, dropout=dropout, scaling=scaling, is_causal=True)[0]
        for q, k, v in zip(*(tensor.split(list(segment_lengths), dim=2) for tensor in (query, key, value)), strict=True)
    ]
    return torch.cat(parts, dim=1), None


AttentionInterface.register(NAME, segments_attention)


class segments_attention_in:
    """Use :func:`segments_attention` in ``model`` for a while; transformers then makes no mask of its own.

    A context manager that may be entered again and again: a layer is recomputed for every gradient that is asked for.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._before: list[str | None] = []

    def __enter__(self) -> None:
        self._before.append(self._model.config._attn_implementation)
        self._model.config._attn_implementation = NAME

    def __exit__(self, *_: object) -> None:
        self._model.config._attn_implementation = self._before.pop()


@contextmanager
def recomputed_layers(model: PreTrainedModel, packed: bool) -> Iterator[None]:
    """Forward passes within keep each layer's input only; the backward pass computes the rest of it again.

    Only the layers' own flags are set, so that dropout stays off, and only for a while: a layer that recomputes drops
    the key-value cache of a generation without a word.
    """

    def contexts() -> tuple[Any, Any]:
        # the second one stands around the recomputation, long after the block that set the attention has ended
        return nullcontext(), segments_attention_in(model) if packed else nullcontext()

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ModelError(
            f"{type(model).__name__} has no layers to recompute: set learner.activation_checkpointing: false"
        )
    function: Callable[..., Any] = partial(
        checkpoint, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
    )
    for layer in layers:
        layer.gradient_checkpointing, layer.training = True, True
        layer._gradient_checkpointing_func = function  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing, layer.training = False, False


@torch.no_grad()
def check_packing(model: PreTrainedModel) -> None:
    """ModelError unless two sequences in one row have the states that each has alone."""
    sizes = (3, 5)
    ids_1T = torch.arange(1, sum(sizes) + 1, device=model.device).unsqueeze(0) % model.config.vocab_size
    positions_1T = torch.cat([torch.arange(size, device=model.device) for size in sizes]).unsqueeze(0)
    with segments_attention_in(model):
        packed = model.base_model(
            input_ids=ids_1T, position_ids=positions_1T, segment_lengths=sizes, use_cache=False
        ).last_hidden_state
    alone = [model.base_model(input_ids=part, use_cache=False).last_hidden_state for part in ids_1T.split(sizes, dim=1)]
    if not torch.allclose(packed.float(), torch.cat(alone, dim=1).float(), rtol=1e-2, atol=1e-2):
        raise ModelError(
            f"{type(model).__name__} mixes packed sequences, not by its attention alone: set learner.layout: padded"
        )
