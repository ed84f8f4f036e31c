"""ATAT and importance against MDLM, as shipped, small preset, V = 50,257: time, parameters, peak memory, inference."""

from __future__ import annotations

import argparse
import itertools
import time
from typing import TYPE_CHECKING, Any

import torch

from atat_zoo.experiment import load
from atat_zoo.model import assemble
from atat_zoo.objectives import Batch
from atat_zoo.registry import Context
from atat_zoo.training.memory import keep_freed_memory
from benchmarks.pairs import alone, forget_peak, interleave, report, resident

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY = 50_257
BASE, OTHERS = "owt-small/mdlm", ("owt-small/atat", "owt-small/importance")


def stepper(name: str, length: int, rows: int) -> tuple[Any, Callable[[], None]]:
    """Return the objective of a shipped experiment, and a function that makes its next training step."""
    sizes = {"data.length": length, "data.lanes": rows, "train.batch_size": rows, "train.microbatch_size": rows}
    experiment = load(name, [f"{key}={size}" for key, size in sizes.items()])
    module = assemble(experiment, Context(vocabulary_size=VOCABULARY, length=length)).train()
    optimizer = experiment.parts["optimizer"].build(module)
    tokens = torch.arange(rows * length).reshape(rows, length) * 7919 % VOCABULARY
    bf16 = torch.cpu._is_avx512_bf16_supported()
    number = itertools.count()

    def step() -> None:
        # All experiments see the same rows at the same step, but each draws its own rates, as it would.
        batch = Batch(
            tokens=tokens,
            maskable=torch.ones_like(tokens, dtype=torch.bool),
            index=next(number) * rows + torch.arange(rows),
            mean_maskable=torch.tensor(float(length)),
            progress=0.5,
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = module.loss(batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return module, step


def reader(module: Any, length: int, rows: int) -> Callable[[], None]:
    """Return a function that reads half-masked texts as a sampler does: predictions, and importance where there is."""
    denoiser = module.eval().denoiser()
    masked = torch.arange(length).expand(rows, -1) % 2 == 0
    tokens = torch.where(masked, denoiser.mask_id, torch.arange(length) * 7919 % VOCABULARY)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    @torch.inference_mode()
    def read() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            denoiser(tokens, None, masked)
            denoiser.importance(tokens, masked)

    return read


def peak(name: str, length: int, rows: int, steps: int) -> int:
    """Return the most bytes in memory in some training steps after the first."""
    keep_freed_memory()
    _, step = stepper(name, length, rows)
    step()
    forget_peak()
    for _ in range(steps):
        step()
    return resident(peak=True)


def main() -> None:
    """Print parameters and peak memory of each, and the ratios of step times in interleaved pairs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--experiments", nargs="+", default=OTHERS, help=f"to compare with {BASE}")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=20, help="0 for no times")
    parser.add_argument("--steps", type=int, default=4, help="in which memory is measured; 0 for no memory")
    parser.add_argument("--busy", action="store_true", help="count processor time: other programs take the cores")
    parser.add_argument("--default-memory", action="store_true", help="leave the allocator as it is")
    given, _ = parser.parse_known_args()
    clock = time.process_time if given.busy else time.perf_counter
    sizes = (given.length, given.rows)
    if given.steps:
        peaks = {name: alone(peak, name, *sizes, given.steps) for name in (BASE, *given.experiments)}
        for name, most in peaks.items():
            ratio = most / peaks[BASE]
            print(f"  {name}: at most {most / 2**20:,.0f} MiB, ratio of peak memory {ratio:.4f}", flush=True)
    if not given.pairs:
        return
    if not given.default_memory:
        keep_freed_memory()
    plain, base_step = stepper(BASE, *sizes)
    fewer = sum(p.numel() for p in plain.parameters())
    for name in given.experiments:
        module, step = stepper(name, *sizes)
        more = sum(p.numel() for p in module.parameters())
        print(f"  {name}: {more:,} parameters, ratio to {fewer:,} {more / fewer:.4f}", flush=True)
        report(f"{name}, a step", BASE, interleave(step, base_step, given.pairs, clock=clock, warmup=1))
        read = reader(module, *sizes), reader(plain, *sizes)
        report(f"{name}, inference", BASE, interleave(*read, given.pairs, clock=clock, warmup=1))
        plain.train()
        del module, step, read


if __name__ == "__main__":
    main()
