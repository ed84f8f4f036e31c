"""CUDA's autocast to bf16, emulated on CPU tensors with or without data."""

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
    """Cast as on a GPU inside a `with` block: inputs of products to bf16, and inputs of norms and softmax to float32.

    CUDA tensors without data would need a driver, because autograd queries their stream. Therefore the CPU's autocast
    runs, which casts products in the same way but leaves layer norms and, since some release of torch, softmax
    unchanged; an additional mode casts these. The mode raises NotImplementedError for any other function that has bf16
    inputs and an autocast rule only on CUDA.
    """
    with torch.autocast("cpu", torch.bfloat16), _Float32():
        yield


class _Float32(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        if name in ("layer_norm", "softmax"):
            args = tree_map_only(torch.Tensor, torch.Tensor.float, args)
        elif name in _on_cuda_alone() and any(_is_bf16(value) for value in tree_leaves((args, kwargs))):
            raise NotImplementedError(f"CUDA's autocast has its own rule for {name}, which is not emulated here")
        return func(*args, **(kwargs or {}))


def _is_bf16(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16


@functools.cache
def _on_cuda_alone() -> set[str]:
    """Return the operations that have an autocast rule on CUDA but not on a CPU, according to torch's registrations."""
    registered: Any = torch._C._dispatch_get_registrations_for_dispatch_key
    of = {
        key: {name.removeprefix("aten::").split(".")[0] for name in registered(f"Autocast{key}")}
        for key in ("CPU", "CUDA")
    }
    return of["CUDA"] - of["CPU"]
