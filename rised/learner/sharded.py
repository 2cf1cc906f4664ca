"""Whole tensors of a DeepSpeed engine, put together from what the ranks hold, and back.

ZeRO keeps float32 weights and moments as slices of flat buffers. Where a parameter's slice lies is all that depends on
stage and number of ranks; what is saved are whole tensors by name, so that nothing of it depends on either. One tensor
at a time is put together on the device; the whole of them stands in the first rank's host memory only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
import torch.distributed as distributed
from torch import Tensor
from transformers import PreTrainedModel

from rised.learner.errors import LearnerError
from rised.learner.ranks import LearnerRanks
from rised.learner.state import Saved, on_host, tensors_of

MOMENTS = ("exp_avg", "exp_avg_sq")
STEP = "step"


@dataclass(frozen=True, slots=True)
class Slice:
    """This rank's part of a parameter: ``count`` numbers, from ``start`` of a flat buffer, ``offset`` of the parameter.

    ``flat``: the float32 buffer, which is also what the optimiser knows as its parameter.
    """

    flat: Tensor
    start: int
    offset: int
    count: int

    def of(self, buffer: Tensor) -> Tensor:
        """The slice's numbers in a buffer that is shaped like ``flat``."""
        return buffer.reshape(-1).narrow(0, self.start, self.count)

    def of_whole(self, whole: Tensor) -> Tensor:
        """The slice's numbers in the whole parameter."""
        return whole.reshape(-1).narrow(0, self.offset, self.count)


def shapes(model: PreTrainedModel) -> dict[str, torch.Size]:
    """Names and whole shapes of everything that is saved."""
    whole = {name: torch.Size(getattr(p, "ds_shape", p.shape)) for name, p in model.named_parameters()}
    return whole | {name: tensor.shape for name, tensor in _buffers(model).items()}


def gathered_weights(model: PreTrainedModel, engine: Any, ranks: LearnerRanks) -> dict[str, Tensor]:
    """Float32 weights and buffers by name, on the first rank's CPU; empty on the others. All ranks call it."""
    weights = dict(_gather(model, engine, ranks, None))
    buffers = {name: on_host(tensor) for name, tensor in _buffers(model).items()}
    return weights | (buffers if ranks.index == 0 else {})


def gathered(model: PreTrainedModel, engine: Any, ranks: LearnerRanks) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights, and moments as ``learner.state`` names them. All ranks call it."""
    weights = gathered_weights(model, engine, ranks)
    moments: dict[str, Tensor] = {}
    state = _inner(engine).state
    # a rank's flat buffer may be padding alone, and the optimiser then still steps over it
    steps = {float(values[STEP]) for values in state.values() if STEP in values}
    if len(steps) > 1:
        raise LearnerError(
            f"the optimiser counts different steps for its weights ({sorted(steps)}); it cannot be saved"
        )
    if max(ranks.gather(max(steps, default=0.0))) > 0:
        for key in MOMENTS:
            moments |= {f"{key}/{name}": value for name, value in _gather(model, engine, ranks, key)}
        names = [name for name, _ in model.named_parameters()] if ranks.index == 0 else []
        moments |= {f"{STEP}/{name}": torch.tensor(next(iter(steps))) for name in names}
    return weights, moments


def scatter(model: PreTrainedModel, engine: Any, ranks: LearnerRanks, saved: Saved) -> None:
    """Put a saved state in place; all ranks call it with the same one."""
    inner = _inner(engine)
    inner.state.clear()
    for name, parameter in model.named_parameters():
        whole = saved.weights[name]
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=hasattr(parameter, "ds_id")):
            if not hasattr(parameter, "ds_id") or ranks.index == 0:
                parameter.data.copy_(whole)
        part = _slice(parameter, engine, ranks)
        if part is None:
            continue
        if part.flat is not parameter:
            part.of(part.flat.data).copy_(part.of_whole(whole))
        if f"{STEP}/{name}" in saved.moments:
            if part.flat not in inner.state:
                inner.state[part.flat] = {STEP: saved.moments[f"{STEP}/{name}"].clone()} | {
                    key: torch.zeros_like(part.flat, requires_grad=False) for key in MOMENTS
                }
            for key in MOMENTS:
                part.of(inner.state[part.flat][key]).copy_(part.of_whole(saved.moments[f"{key}/{name}"]))
    with torch.no_grad():
        for name, buffer in _buffers(model).items():
            buffer.copy_(saved.weights[name])


def _gather(model: PreTrainedModel, engine: Any, ranks: LearnerRanks, key: str | None) -> Iterator[tuple[str, Tensor]]:
    """Each parameter's whole float32 values (None) or moments, on the first rank; nothing on the others."""
    inner = _inner(engine)
    for name, parameter in model.named_parameters():
        shape = getattr(parameter, "ds_shape", parameter.shape)
        whole = torch.zeros(shape, dtype=torch.float32, device=engine.device)
        part = _slice(parameter, engine, ranks)
        if part is not None:
            source = part.flat if key is None else inner.state[part.flat][key]
            part.of_whole(whole).copy_(part.of(source.detach()))
        if part is None or part.flat is not parameter:
            distributed.reduce(whole, dst=0)
        if ranks.index == 0:
            yield name, whole.cpu()


def _slice(parameter: Any, engine: Any, ranks: LearnerRanks) -> Slice | None:
    """Where this rank holds its part of the parameter; None if it holds nothing of it."""
    optimizer = engine.optimizer
    if hasattr(parameter, "ds_id"):
        group, start, count = optimizer.grad_position[optimizer.get_param_id(parameter)]
        offset = count * ranks.index
        inside = min(count, parameter.ds_numel - offset)  # the last ranks' parts are filled up
        return None if inside <= 0 else Slice(optimizer.fp32_partitioned_groups_flat[group], start, offset, inside)
    if not hasattr(parameter, "_hp_mapping"):
        return Slice(parameter, 0, 0, parameter.numel())
    mapping = parameter._hp_mapping
    if mapping is None:
        return None
    flat = optimizer.single_partition_of_fp32_groups[mapping.param_group_index]
    here, there = mapping.hp_fragment_address, mapping.lp_fragment_address
    return Slice(flat, here.start, there.start, there.numel)


def _inner(engine: Any) -> Any:
    """Torch's optimiser inside DeepSpeed's."""
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def _buffers(model: PreTrainedModel) -> dict[str, Tensor]:
    parameters = {name for name, _ in model.named_parameters()}
    return {name: tensor for name, tensor in tensors_of(model).items() if name not in parameters}
