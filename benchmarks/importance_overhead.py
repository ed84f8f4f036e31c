"""What `transformer` + `importance` cost over `uniform`: parameters and step time, small preset, V = 50,257."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import torch

from atat_zoo.experiment import from_table
from atat_zoo.model import assemble
from atat_zoo.objectives import Batch
from atat_zoo.registry import Context
from atat_zoo.training.memory import keep_freed_memory
from benchmarks.pairs import interleave, report

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY = 50_257


def stepper(parts: dict[str, object], length: int, rows: int) -> tuple[Callable[[], None], int]:
    """Return one training step of an experiment with these parts, and its number of parameters."""
    table = {
        "name": "bench",
        "data": {"length": length},
        "backbone": {"preset": "small", "tied": True},
        "train": {"batch_size": rows},
        **parts,
    }
    experiment = from_table(table)
    context = Context(vocabulary_size=VOCABULARY, length=length)
    module = assemble(experiment, context).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    tokens = torch.arange(rows * length).reshape(rows, length) * 7919 % VOCABULARY
    bf16 = torch.cpu._is_avx512_bf16_supported()
    # Both sides see the same rows and times; a step costs more the more of its tokens are masked.
    index = torch.arange(rows)

    def step() -> None:
        batch = Batch(
            tokens=tokens,
            maskable=torch.ones_like(tokens, dtype=torch.bool),
            index=index,
            mean_maskable=torch.tensor(float(length)),
            progress=0.5,
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = module.loss(batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, sum(p.numel() for p in module.parameters())


def main() -> None:
    """Print the overhead in parameters, and the ratio of step times in interleaved pairs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--default-memory", action="store_true", help="leave the allocator as it is")
    given, _ = parser.parse_known_args()
    if not given.default_memory:
        keep_freed_memory()
    plain, fewer = stepper({}, given.length, given.rows)
    adaptive, more = stepper({"estimator": "transformer", "masking": "importance"}, given.length, given.rows)
    print(f"  parameters: {fewer:,} and {more:,}, {(more - fewer) / fewer:.2%} more (head tied to the embedding)")
    report("transformer + importance", "uniform", interleave(adaptive, plain, given.pairs))


if __name__ == "__main__":
    main()
