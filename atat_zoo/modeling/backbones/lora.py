"""LoRA (Hu et al., 2021): trains low-rank updates of a backbone's linear layers and freezes the rest.

The implementation is peft's, which also supports the models of `transformers` and merges the updates.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from atat_zoo.modeling.backbones import Backbone
from atat_zoo.registry import component_base, param
from atat_zoo.system.errors import Problem, UserError
from atat_zoo.system.machine import lacking

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.experiment import Experiment

_ADDED = ".lora_"  # in the names of the LoRA matrices
_WITHIN = ".base_layer."  # in the names of the weights that they update


@component_base
class LoRABackbone(Backbone):
    """A backbone that supports LoRA; `objectives.assemble` adds the matrices to the module that `build` returns."""

    adjustable: ClassVar[tuple[str, ...]] = ("lora_rank", "lora_alpha", "lora_layers")
    # A prefix that the module's layer names have and exported names lack; None if the names differ in any other way.
    prefix: ClassVar[str | None] = None

    lora_rank: int = param(0, help="LoRA rank; 0 disables LoRA and trains the whole backbone", ge=0)
    lora_alpha: float = param(16.0, help="LoRA α; the update is scaled by α/rank", gt=0)
    lora_layers: tuple[str, ...] = param(
        (), help='names of the linear layers to train with LoRA, such as ["query", "value"]; default: all linear layers'
    )

    @property
    def package(self) -> tuple[str, str] | None:
        """The package that LoRA needs and its pip requirement, ("peft", "atat-zoo[lora]"); None at rank 0."""
        return ("peft", "atat-zoo[lora]") if self.lora_rank else None

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if LoRA would freeze random weights or its keys have no effect; overrides must do so, too."""
        if not self.lora_rank and (self.lora_layers or self.lora_alpha != 16):
            yield Problem("backbone.lora_rank", "lora_layers and lora_alpha have no effect at rank 0; set it above 0")
        if self.lora_rank and experiment.init_from is None and not self.pretrained:
            text = "LoRA freezes the backbone, whose weights are random; set init_from to a run, or lora_rank to 0"
            yield Problem("backbone.lora_rank", text)


def adapt(module: nn.Module, spec: LoRABackbone) -> None:
    """Add the LoRA matrices to a backbone's module and freeze its other weights; do nothing at rank 0.

    Raises a `UserError` if peft is not installed, or if the module has no layer of a requested name.
    """
    if not spec.lora_rank:
        return
    if problems := lacking([spec]):
        raise UserError(problems[0])
    import peft

    layers = list(spec.lora_layers) or "all-linear"
    there = {name for name, layer in module.named_modules() if getattr(getattr(layer, "weight", None), "ndim", 0) == 2}
    for name in spec.lora_layers:
        if not any(f".{each}".endswith(f".{name}") for each in there):
            known = ", ".join(sorted({each.rpartition(".")[2] for each in there}))
            raise UserError(f"backbone.lora_layers: {spec.name!r} has no linear layer {name!r}; use any of {known}")
    settings = settings_of(spec, layers)
    try:
        with warnings.catch_warnings():
            # peft reads a name that transformers has renamed, and detects the orientation of GPT-2's weights by itself.
            warnings.simplefilter("ignore")
            peft.inject_adapter_in_model(settings, module)
    except ValueError as error:
        raise UserError(f"backbone.lora_layers: {str(error).splitlines()[0]}; choose different layers") from None
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()  # even if the other weights are in half precision, as peft does


def settings_of(spec: Any, layers: list[str] | str, **more: Any) -> Any:
    """Return a `peft.LoraConfig` for training these layers of a backbone; `more` are other settings of it."""
    import peft

    return peft.LoraConfig(r=spec.lora_rank, lora_alpha=spec.lora_alpha, target_modules=layers, **more)


def merge(module: nn.Module) -> None:
    """Merge the LoRA matrices into the weights, in place; a module without LoRA stays unchanged."""
    for name, layer in list(module.named_modules()):
        if hasattr(layer, "get_base_layer"):
            layer.merge()
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, layer.get_base_layer())


def of_base(objective: nn.Module) -> dict[str, str]:
    """Return a dict from the name of each frozen backbone weight to that without LoRA, in one order on all ranks."""
    names = [name for name, _ in objective.named_parameters() if name.startswith("backbone.")]
    return {name: plain for name in names if (plain := without_lora(name))}


def without_lora(name: str) -> str:
    """Return the name that a tensor has without LoRA, or an empty string for a LoRA matrix."""
    return "" if _ADDED in name else name.replace(_WITHIN, ".")


def with_base(own: Mapping[str, Tensor], base: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return the tensors `names` of a model with LoRA: its own tensors, and all others from the base model."""
    plain = {name: without_lora(name) for name in names}
    return {**{name: base[plain[name]] for name in plain if plain[name] in base}, **own}
