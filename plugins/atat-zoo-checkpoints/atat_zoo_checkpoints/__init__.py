"""Backbones and objectives for published models, which `atat import` loads."""

from atat_zoo.registry import hookimpl

CONTRACT = 2


@hookimpl
def atat_zoo_backbone() -> list[type]:
    """Return the backbone classes in this package."""
    from atat_zoo_checkpoints.ddit import DDiTBackbone
    from atat_zoo_checkpoints.llada2 import LLaDA2Backbone
    from atat_zoo_checkpoints.llama import LlamaBackbone

    return [DDiTBackbone, LlamaBackbone, LLaDA2Backbone]


@hookimpl
def atat_zoo_objective() -> list[type]:
    """Return the objective classes in this package."""
    from atat_zoo_checkpoints.set_diffusion import SetDiffusionObjective

    return [SetDiffusionObjective]
