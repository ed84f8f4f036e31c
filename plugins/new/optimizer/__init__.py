"""The optimizer RAdam."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    import torch
    from torch import nn

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderOptimizer:
    """RAdam, a form of Adam that rectifies the variance of its adaptive learning rate in the first steps."""

    name = "placeholder"
    summary = "RAdam, a form of Adam that does not need warmup"
    refs = ("arXiv:1908.03265",)

    learning_rate: float = param(1e-3, help="peak learning rate", gt=0)
    betas: tuple[float, float] = param((0.9, 0.999), help="β₁ and β₂", ge=0, lt=1)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return torch's `RAdam` for the trainable parameters of the model."""
        from torch.optim import RAdam

        return RAdam([p for p in model.parameters() if p.requires_grad], lr=self.learning_rate, betas=self.betas)


@hookimpl
def atat_zoo_optimizer() -> list[type]:
    """Return the optimizers in this package."""
    return [PlaceholderOptimizer]
