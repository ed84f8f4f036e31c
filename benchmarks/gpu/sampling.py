"""The generation time of every shipped sampler with one set of weights, and the network's share of this time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from atat_zoo import Zoo
from atat_zoo.diffusion.precision import computes_in_bf16
from atat_zoo.diffusion.randomness import sequence_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gpu.measured import Found
    from benchmarks.gpu.setting import Setting

#: The experiments whose network samplers with a model of their own use; the other samplers use `mdlm`.
OF = {"learned_order": "adaptive_position", "speculative": "strided"}
BAR = 0.6  # the network's share of ancestral sampling


def samplers() -> list[tuple[str, str]]:
    """Return the named samplers that ship, each with the experiment whose network it uses."""
    zoo = Zoo.load()
    names = [name for name in zoo.names("sampler") if zoo.describe("sampler", name).distribution == "atat-zoo"]
    return [(name, OF.get(name, "mdlm")) for name in names]


def sampler(name: str, steps: int) -> Any:
    """Return a sampler, with this number of steps if it has a number of steps."""
    spec = Zoo.load().spec("sampler", name)
    if "tokens_per_step" in attrs.fields_dict(type(spec)) and hasattr(spec.tokens_per_step, "steps"):
        return attrs.evolve(spec, tokens_per_step=attrs.evolve(spec.tokens_per_step, steps=steps))
    # A sampler without a number of steps takes as many steps as tokens.
    return (
        attrs.evolve(spec, steps=steps) if getattr(spec, "steps", None) and not hasattr(spec, "block_sampler") else spec
    )


def denoisers(setting: Setting, recipe: Callable[..., Any], vocabulary: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return a dict from experiment to module for `samplers`, on the CPU and all with the same backbone."""
    made = {name: setting.network(recipe(name), vocabulary).to(dtype).eval() for name in ("mdlm", *OF.values())}
    for module in made.values():
        module.backbone = made["mdlm"].backbone
    return made


def measure(setting: Setting, found: Found) -> None:
    """Generate texts with each sampler, after one forward pass to warm up."""
    size = setting.size

    def recipe(name: str) -> Any:
        learned = ["objective.use=adaptive", "objective.bias=left_to_right", "sampler.use=learned_order"]
        strided = ["objective.use=strided_causal", "sampler.use=strided"]
        own = {"adaptive_position": learned, "strided": strided}.get(name, [])
        return setting.experiment("mdlm", f"data.length={size.text_length}", *own)

    modules = {}
    for name, module in denoisers(setting, recipe, size.vocabulary, torch.float32).items():
        modules[name] = setting.move(module)
    z = setting.move(torch.full((size.texts, size.text_length), size.vocabulary))
    keys = sequence_keys(0, "sample", setting.move(torch.arange(size.texts)))
    kind = torch.device(setting.device).type
    bf16 = computes_in_bf16("auto", setting.device)
    found.lines.append(f"{'sampler':24}{'evaluations':>12}{'seconds':>9}{'tokens/s':>11}{'in the network':>15}")
    for name, of in samplers():
        spec, module = sampler(name, size.sampling_steps), modules[of]
        with torch.autocast(kind, torch.bfloat16, enabled=bf16):
            one_step = attrs.evolve(spec, steps=1) if getattr(spec, "steps", None) else None
            if one_step is not None:
                one_step.sample(module.denoiser(), z, keys)
            seconds, share, made = timed(
                setting, module, lambda spec=spec, module=module: spec.sample(module.denoiser(), z, keys)
            )
        nfe = float(made.nfe.double().mean())
        found.lines.append(f"{name:24}{nfe:12.1f}{seconds:9.2f}{z.numel() / seconds:11,.0f}{share:15.1%}")
        if name == "ancestral":
            what = f"share of the time in the network, {size.texts} texts of {size.text_length} tokens by `ancestral`"
            found.row(what, f"≥ {BAR:.0%}", f"{share:.1%} of {seconds:.1f} s", share >= BAR)


def timed(setting: Setting, module: Any, work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return the seconds of some work, the share of backbone and head, and the result of the work."""
    spent, began = 0.0, 0.0

    def start(*_: Any) -> None:
        nonlocal began
        began = setting.synchronize()

    def stop(*_: Any) -> None:
        nonlocal spent
        spent += setting.synchronize() - began

    both = (module.backbone, module.backbone.head)
    handles = [part.register_forward_pre_hook(start) for part in both]
    handles += [part.register_forward_hook(stop) for part in both]
    whole = setting.synchronize()
    made = work()
    whole = setting.synchronize() - whole
    for handle in handles:
        handle.remove()
    return whole, spent / whole, made
