"""A policy's weights as a directory that any engine loads: config.json and one safetensors file.

``save_pretrained`` leaves out an output layer that is tied to the embedding, and an engine that reloads weights in
place then keeps the old one in silence. Here every tensor of the state dict is written, ``lm_head.weight`` included.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig

WEIGHTS = "model.safetensors"


def save_checkpoint(
    folder: Path, config: PretrainedConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None
) -> None:
    """Write config and tensors into ``folder``; ``dtype``: of floating-point tensors. OSError, SafetensorError."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    whole = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous().clone()
        for name, tensor in tensors.items()
    }
    save_file(whole, folder / WEIGHTS, metadata={"format": "pt"})
