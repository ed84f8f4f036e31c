"""How much of a training step the stream takes: seconds to load a batch over those to train on it, at CPU size."""

from __future__ import annotations

import argparse

from atat_zoo.data import manifest
from atat_zoo.data.build import build
from atat_zoo.data.stream import TokenStream, train_loader
from atat_zoo.experiment import load
from atat_zoo.registry import Context
from atat_zoo.training.memory import keep_freed_memory
from benchmarks.compiled import stepper
from benchmarks.pairs import interleave, report


def main() -> None:
    """Print the ratio in interleaved pairs, without workers: with them, loading and training overlap."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=20)
    given, _ = parser.parse_known_args()
    keep_freed_memory()
    experiment = load("baselines/mdlm")
    folder = build(experiment)
    stream = TokenStream(
        folder, seed=experiment.seed, lanes=experiment.data.lanes, batch_size=experiment.train.batch_size
    )
    batches = iter(train_loader(stream, workers=0))
    context = Context(vocabulary_size=manifest.load(folder).vocabulary_size, length=experiment.data.length)
    _, step = stepper(experiment, context)
    report("a batch of the stream", "a step", interleave(lambda: next(batches), step, given.pairs))
