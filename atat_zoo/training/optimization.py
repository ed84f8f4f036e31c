"""The optimizer and its schedule."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atat_zoo.training.muon import Muon

if TYPE_CHECKING:
    from atat_zoo.experiment import TrainSpec


def optimizer(module: nn.Module, spec: TrainSpec) -> torch.optim.Optimizer:
    """Return the optimizer; it decays matrices only: gains and biases are not to be pulled to zero.

    Muon steps the weights of the linear layers; the token embedding, the head and
    all vectors stay with AdamW, as its authors recommend.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    inner = {
        id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Linear) and min(layer.weight.shape) > 1
    }
    by_muon = [p for p in trained if spec.optimizer == "muon" and id(p) in inner]
    taken = {id(p) for p in by_muon}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim >= 2 and id(p) not in taken], "weight_decay": spec.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    if by_muon:
        decay = {"weight_decay": spec.weight_decay, "lr": spec.muon_learning_rate}
        groups.append({"params": by_muon, "muon": True, **decay})
    kind = Muon if spec.optimizer == "muon" else torch.optim.AdamW
    return kind([g for g in groups if g["params"]], lr=spec.learning_rate, betas=spec.betas, fused=True)


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
