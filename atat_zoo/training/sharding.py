"""Sharding of weights, gradients and optimizer state across ranks (`train.sharding`).

Sharding uses torch's `fully_shard` (FSDP: Zhao et al., arXiv:2304.11277; stage 3 of ZeRO: Rajbhandari et al.,
arXiv:1910.02054). Each tensor is split along its first dimension, and the weights of a unit are whole only while the
unit computes. Each member of an `nn.ModuleList`, such as a layer, is a unit; the rest of the objective is one more
unit. A rank's shard is a `DTensor` of torch. Outside a training step, code that needs whole tensors gathers them on all
ranks together: Muon, checkpoints, and `WholeWeights`, which is used to evaluate and save a model.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from composer.utils import dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate


def shard(model: nn.Module, device: str) -> None:
    """Shard a model in place, before its optimizer is built; all ranks must have the whole model.

    The `forward` of the model must return a dict of metrics, including the `loss` to differentiate.
    """
    kind, ranks = torch.device(device).type, dist.get_world_size()
    dist.initialize_dist("cpu" if kind == "cpu" else "gpu")
    mesh = init_device_mesh(kind, (ranks,))
    for module in reversed(list(model.modules())):  # inner lists first
        if isinstance(module, nn.ModuleList):
            for layer in module:
                fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if (times := _times_the_mean(mesh, kind)) != 1:

        def divide(_: nn.Module, __: Any, figures: dict[str, Tensor]) -> None:
            figures["loss"].register_hook(lambda gradient: gradient / times)

        model.register_forward_hook(divide)


def _times_the_mean(mesh: DeviceMesh, device: str) -> float:
    """Return the factor by which FSDP's gradient exceeds the mean over ranks, since torch 2.7 sums it with gloo."""
    probe: Any = fully_shard(nn.Linear(1, 1, bias=False, device=device), mesh=mesh)
    probe(torch.ones(1, 1, device=device)).sum().backward()
    return float(whole(probe.weight.grad))


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that may be sharded; all ranks must call this function."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sharded_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a tensor that every rank holds whole, sharded as `other` is, or unchanged if `other` is not sharded."""
    if not isinstance(other, DTensor):
        return tensor
    everywhere = DTensor.from_local(tensor.to(other.device), other.device_mesh, [Replicate()], run_check=False)
    return everywhere.redistribute(placements=other.placements)


class WholeWeights:
    """A copy of a module, made before the module is sharded, that has weights only inside `gathered`."""

    def __init__(self, sharded: nn.Module) -> None:
        self.sharded = sharded
        parameters = dict(sharded.named_parameters(remove_duplicate=False))
        self.nothing = {name: parameter.detach().to("meta") for name, parameter in parameters.items()}
        # Buffers are not sharded, and both modules share them.
        known: dict[int, Any] = {id(buffer): buffer for buffer in sharded.buffers()}
        for name, parameter in parameters.items():
            known[id(parameter)] = nn.Parameter(self.nothing[name], parameter.requires_grad)
        self.module = copy.deepcopy(sharded, known)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Gather the weights for a `with` block; all ranks must enter the block."""
        weights = {name: whole(tensor) for name, tensor in self.sharded.state_dict().items()}
        self.module.load_state_dict(weights, assign=True)
        try:
            yield
        finally:
            self.module.load_state_dict(self.nothing, strict=False, assign=True)
