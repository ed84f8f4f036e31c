"""From specifications to one module: the parts that an objective uses, built and joined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from torch import nn

    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context


def assemble(experiment: Experiment, context: Context) -> nn.Module:
    """Build the parts that the objective uses and join them; returns an `ObjectiveModule`.

    Initial values are drawn under `context.seed` without touching the caller's generator.
    """
    objective = experiment.parts["objective"]
    context = attrs.evolve(context, shifted=getattr(objective, "shifted", False))

    def build(kind: str, within: Context) -> Any:
        spec = experiment.parts[kind]
        return spec.build(within) if hasattr(spec, "build") else spec

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        parts: dict[str, Any] = {"backbone": build("backbone", context)}
        context = attrs.evolve(context, width=parts["backbone"].embedding.embedding_dim)
        for kind in sorted(objective.uses - {"backbone"}):
            parts[kind] = build(kind, context)
        module: nn.Module = objective.build(context, parts, experiment.train.batch_size)
    return module
