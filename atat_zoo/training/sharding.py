"""Weights, gradients and the optimizer's state, sharded over the ranks: `train.sharding`.

torch's `fully_shard` (FSDP: Zhao et al., arXiv:2304.11277; stage 3 of ZeRO: Rajbhandari et al., arXiv:1910.02054). Each
tensor is cut along its first dimension, and a unit's weights are whole only while it computes. A unit is a member of an
`nn.ModuleList`, as a network's layers are; whatever else the objective has is another one.

What one rank has of a tensor is torch's `DTensor`. Outside a step whoever needs the whole tensor asks for it, on all
ranks together: Muon, checkpoints, and `WholeWeights`, with which a model is evaluated and saved.
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
    """Shard a model, which all ranks have whole, in place, before its optimizer is built.

    Its `forward` returns figures by name, of which `loss` is differentiated.
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
    """Return what FSDP makes of gradients that are 1 on every rank: torch 2.7 adds them up under gloo."""
    probe: Any = fully_shard(nn.Linear(1, 1, bias=False, device=device), mesh=mesh)
    probe(torch.ones(1, 1, device=device)).sum().backward()
    return float(whole(probe.weight.grad))


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor that may be sharded; all ranks must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """Return what this rank has of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sharded_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a tensor, which all ranks have, sharded as another one is."""
    if not isinstance(other, DTensor):
        return tensor
    everywhere = DTensor.from_local(tensor.to(other.device), other.device_mesh, [Replicate()], run_check=False)
    return everywhere.redistribute(placements=other.placements)


class WholeWeights:
    """A copy of a module, made before that is sharded, which has the whole weights only while they are needed."""

    def __init__(self, sharded: nn.Module) -> None:
        self.sharded = sharded
        parameters = dict(sharded.named_parameters(remove_duplicate=False))
        self.nothing = {name: parameter.detach().to("meta") for name, parameter in parameters.items()}
        # Buffers are not sharded, and belong to both.
        known: dict[int, Any] = {id(buffer): buffer for buffer in sharded.buffers()}
        for name, parameter in parameters.items():
            known[id(parameter)] = nn.Parameter(self.nothing[name], parameter.requires_grad)
        self.module = copy.deepcopy(sharded, known)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Have the weights in a `with` block; all ranks must enter it."""
        weights = {name: whole(tensor) for name, tensor in self.sharded.state_dict().items()}
        self.module.load_state_dict(weights, assign=True)
        try:
            yield
        finally:
            self.module.load_state_dict(self.nothing, strict=False, assign=True)
