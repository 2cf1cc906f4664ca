"""A device that is not the CPU, on a machine that has no other: what it holds lies apart, its arithmetic is the CPU's.

Its tensors carry a tensor of the host each, on which every operation is done; an operation that mixes them with the
host's own tensors is refused, as CUDA refuses it, and so is reading one without copying it to the host. So code that
runs here with the CPU's results has every tensor where it belongs. What it does not show: kernels, dtypes and limits of
a real device, and whatever depends on streams.

For a process of its own: the device cannot be taken away again.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "emulated"
_MIXING = {"aten::_to_copy", "aten::copy_"}
_INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
"""Index tensors of the host are taken for a tensor of the device, as CUDA does."""
_REGISTERED: list[torch.library.Library] = []


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class EmulatedTensor(torch.Tensor):
    """A tensor of the device; ``host`` holds its values."""

    host: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type[EmulatedTensor], host: torch.Tensor) -> EmulatedTensor:
        made: EmulatedTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=torch.device(NAME, 0),
        )
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(op, *args, **(kwargs or {}))

    def tolist(self) -> Any:
        return self.host.tolist()

    def numpy(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"can't convert a tensor of device {NAME} to numpy: copy it to the host first")

    __array__ = numpy

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"EmulatedTensor({self.host})"


def install() -> torch.device:
    """Make the device known to torch, in this process, from now on."""
    _setup_privateuseone_for_python_backend(NAME, _Backend())
    # a module's weights stay the objects that they are when it is moved, as they do from the CPU to CUDA
    torch.__future__.set_swap_module_params_on_conversion(True)
    fallback, own = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    fallback.fallback(_compute, "PrivateUse1")
    aten = torch.ops.aten
    for op in (aten._to_copy.default, aten.copy_.default, aten.empty_strided.default, aten.empty.memory_format):
        own.impl(op, lambda *args, op=op, **kwargs: _compute(op, *args, **kwargs), "PrivateUse1")
    for op in (aten.arange.default, aten.arange.start, aten.arange.start_step):  # they would resize an empty tensor
        own.impl(op, lambda *args, op=op, **kwargs: EmulatedTensor(op(*args, **_on_host(kwargs))), "PrivateUse1")
    _REGISTERED.extend([fallback, own])
    return torch.device(NAME, 0)


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The same arguments for the host's operation."""
    device = {} if kwargs.get("device") is None else {"device": torch.device("cpu")}
    return kwargs | device | ({"pin_memory": False} if "pin_memory" in kwargs else {})


def _compute(op: Any, *args: Any, **kwargs: Any) -> Any:
    parts = op.decompose(*args, **kwargs)
    if parts is not NotImplemented:
        return parts
    name = op._schema.name
    _refuse_mixture(name, args, kwargs)
    if name == "aten::_fused_sdp_choice":
        return torch.nn.attention.SDPBackend.MATH.value
    ours = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, EmulatedTensor)]
    host_args, host_kwargs = tree_map(lambda x: x.host if isinstance(x, EmulatedTensor) else x, (args, kwargs))
    with torch.no_grad():
        found = op(*host_args, **_on_host(host_kwargs))
    if any(tensor.shape != tensor.host.shape for tensor in ours):
        raise RuntimeError(f"{op} resizes a tensor, which this device cannot")
    device = kwargs.get("device")
    if device is not None and torch.device(device).type == "cpu":
        return found
    if name == "aten::copy_" and not isinstance(args[0], EmulatedTensor):
        return args[0]
    known = {id(tensor.host): tensor for tensor in ours}
    return tree_map(
        lambda x: (known[id(x)] if id(x) in known else EmulatedTensor(x)) if isinstance(x, torch.Tensor) else x, found
    )


def _refuse_mixture(name: str, args: Any, kwargs: Any) -> None:
    """Scalars of the host may go with anything."""
    if name in _MIXING:
        return
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if name in _INDEXED and isinstance(args[0], EmulatedTensor):
        indices = {id(index) for index in args[1] if index is not None}
        tensors = [tensor for tensor in tensors if id(tensor) not in indices]
    ours = [tensor for tensor in tensors if isinstance(tensor, EmulatedTensor)]
    if ours and any(not isinstance(tensor, EmulatedTensor) and tensor.dim() > 0 for tensor in tensors):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found {NAME} and cpu")
