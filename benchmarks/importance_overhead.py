"""Cost of ATAT and its components relative to MDLM, small preset: time, parameters, peak memory, inference."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import torch

from atat_zoo.experiment import load
from atat_zoo.registry import Context
from atat_zoo.training.memory import keep_freed_memory
from benchmarks import step_time
from benchmarks.pairs import alone, forget_peak, hold, interleave, note, report, resident

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY = 50_257
TIME, PARAMETERS, MEMORY = 1.06, 1.02, 1.02  # the limits of the ratios
BASE, OTHERS = "owt-small/mdlm", ("owt-small/atat", "owt-small/bell", "owt-small/importance")


def stepper(name: str, vocabulary: int, length: int, rows: int) -> tuple[Any, Callable[[], None]]:
    """Return the objective of a shipped experiment with overrides, and a function that takes its next training step."""
    sizes = {"data.length": length, "data.lanes": rows, "train.batch_size": rows, "train.microbatch_size": rows}
    name, *overrides = name.split()
    experiment = load(name, [*overrides, *(f"{key}={size}" for key, size in sizes.items())])
    # All experiments see the same rows at the same step.
    tokens = torch.arange(rows * length).reshape(rows, length) * 7919 % vocabulary
    return step_time.stepper(experiment, Context(vocabulary_size=vocabulary, length=length), tokens)


def reader(module: Any, vocabulary: int, length: int, rows: int) -> Callable[[], None]:
    """Return a function that reads half-masked texts as a sampler does: predictions and, if available, importance."""
    denoiser = module.eval().denoiser()
    masked = torch.arange(length).expand(rows, -1) % 2 == 0
    tokens = torch.where(masked, denoiser.mask_id, torch.arange(length) * 7919 % vocabulary)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    @torch.inference_mode()
    def read() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            denoiser(tokens, None, masked)
            denoiser.importance(tokens, masked)

    return read


def peak(name: str, vocabulary: int, length: int, rows: int, steps: int) -> int:
    """Return the peak number of bytes in memory during some training steps after the first one.

    Freed memory is returned to the system: if it were kept, pieces of different sizes at every step would change the
    result by a tenth.
    """
    _, step = stepper(name, vocabulary, length, rows)
    step()
    forget_peak()
    for _ in range(steps):
        step()
    return resident(peak=True)


def main() -> None:
    """Print the parameters and peak memory of each experiment, and the ratios of step times in interleaved pairs."""
    bars = []
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", default=BASE, help="experiment that the others are compared with")
    parser.add_argument("--experiments", nargs="+", default=OTHERS)
    parser.add_argument("--vocab-size", type=int, default=VOCABULARY)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=20, help="number of pairs; 0 skips the times")
    parser.add_argument("--steps", type=int, default=4, help="steps in which memory is measured; 0 skips memory")
    parser.add_argument("--busy", action="store_true", help="measure processor time if other programs use the cores")
    parser.add_argument("--default-memory", action="store_true", help="do not change the allocator's settings")
    given, _ = parser.parse_known_args()
    clock = time.process_time if given.busy else time.perf_counter
    sizes, base = (given.vocab_size, given.length, given.rows), given.base
    if given.steps:
        peaks = {name: alone(peak, name, *sizes, given.steps) for name in (base, *given.experiments)}
        for name, most in peaks.items():
            ratio = most / peaks[base]
            print(f"  {name}: at most {most / 2**20:,.0f} MiB, ratio of peak memory {ratio:.4f}", flush=True)
            if name != base:
                note(f"{name}, peak memory / {base}", [ratio])
                bars.append((f"{name}, peak memory,", ratio, MEMORY))
    if not given.pairs:
        hold(bars)
        return
    if not given.default_memory:
        keep_freed_memory()
    for name in given.experiments:
        # Both start from step 0, and use the same rates and masks at the same step.
        (plain, base_step), (module, step) = stepper(base, *sizes), stepper(name, *sizes)
        fewer, more = (sum(p.numel() for p in each.parameters()) for each in (plain, module))
        print(f"  {name}: {more:,} parameters, ratio to {fewer:,} {more / fewer:.4f}", flush=True)
        note(f"{name}, parameters / {base}", [more / fewer])
        longer = report(f"{name}, a step", base, interleave(step, base_step, given.pairs, clock=clock, warmup=1))
        bars += [(f"{name}, parameters,", more / fewer, PARAMETERS), (f"{name}, a step,", longer, TIME)]
        read = reader(module, *sizes), reader(plain, *sizes)
        report(f"{name}, inference", base, interleave(*read, given.pairs, clock=clock, warmup=1))
        del plain, base_step, module, step, read
    hold(bars)


if __name__ == "__main__":
    main()
