"""From specifications to one module: the parts that an objective uses, built and joined."""

from typing import Any

import attrs
import torch
from torch import nn

from atat_zoo.experiment import Experiment
from atat_zoo.modeling.backbones.lora import adapt
from atat_zoo.registry import Context


def assemble(experiment: Experiment, context: Context) -> nn.Module:
    """Build the parts that the objective uses and join them; returns an `ObjectiveModule`.

    Initial values are drawn under `context.seed` without touching the caller's generator.
    """
    objective = experiment.parts["objective"]
    given = experiment.data.form == "chat"
    context = attrs.evolve(context, shifted=getattr(objective, "shifted", False), given_between=given)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        parts: dict[str, Any] = {"backbone": experiment.parts["backbone"].build(context)}
        adapt(parts["backbone"], experiment.parts["backbone"])
        context = attrs.evolve(context, width=parts["backbone"].embedding.embedding_dim)
        for kind in sorted(objective.uses - {"backbone"}):
            spec = experiment.parts[kind]
            parts[kind] = spec.build(context) if hasattr(spec, "build") else spec
        module: nn.Module = objective.build(context, parts, experiment.train.batch_size)
    return module
