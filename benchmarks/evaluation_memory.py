"""The most memory that evaluating a batch of the small preset takes: 32 sequences of 1,024 of 50,257 tokens."""

from __future__ import annotations

import argparse

import torch

from atat_zoo.evaluation.measuring import measure
from atat_zoo.evaluation.scores import SCORES
from atat_zoo.experiment import load
from atat_zoo.model import assemble
from atat_zoo.registry import Context
from atat_zoo.training.memory import keep_freed_memory
from benchmarks.pairs import resident

VOCABULARY, BOUND = 50_257, 4 * 2**30


def main() -> None:
    """Print the peak of this process beside the bound of 4 GB."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--experiment", default="owt-small/importance")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    given, _ = parser.parse_known_args()
    keep_freed_memory()
    experiment = load(given.experiment, [f"data.length={given.length}"])
    module = assemble(experiment, Context(vocabulary_size=VOCABULARY, length=given.length))
    tokens = torch.arange(given.batch_size * given.length).view(given.batch_size, -1) * 7919 % VOCABULARY
    weights = sum(p.numel() for p in module.parameters())
    print(f"  {weights:,} parameters, {resident() / 2**20:,.0f} MiB before", flush=True)
    measure(
        module,
        tokens,
        torch.ones_like(tokens, dtype=torch.bool),
        torch.arange(given.batch_size),
        seed=0,
        draws=1,
        batch_size=given.batch_size,
        bound=experiment.evaluation.bound,
        scores=SCORES,
    )
    most = resident(peak=True)
    size = f"{given.batch_size} × {given.length} tokens at once"
    print(f"  {size}: at most {most / 2**20:,.0f} MiB, {most / BOUND:.2f} of 4 GiB")


if __name__ == "__main__":
    main()
