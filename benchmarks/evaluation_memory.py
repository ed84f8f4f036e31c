"""The most memory that evaluating a batch of the small preset takes: 32 sequences of 1,024 of 50,257 tokens."""

from __future__ import annotations

import argparse

import attrs
import torch

from atat_zoo.evaluation.compare import SCORES
from atat_zoo.evaluation.likelihood import measure
from atat_zoo.experiment import load
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from atat_zoo.training.memory import keep_freed_memory
from benchmarks.pairs import alone, hold, note, resident

VOCABULARY, BOUND = 50_257, 4 * 2**30


def peak(name: str, rows: int, length: int) -> int:
    """Return the most bytes in memory of a process that evaluates a batch of an experiment's."""
    keep_freed_memory()
    experiment = load(name, [f"data.length={length}"])
    module = assemble(experiment, Context(vocabulary_size=VOCABULARY, length=length))
    tokens = torch.arange(rows * length).view(rows, -1) * 7919 % VOCABULARY
    weights = sum(p.numel() for p in module.parameters())
    print(f"  {weights:,} parameters, {resident() / 2**20:,.0f} MiB before", flush=True)
    measure(
        module,
        tokens,
        torch.ones_like(tokens, dtype=torch.bool),
        attrs.evolve(experiment.evaluation, draws=1, batch_size=rows),
        seed=0,
        scores=SCORES,
    )
    return resident(peak=True)


def main() -> None:
    """Print the peak of a process of its own beside the bound of 4 GB."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--experiment", default="owt-small/importance")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    given, _ = parser.parse_known_args()
    most = alone(peak, given.experiment, given.batch_size, given.length)
    size = f"{given.batch_size} × {given.length} tokens at once"
    print(f"  {size}: at most {most / 2**20:,.0f} MiB, {most / BOUND:.2f} of 4 GiB")
    note(f"evaluation of {given.experiment}, {size} / 4 GiB", [most / BOUND])
    hold([(f"evaluation of {given.experiment}, {size}, in 4 GiB,", most / BOUND, 1.0)])


if __name__ == "__main__":
    main()
