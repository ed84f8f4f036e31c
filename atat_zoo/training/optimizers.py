"""Optimizers, with parameters in `[optimizer]`.

Weight decay applies only to matrices, not to gains and biases.
"""

from __future__ import annotations

from collections.abc import Container
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    import torch
    from torch import nn


class Optimizer(Protocol):
    """The interface of optimizer components.

    `package` names an optional dependency: its module and the requirement to install.
    """

    #: whether its steps do not change if each rank holds only a shard of each parameter, as torch's `DTensor`
    #: (`train.sharding`), because the step of an entry depends only on that entry or the optimizer gathers the shards
    shardable: ClassVar[bool] = False

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a torch optimizer for the parameters of `model` that require gradients, each in exactly one group.

        The learning rate of each group is its peak learning rate. `state_dict` and `load_state_dict` must restore the
        state bit for bit, so that a run can be resumed.
        """


def groups(model: nn.Module, weight_decay: float, without: Container[int] = ()) -> list[dict[str, Any]]:
    """Return parameter groups: matrices (unless their `id` is in `without`) with weight decay, and vectors without."""
    trained = [p for p in model.parameters() if p.requires_grad]
    both = (
        {"params": [p for p in trained if p.ndim >= 2 and id(p) not in without], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    )
    return [group for group in both if group["params"]]


@component
class AdamWOptimizer(Optimizer):
    """AdamW (Loshchilov & Hutter, 2019)."""

    name = "adamw"
    summary = "AdamW: Adam with decoupled weight decay"
    refs = ("arXiv:1711.05101",)
    shardable = True
    learning_rate: float = param(1e-4, help="peak learning rate", gt=0)
    betas: tuple[float, float] = param((0.9, 0.999), help="β₁ and β₂", ge=0, lt=1)
    weight_decay: float = param(0.0, help="weight decay, applied only to matrices", ge=0)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return torch's fused AdamW."""
        from torch.optim import AdamW

        return AdamW(groups(model, self.weight_decay), lr=self.learning_rate, betas=self.betas, fused=True)


@component
class MuonOptimizer(Optimizer):
    """Muon for the weights of the linear layers; AdamW for the token embedding, the head and all vectors.

    The authors of Muon recommend this split (Jordan et al., 2024).
    """

    name = "muon"
    summary = "Muon: orthogonalised momentum for the linear layers, AdamW for the rest"
    refs = ("https://kellerjordan.github.io/posts/muon/",)
    shardable = True
    learning_rate: float = param(1e-4, help="peak learning rate of AdamW", gt=0)
    muon_learning_rate: float = param(0.02, help="peak learning rate of Muon", gt=0)
    betas: tuple[float, float] = param((0.9, 0.999), help="β₁ and β₂ of AdamW", ge=0, lt=1)
    weight_decay: float = param(0.0, help="weight decay, applied only to matrices", ge=0)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return one optimizer that combines Muon and AdamW."""
        from atat_zoo.training.gradients import Muon, linear_weights

        inner = linear_weights(model)
        parameters = groups(model, self.weight_decay, without={id(p) for p in inner})
        if inner:
            rate = {"weight_decay": self.weight_decay, "lr": self.muon_learning_rate}
            parameters.append({"params": inner, "muon": True, **rate})
        return Muon(parameters, lr=self.learning_rate, betas=self.betas, fused=True)


@component
class AdafactorOptimizer(Optimizer):
    """Adafactor (Shazeer & Stern, 2018) as in torch; it factors second moments into a row and a column per matrix."""

    name = "adafactor"
    summary = "Adafactor: second moments factored into a row and a column per matrix"
    refs = ("arXiv:1804.04235",)
    learning_rate: float = param(1e-2, help="peak learning rate, relative to the scale of each weight", gt=0)
    weight_decay: float = param(0.0, help="weight decay, applied only to matrices", ge=0)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return torch's Adafactor."""
        from torch.optim import Adafactor

        return Adafactor(groups(model, self.weight_decay), lr=self.learning_rate)


@component
class LionOptimizer(Optimizer):
    """Lion (Chen et al., 2023): each weight changes by the learning rate times the sign of a momentum.

    Requires `pip install 'atat-zoo[lion]'`. Its authors recommend a third to a tenth of AdamW's learning rate.
    """

    name = "lion"
    summary = "Lion: sign of the momentum"
    refs = ("arXiv:2302.06675",)
    package = ("lion_pytorch", "atat-zoo[lion]")
    learning_rate: float = param(3e-5, help="peak learning rate", gt=0)
    betas: tuple[float, float] = param((0.9, 0.99), help="β₁ and β₂", ge=0, lt=1)
    weight_decay: float = param(0.0, help="weight decay, applied only to matrices", ge=0)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return lion-pytorch's Lion."""
        lion: Any = import_module(self.package[0])
        return lion.Lion(groups(model, self.weight_decay), lr=self.learning_rate, betas=self.betas)
