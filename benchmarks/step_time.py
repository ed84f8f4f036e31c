"""Step time of `mdlm` at CPU size: compiled / eager, with / without n-gram prior, and loading a batch / a step."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch

from atat_zoo.data import shard_manifest
from atat_zoo.data.build import build
from atat_zoo.data.stream import TokenStream, train_loader
from atat_zoo.diffusion.ngram_prior import NGramPrior
from atat_zoo.diffusion.precision import computes_in_bf16
from atat_zoo.experiment import load
from atat_zoo.modeling.objectives import Batch, assemble
from atat_zoo.registry import Context
from atat_zoo.training.memory import compiles, keep_freed_memory
from atat_zoo.training.trainer import compile_objective
from benchmarks.pairs import interleave, options, report

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from atat_zoo.experiment import Experiment

VOCABULARY, SEQUENCES = 2048, 20_000


def stepper(
    experiment: Experiment, context: Context, text: torch.Tensor | None = None, move: Callable[[Any], Any] | None = None
) -> tuple[Any, Callable[[], None]]:
    """Return the objective of an experiment, and a function that takes its next step in a plain training loop.

    All steps use the first rows of a text, [N, L]; each draws its own mask rates. `move` moves a module or a tensor to
    the context's device if torch does not know that device.
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


def step_with(reach: int, text: NDArray[np.int64]) -> Callable[[], None]:
    """Return a training step with an n-gram prior that counts `reach` neighbours on either side."""
    experiment = load("mdlm", [f"backbone.ngram_prior={reach}"])
    count = partial(NGramPrior.count, [text], VOCABULARY)
    context = Context(vocabulary_size=VOCABULARY, length=experiment.data.length, ngram_prior=count)
    return stepper(experiment, context, torch.from_numpy(text))[1]


def main() -> None:
    """Print the ratios of step times in interleaved pairs; the first steps, which compile, are not counted."""
    pairs = options(pairs=20).pairs
    keep_freed_memory()
    steps = {}
    for compiled in ("true", "false"):
        experiment = load("baselines/mdlm", [f"train.compile={compiled}"])
        context = Context(vocabulary_size=VOCABULARY, length=experiment.data.length)
        steps[compiled] = stepper(experiment, context)[1]
    report("compiled", "eager", interleave(steps["true"], steps["false"], pairs))
    # Frequencies as in text; which words are adjacent does not matter here.
    text = np.random.default_rng(0).zipf(1.2, (SEQUENCES, 64)) % VOCABULARY
    report("with counts", "without", interleave(step_with(2, text), step_with(0, text), pairs))
    # Without workers, because with workers loading and training overlap.
    experiment = load("baselines/mdlm")
    folder, spec = build(experiment), experiment.train
    stream = TokenStream(folder, seed=experiment.seed, lanes=experiment.data.lanes, batch_size=spec.batch_size)
    batches = iter(train_loader(stream, workers=0))
    context = Context(vocabulary_size=shard_manifest.load(folder).vocabulary_size, length=experiment.data.length)
    _, step = stepper(experiment, context)
    report("a batch of the stream", "a step", interleave(lambda: next(batches), step, pairs))
