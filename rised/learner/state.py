"""The learner's state on disk: safetensors and JSON, no pickle.

``policy.safetensors`` (each parameter and buffer once), ``optimizer.safetensors`` (moments and step counts by parameter
name), ``learner.json`` (counters). Files are written plainly: when a step becomes visible is decided by the commit of
``rised.records``, which also removes what an interrupted step leaves. What is written was copied to host memory before,
so that writing may go on in a thread while the weights change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rised.learner.errors import LearnerError
from rised.records.faults import kill_point
from rised.records.files import free_bytes

FORMAT_VERSION = 1
POLICY, OPTIMIZER, COUNTERS = "policy.safetensors", "optimizer.safetensors", "learner.json"
EXPORTED = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Saved:
    """A state that was read. ``moments``: optimiser key/parameter name -> tensor."""

    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]
    counters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a run resumes from, as copies in host memory that no update touches.

    ``names``: key of the model's state dict -> key of ``weights``; several for tied weights.
    """

    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]
    counters: Mapping[str, int]
    names: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Write the three files; a folder that exists is written into. LearnerError if that is not possible."""
        content = {"format": FORMAT_VERSION, **self.counters}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            kill_point(f"state {POLICY}")
            save_file(dict(self.weights), folder / POLICY)
            kill_point(f"state {OPTIMIZER}")
            save_file(dict(self.moments), folder / OPTIMIZER)
            (folder / COUNTERS).write_text(json.dumps(content, sort_keys=True) + "\n", encoding="utf-8")
            kill_point(f"state {COUNTERS}")
        except (OSError, SafetensorError) as error:
            needed = sum(tensor.nbytes for part in (self.weights, self.moments) for tensor in part.values())
            raise LearnerError(
                f"the learner's state could not be written to {folder}{_room(folder, needed)}: {error}. Free some "
                "space, or correct the folder, and start the same command again: it goes on from the last committed "
                "step"
            ) from error

    def export(self, folder: Path) -> None:
        """Write ``model.safetensors``: the *full* state dict, ``lm_head.weight`` included, beside :func:`describe`.

        ``save_pretrained`` leaves out a tied head, and an engine that reloads weights in place then keeps the old one.
        """
        tensors = {name: self.weights[key] for name, key in self.names.items()}
        shared = {name for name, key in self.names.items() if name != key}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            kill_point(f"export {EXPORTED}")
            save_file(
                {name: tensor.clone() if name in shared else tensor for name, tensor in tensors.items()},
                folder / EXPORTED,
                metadata={"format": "pt"},
            )
        except (OSError, SafetensorError) as error:
            raise _not_exported(folder, error, sum(tensor.nbytes for tensor in tensors.values())) from error


def snapshot(model: PreTrainedModel, optimizer: torch.optim.Optimizer, counters: Mapping[str, int]) -> Snapshot:
    """Copy a model that is whole, and its optimiser."""
    moments = {
        f"{key}/{name}": on_host(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    weights = {name: on_host(tensor) for name, tensor in tensors_of(model).items()}
    return Snapshot(weights, moments, dict(counters), state_dict_names(model))


def on_host(tensor: Tensor) -> Tensor:
    """A copy in host memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def state_dict_names(model: PreTrainedModel) -> dict[str, str]:
    """Key of the state dict -> the name under which :func:`tensors_of` has the tensor."""
    first = {parameter: name for name, parameter in model.named_parameters()}
    tied = {name: first[parameter] for name, parameter in model.named_parameters(remove_duplicate=False)}
    return {name: tied.get(name, name) for name in model.state_dict()}


def describe(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write config, generation config and tokenizer: of an exported policy all but the weights."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        model.config.save_pretrained(folder)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except OSError as error:
        raise _not_exported(folder, error) from error


def _not_exported(folder: Path, error: Exception, needed: int = 0) -> LearnerError:
    room = _room(folder, needed) if needed else ""
    return LearnerError(
        f"the policy could not be exported to {folder}{room}: {error}. Free some space, or correct the folder, and "
        "start the same command again"
    )


def _room(folder: Path, needed: int) -> str:
    """Bytes needed and free, for an error about a folder that may be full."""
    place = next((path for path in (folder, *folder.parents) if path.exists()), Path("."))
    return f" ({needed:,} bytes needed, {free_bytes(place):,} bytes free)"


def read(folder: Path, shapes: Mapping[str, torch.Size]) -> Saved:
    """What :meth:`Snapshot.write` wrote, on the CPU.

    Raises LearnerError if a file is missing or damaged, or belongs to a model without these names and shapes.
    """
    try:
        counters: dict[str, Any] = json.loads((folder / COUNTERS).read_text(encoding="utf-8"))
        weights, moments = load_file(folder / POLICY), load_file(folder / OPTIMIZER)
    except (OSError, ValueError, SafetensorError) as error:
        raise LearnerError(f"the learner's state in {folder} cannot be read: {error}") from error
    if counters.pop("format", None) != FORMAT_VERSION:
        raise LearnerError(f"{folder / COUNTERS}: not of format {FORMAT_VERSION}; it was written by another version")
    _refuse_other_model(folder / POLICY, shapes, weights)
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


@torch.no_grad()
def read_weights(file: Path, model: PreTrainedModel, rounded_to: Literal["float32", "bfloat16"]) -> None:
    """Put the weights of a ``policy.safetensors`` into a whole model, through another precision if they had one.

    Raises LearnerError as :func:`read`.
    """
    expected = tensors_of(model)
    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise LearnerError(f"the weights in {file} cannot be read: {error}") from error
    _refuse_other_model(file, {name: tensor.shape for name, tensor in expected.items()}, found)
    parameters = {name for name, _ in model.named_parameters()}
    for name, tensor in expected.items():
        rounds = rounded_to == "bfloat16" and name in parameters
        tensor.copy_(found[name].bfloat16() if rounds else found[name])


def _refuse_other_model(file: Path, shapes: Mapping[str, torch.Size], weights: Mapping[str, Tensor]) -> None:
    wrong = sorted(set(shapes) ^ set(weights)) or sorted(n for n in shapes if shapes[n] != weights[n].shape)
    if wrong:
        raise LearnerError(
            f"{file} belongs to another model: {', '.join(wrong[:3])} missing, unknown or of another shape"
        )


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
