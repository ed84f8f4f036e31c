"""CUDA's autocast to bf16, imitated on tensors of the CPU, with data or without."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def cuda_autocast() -> Iterator[None]:
    """Cast as on a GPU in a `with` block: the inputs of products to bf16, and those of norms and softmax to float32.

    CUDA tensors without data would want a driver, which autograd asks for their stream. So the CPU's autocast runs,
    which casts for products alike and leaves a layer norm as it is, and a softmax from some release of torch on; a mode
    above it casts for these. It raises NotImplementedError at any other function that has bf16 inputs, and a rule on
    CUDA alone.
    """
    with torch.autocast("cpu", torch.bfloat16), _Float32():
        yield


class _Float32(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        if name in ("layer_norm", "softmax"):
            args = tree_map_only(torch.Tensor, torch.Tensor.float, args)
        elif name in _on_cuda_alone() and any(_is_bf16(value) for value in tree_leaves((args, kwargs))):
            raise NotImplementedError(f"CUDA's autocast has a rule of its own for {name}, which is not imitated here")
        return func(*args, **(kwargs or {}))


def _is_bf16(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16


@functools.cache
def _on_cuda_alone() -> set[str]:
    """Return the operations that autocast has a rule for on CUDA and none on a CPU, by torch's own register."""
    registered: Any = torch._C._dispatch_get_registrations_for_dispatch_key
    of = {
        key: {name.removeprefix("aten::").split(".")[0] for name in registered(f"Autocast{key}")}
        for key in ("CPU", "CUDA")
    }
    return of["CUDA"] - of["CPU"]
