"""The learner's state on disk: safetensors and JSON, no pickle.

``policy.safetensors`` (each parameter and buffer once), ``optimizer.safetensors`` (moments and step counts by parameter
name), ``learner.json`` (counters). Files are written plainly: when a step becomes visible is decided by the commit of
``rised.records``, which also removes what an interrupted step leaves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rised.learner.errors import LearnerError

FORMAT_VERSION = 1
POLICY, OPTIMIZER, COUNTERS = "policy.safetensors", "optimizer.safetensors", "learner.json"


def save(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, counters: Mapping[str, int]) -> None:
    """Write the three files; a folder that exists is written into."""
    moments = {
        f"{key}/{name}": value.detach().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    content = {"format": FORMAT_VERSION, **counters}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in _tensors(model).items()}, folder / POLICY)
        save_file(moments, folder / OPTIMIZER)
        (folder / COUNTERS).write_text(json.dumps(content, sort_keys=True) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise LearnerError(f"the learner's state could not be written to {folder}: {error}") from error


def load(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put the saved weights and moments in place; returns the counters.

    Raises LearnerError if a file is missing or damaged, or belongs to another model or format.
    """
    try:
        counters: dict[str, Any] = json.loads((folder / COUNTERS).read_text(encoding="utf-8"))
        weights, moments = load_file(folder / POLICY), load_file(folder / OPTIMIZER)
    except (OSError, ValueError, SafetensorError) as error:
        raise LearnerError(f"the learner's state in {folder} cannot be read: {error}") from error
    if counters.pop("format", None) != FORMAT_VERSION:
        raise LearnerError(f"{folder / COUNTERS}: not of format {FORMAT_VERSION}; it was written by another version")
    expected = _tensors(model)
    wrong = sorted(set(expected) ^ set(weights)) or sorted(n for n in expected if expected[n].shape != weights[n].shape)
    if wrong:
        raise LearnerError(
            f"{folder / POLICY} belongs to another model: {', '.join(wrong[:3])} missing, unknown or of another shape"
        )
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(weights[name])
    _load_moments(model, optimizer, moments)
    return counters


def _load_moments(model: PreTrainedModel, optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in moments.items():
        kind, name = key.split("/", 1)
        by_name.setdefault(name, {})[kind] = value
    names = [name for name, _ in model.named_parameters()]
    state = {index: by_name[name] for index, name in enumerate(names) if name in by_name}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters (tied ones once) and persistent buffers by name."""
    shared = {name: tensor.detach() for name, tensor in model.named_parameters()}
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    shared.update({name: tensor for name, tensor in model.state_dict().items() if name not in parameters})
    return shared


def export_hf(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write config, generation config, tokenizer and the *full* ``state_dict``, ``lm_head.weight`` included.

    ``save_pretrained`` leaves out a tied head, and an engine that reloads weights in place then keeps the old one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        model.config.save_pretrained(folder)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise LearnerError(f"the policy could not be exported to {folder}: {error}") from error
