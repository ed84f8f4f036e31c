"""Head and loss in chunks, 50,257 tokens: peak memory relative to all logits, and time relative to no chunks."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from atat_zoo.diffusion.chunks import rows_for, weighted_sum
from atat_zoo.modeling.objectives.denoising import cross_entropy
from atat_zoo.training.memory import keep_freed_memory
from benchmarks.pairs import alone, forget_peak, hold, interleave, note, report, resident

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY, WIDTH = 50_257, 768
MEMORY, TIME = 0.35, 1.05  # the limits of both ratios
# `all` has logits at every position, twice as many as are masked; `masked` only at masked ones, without chunks.
KINDS = ("all", "masked", "chunks")


def stepper(kind: str, positions: int) -> Callable[[], None]:
    """Return a function that runs one forward and backward pass of the head and its weighted loss."""
    torch.manual_seed(0)
    weight = (torch.randn(VOCABULARY, WIDTH) / WIDTH**0.5).requires_grad_()
    rows = positions * (2 if kind == "all" else 1)
    hidden = torch.randn(rows, WIDTH, requires_grad=True)
    x, of_place = torch.randint(0, VOCABULARY, (rows,)), torch.rand(rows)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    def losses(hidden: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return cross_entropy(F.linear(hidden, weight).float(), x, hidden)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            if kind == "chunks":
                most = rows_for(VOCABULARY, hidden.device)
                loss, _ = weighted_sum(losses, most, of_place, [weight], hidden, x)
            else:
                loss = (of_place * losses(hidden, x)["loss"]).sum()
        (loss / rows).backward()
        weight.grad = hidden.grad = None

    return step


def added(kind: str, positions: int) -> int:
    """Return the maximum number of bytes that a pass adds."""
    step = stepper(kind, positions)
    before = resident()
    forget_peak()
    step()
    return resident(peak=True) - before


def main() -> None:
    """Print both ratios: memory of one pass, each in its own process, and time in interleaved pairs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--positions", type=int, default=2048, help="masked positions")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--busy", action="store_true", help="measure processor time if other programs use the cores")
    given, _ = parser.parse_known_args()
    more = {kind: alone(added, kind, given.positions) for kind in KINDS}
    for kind, size in more.items():
        print(f"  {kind:8s} {size / 2**20:8.0f} MiB added at most")
    less = more["chunks"] / more["all"]
    print(f"  peak memory, chunks / all logits: {less:.2f}", flush=True)
    note("peak memory, head in chunks / all logits", [less])
    keep_freed_memory()  # as in training
    cut, whole = stepper("chunks", given.positions), stepper("masked", given.positions)
    clock = time.process_time if given.busy else time.perf_counter
    timed = interleave(cut, whole, given.pairs, warmup=1, clock=clock)
    longer = report("head in chunks", "masked only, no chunks", timed)
    hold([("peak memory, chunks / all logits,", less, MEMORY), ("time, chunks / no chunks,", longer, TIME)])


if __name__ == "__main__":
    main()
