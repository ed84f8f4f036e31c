"""AdamW and its schedule."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

    from atat_zoo.experiment import TrainSpec


def optimizer(module: nn.Module, spec: TrainSpec) -> torch.optim.AdamW:
    """Return AdamW with decay on matrices only: gains and biases are not to be pulled to zero."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": spec.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=spec.learning_rate, betas=spec.betas, fused=True
    )


def scheduler(optimizer: torch.optim.Optimizer, spec: TrainSpec) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the learning rate's schedule: linear warm-up, then constant, cosine or linear."""

    def rate(step: int) -> float:
        if step < spec.warmup_steps:
            return (step + 1) / spec.warmup_steps
        done = min(1.0, (step - spec.warmup_steps) / max(1, spec.steps - spec.warmup_steps))
        if spec.schedule == "constant":
            return 1.0
        left = 0.5 * (1 + math.cos(math.pi * done)) if spec.schedule == "cosine" else 1 - done
        return spec.final_rate + (1 - spec.final_rate) * left

    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
