"""Plain training steps without Composer: their time and its lower bound, and their memory and its formula."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.profiler import profile

from atat_zoo.registry import Context
from atat_zoo.training import cost
from atat_zoo.training.profiling import activities, operations
from benchmarks import roofline
from benchmarks.step_time import stepper

if TYPE_CHECKING:
    from collections.abc import Callable

    from atat_zoo.experiment import Experiment
    from benchmarks.gpu.measured import Found
    from benchmarks.gpu.setting import Setting

GROUPS, PROFILED, KERNELS = 5, 3, 10
#: Largest relative difference of peak memory from the formula.
MEMORY = 0.2


def step_of(setting: Setting, experiment: Experiment) -> tuple[Any, Callable[[], None]]:
    """Return the objective of an experiment, and a function that takes its next step on random tokens."""
    context = Context(vocabulary_size=setting.size.vocabulary, length=experiment.data.length, device=setting.device)
    return stepper(experiment, context, move=setting.move)


def seconds_of(setting: Setting, step: Callable[[], None]) -> float:
    """Return the median seconds of a step; the device is synchronized after each group of steps, as in training."""
    each = max(1, (setting.size.steps - setting.size.warm) // GROUPS)
    for _ in range(max(2, setting.size.warm // 4)):
        step()
    times = []
    for _ in range(GROUPS):
        start = setting.synchronize()
        for _ in range(each):
            step()
        times.append((setting.synchronize() - start) / each)
    return statistics.median(times)


def backend(name: str) -> Any:
    """Return a context in which torch compiles with this backend, including modules."""
    compile = torch.compile
    return mock.patch.object(torch, "compile", lambda model, **options: compile(model, **options | {"backend": name}))


def profiled(setting: Setting, step: Callable[[], None]) -> list[str]:
    """Return lines that list the operations that take the most time in a step."""
    with profile(activities=activities(setting.gpu)) as profiler:
        for _ in range(PROFILED):
            step()
        setting.synchronize()
    found = operations(profiler, setting.gpu)
    whole = sum(seconds for _, seconds, _ in found) or 1.0
    return [
        f"{1e3 * seconds / PROFILED:8.2f} ms {seconds / whole:6.1%} {calls / PROFILED:6.0f} × {name[:80]}"
        for name, seconds, calls in found[:KERNELS]
    ]


def predicted(setting: Setting, compiled: bool) -> float | None:
    """Return the lower bound of `benchmarks.roofline` on the seconds of a step, or None for an unknown GPU."""
    if setting.gpu_name not in roofline.BANDWIDTHS:
        return None
    size = setting.size
    overrides = tuple(word for word in size.overrides if word.startswith("backbone."))
    of = {"rows": size.rows, "length": size.length, "vocabulary_size": size.vocabulary}
    work, *_ = roofline.Step(overrides=overrides, compiled=compiled, **of).work()
    return sum(map(roofline.Device.named(setting.gpu_name).seconds, work))


def measure(setting: Setting, found: Found) -> None:
    """Time a step of `mdlm`, compiled and eager, and list its main operations."""
    for how in ("compiled", "eager"):
        with backend(setting.size.backend):
            module, step = step_of(
                setting, setting.experiment("mdlm", f"train.compile={str(how == 'compiled').lower()}")
            )
            seconds = seconds_of(setting, step)
            lines = profiled(setting, step)
        found.figures[how] = seconds
        rate = setting.size.rows * setting.size.length / seconds
        found.row(f"a step of `mdlm`, {how}", "", f"{1e3 * seconds:.1f} ms, {rate:,.0f} tokens/s")
        found.lines += [f"{how}: the longest operations of a step", *lines]
        del module, step
        setting.tidy()
    for how in ("compiled", "eager"):
        bound = predicted(setting, how == "compiled")
        seen = "this GPU's bandwidth is unknown"
        if bound is not None:
            seen = f"{1e3 * bound:.1f} ms, {bound / found.figures[how]:.0%} of the measured time"
        found.row(f"`python -m benchmarks roofline`, a step {how}, on {setting.gpu_name}", "", seen)


def memory(setting: Setting, found: Found) -> None:
    """Compare the peak memory of a step with the formula of `benchmarks.scale`."""
    size = setting.size
    for how in ("compiled", "eager"):
        experiment = setting.experiment("mdlm", f"train.compile={str(how == 'compiled').lower()}")
        network: Any = experiment.parts["backbone"]
        kept = cost.state(network.weights(size.vocabulary))
        by_formula = sum(kept.values()) - kept["EMA"]  # this step has no EMA
        by_formula += cost.casts(network, size.vocabulary)
        compiled, masked = how == "compiled", size.rows * size.length // 2
        by_formula += cost.activations(network, size.rows, size.length, compiled=compiled)
        by_formula += cost.head(network, size.vocabulary, masked, compiled=compiled)
        if setting.gpu:
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        with backend(size.backend):
            module, step = step_of(setting, experiment)
            for _ in range(4):  # from the second step on, the optimizer has its moments
                step()
        setting.synchronize()
        what, expected = f"peak memory, {how}, relative to the formula", f"{by_formula / 1e9:.2f} GB"
        if setting.gpu:
            peak = torch.cuda.max_memory_allocated() - before
            met = abs(peak / by_formula - 1) <= MEMORY
            found.row(what, f"± {MEMORY:.0%} of {expected}", f"{peak / 1e9:.2f} GB", met)
        else:
            found.row(what, f"± {MEMORY:.0%} of {expected}", "not measured without a GPU")
        del module, step
        setting.tidy()


def objectives(setting: Setting, found: Found) -> None:
    """Time a step of `sets` and `block` relative to `mdlm` on the same rows, with each form of attention mask."""
    recipes = {
        "mdlm": ("mdlm", ()),
        "sets": ("sets", ()),
        "block": ("mdlm", ("objective.use=block", "objective.block_size=16", "sampler.use=left_to_right")),
    }
    base = 0.0
    for name, (variant, more) in recipes.items():
        for how in ("",) if name == "mdlm" else (", FlexAttention", ", dense mask"):
            with backend(setting.size.backend):
                module, step = step_of(setting, setting.experiment(variant, *more))
                in_blocks = module.context.compiled and module.backbone.takes_block_masks
                if "Flex" in how and not in_blocks:
                    found.row(f"a step of `{name}`{how}", "", "not compiled here")
                    continue
                module.backbone.takes_block_masks = "Flex" in how
                seconds = seconds_of(setting, step)
            del module, step
            setting.tidy()
            base = base or seconds
            seen = f"{1e3 * seconds:.1f} ms, {seconds / base:.2f} times the step of `mdlm`"
            found.row(f"a step of `{name}`{how}", "", seen)
