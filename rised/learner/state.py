"""The learner's state on disk: safetensors and JSON, no pickle.

``policy.safetensors`` (each parameter and buffer once), ``optimizer.safetensors`` (moments and step counts by parameter
name), ``learner.json`` (counters). Files are written plainly: when a step becomes visible is decided by the commit of
``rised.records``, which also removes what an interrupted step leaves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rised.learner.errors import LearnerError
from rised.models.checkpoints import save_checkpoint

FORMAT_VERSION = 1
POLICY, OPTIMIZER, COUNTERS = "policy.safetensors", "optimizer.safetensors", "learner.json"


@dataclass(frozen=True, slots=True)
class Saved:
    """A state that was read. ``moments``: optimiser key/parameter name -> tensor."""

    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]
    counters: dict[str, Any]


def save(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, counters: Mapping[str, int]) -> None:
    """Write the three files; a folder that exists is written into."""
    moments = {
        f"{key}/{name}": value.detach().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    write(folder, {name: tensor.contiguous() for name, tensor in tensors_of(model).items()}, moments, counters)


def write(
    folder: Path, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor], counters: Mapping[str, int]
) -> None:
    """Write whole tensors by name. LearnerError if the folder cannot be written."""
    content = {"format": FORMAT_VERSION, **counters}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(dict(weights), folder / POLICY)
        save_file(dict(moments), folder / OPTIMIZER)
        (folder / COUNTERS).write_text(json.dumps(content, sort_keys=True) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise LearnerError(f"the learner's state could not be written to {folder}: {error}") from error


def read(folder: Path, shapes: Mapping[str, torch.Size]) -> Saved:
    """What :func:`write` wrote, on the CPU.

    Raises LearnerError if a file is missing or damaged, or belongs to a model without these names and shapes.
    """
    try:
        counters: dict[str, Any] = json.loads((folder / COUNTERS).read_text(encoding="utf-8"))
        weights, moments = load_file(folder / POLICY), load_file(folder / OPTIMIZER)
    except (OSError, ValueError, SafetensorError) as error:
        raise LearnerError(f"the learner's state in {folder} cannot be read: {error}") from error
    if counters.pop("format", None) != FORMAT_VERSION:
        raise LearnerError(f"{folder / COUNTERS}: not of format {FORMAT_VERSION}; it was written by another version")
    wrong = sorted(set(shapes) ^ set(weights)) or sorted(n for n in shapes if shapes[n] != weights[n].shape)
    if wrong:
        raise LearnerError(
            f"{folder / POLICY} belongs to another model: {', '.join(wrong[:3])} missing, unknown or of another shape"
        )
    return Saved(weights, moments, counters)


def load(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put the saved weights and moments in place; returns the counters. LearnerError as :func:`read`."""
    expected = tensors_of(model)
    saved = read(folder, {name: tensor.shape for name, tensor in expected.items()})
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(saved.weights[name])
    _load_moments(model, optimizer, saved.moments)
    return saved.counters


def _load_moments(model: PreTrainedModel, optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in moments.items():
        kind, name = key.split("/", 1)
        by_name.setdefault(name, {})[kind] = value
    names = [name for name, _ in model.named_parameters()]
    state = {index: by_name[name] for index, name in enumerate(names) if name in by_name}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def tensors_of(model: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters (tied ones once) and persistent buffers by name."""
    shared = {name: tensor.detach() for name, tensor in model.named_parameters()}
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    shared.update({name: tensor for name, tensor in model.state_dict().items() if name not in parameters})
    return shared


def export_hf(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    state_dict: Mapping[str, Tensor] | None = None,
) -> None:
    """Write config, generation config, tokenizer and the *full* ``state_dict``, ``lm_head.weight`` included.

    ``state_dict``: the tensors, where the model does not hold them itself.
    """
    try:
        save_checkpoint(folder, model.config, model.state_dict() if state_dict is None else state_dict)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except (OSError, SafetensorError) as error:
        raise LearnerError(f"the policy could not be exported to {folder}: {error}") from error
