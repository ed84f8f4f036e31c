"""What compiling the backbone is worth: step time of `mdlm` at CPU size, compiled against eager."""

from __future__ import annotations

import argparse
import itertools
from typing import TYPE_CHECKING, Any

import attrs
import torch

from atat_zoo.experiment import load
from atat_zoo.modeling.diffusion.precision import computes_in_bf16
from atat_zoo.modeling.objectives import Batch, assemble
from atat_zoo.registry import Context
from atat_zoo.training.memory import compiles, keep_freed_memory
from atat_zoo.training.trainer import compile_objective
from benchmarks.pairs import interleave, report

if TYPE_CHECKING:
    from collections.abc import Callable

    from atat_zoo.experiment import Experiment


def stepper(
    experiment: Experiment,
    context: Context,
    text: torch.Tensor | None = None,
    move: Callable[[Any], Any] | None = None,
) -> tuple[Any, Callable[[], None]]:
    """Return the objective of an experiment, and what makes its next training step, as one would write it.

    All steps have the first rows of a text [N, L]; each draws its own rates. `move` takes a module or a tensor to the
    context's device, where torch does not know that one.
    """
    move = move or (lambda value: value.to(context.device))
    spec, (rows, length) = experiment.train, (experiment.train.batch_size, experiment.data.length)
    compiled = compiles(spec.compile, context.device)
    module: Any = move(assemble(experiment, attrs.evolve(context, compiled=compiled))).train()
    if compiled:
        compile_objective(module)
    optimizer = experiment.parts["optimizer"].build(module)
    if text is None:
        text = torch.randint(0, context.vocabulary_size, (rows, length), generator=torch.Generator().manual_seed(0))
    tokens, number = move(text[:rows]), itertools.count()
    kind = torch.device(context.device).type
    bf16 = computes_in_bf16(spec.precision, context.device)

    def step() -> None:
        batch = Batch(
            tokens=tokens,
            maskable=torch.ones_like(tokens, dtype=torch.bool),
            index=next(number) * rows + torch.arange(rows, device=tokens.device),
            mean_maskable=torch.tensor(float(length), device=tokens.device),
            progress=0.5,
        )
        with torch.autocast(kind, torch.bfloat16, enabled=bf16):
            loss = module.loss(batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return module, step


def main() -> None:
    """Print the ratio of step times in interleaved pairs; the first steps, which compile, do not count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=20)
    given, _ = parser.parse_known_args()
    keep_freed_memory()
    steps = {}
    for compiled in ("true", "false"):
        experiment = load("baselines/mdlm", [f"train.compile={compiled}"])
        context = Context(vocabulary_size=2048, length=experiment.data.length)
        steps[compiled] = stepper(experiment, context)[1]
    report("compiled", "eager", interleave(steps["true"], steps["false"], given.pairs))
