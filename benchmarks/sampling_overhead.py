"""The time that sampling adds to the network's forward passes: at most a fifth; a plain loop takes 3 times as long.

Ancestral sampling of a `tiny` backbone (8 × 512): 8 texts of 256 tokens, a vocabulary of 50,000, 128 steps. Each
measured step is timed from one forward pass to the next. In the same run, alternately before and after it, the bare
forward pass of that step is timed: the backbone on the same rows and the head at the same positions. At some steps, the
published loop (`benchmarks.plain_loop`) also takes its step. At all other steps, a stand-in replaces the network, which
makes no difference to the loop.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch

from atat_zoo import Zoo
from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.generation.samplers.published_samplers import AncestralSampler
from atat_zoo.registry import Context
from benchmarks import plain_loop
from benchmarks.pairs import report, seconds

V, L, B, STEPS = 50_000, 256, 8, 128


class Clocked(Denoiser):
    """A denoiser that runs and times the network at every `stride`-th forward pass."""

    mask_id = V

    def __init__(self, backbone: Any, stride: int, plain_every: int) -> None:
        self.backbone, self.stride, self.plain_every = backbone, stride, plain_every
        self.number = 0
        self.open: tuple[float, float, float] | None = None  # network seconds, return time, bare seconds
        self.pairs: list[tuple[float, float]] = []
        self.loop: list[float] = []
        self.plain: list[float] = []
        self.generator = torch.Generator().manual_seed(0)

    def denoise(self, tokens: torch.Tensor, where: Any) -> torch.Tensor:
        """Return log-probabilities, as the objectives do."""
        return self.backbone.head(self.backbone(tokens)[where]).float().log_softmax(-1)

    def bare(self, tokens: torch.Tensor, where: Any) -> None:
        self.backbone.head(self.backbone(tokens)[where])

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.backbone.head(self.backbone(tokens))

    def __call__(self, tokens: torch.Tensor, t: Any, where: Any) -> torch.Tensor:
        self.close()
        number, measured = self.number // self.stride, self.number % self.stride == 0
        self.number += 1
        if not measured:
            return torch.zeros(len(where[0]), V).log_softmax(-1)
        if number % self.plain_every == 0:
            z = tokens[torch.arange(B) % len(tokens)]
            now = 1 - (self.number - 1) / STEPS
            work = (self.logits, z, now, now - 1 / STEPS, V, self.generator)
            self.plain.append(seconds(lambda: plain_loop.step(*work)))
        before = seconds(lambda: self.bare(tokens, where)) if number % 2 else None
        start = time.perf_counter()
        found = self.denoise(tokens, where)
        spent = time.perf_counter() - start
        bare = seconds(lambda: self.bare(tokens, where)) if before is None else before
        self.open = (spent, time.perf_counter(), bare)
        return found

    def close(self) -> None:
        """End the timed step, which includes all work of the loop since the network returned."""
        if self.open is not None:
            spent, answered, bare = self.open
            self.loop.append(time.perf_counter() - answered)
            self.pairs.append((spent + self.loop[-1], bare))
            self.open = None


def measure(backbone: Any, bf16: bool, stride: int, plain_every: int) -> tuple[float, float]:
    """Return the time of a step over its bare forward pass, and the time of a plain-loop step over one of our steps."""
    denoiser = Clocked(backbone, stride, plain_every)
    tokens = torch.full((B, L), V)
    seeds = sequence_keys(0, "sample", torch.arange(B))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        denoiser.logits(tokens[:, :8])  # a warm-up pass, which casts the weights
        denoiser.bare(tokens, (torch.zeros(1).long(), torch.zeros(1).long()))
        made = AncestralSampler(steps=STEPS).sample(denoiser, tokens, seeds)
    denoiser.close()
    print(f"{'bf16' if bf16 else 'fp32'}: {denoiser.number} evaluations, {float(made.nfe.double().mean()):.1f} a text")
    overhead = report("a step of ancestral sampling", "the bare forward pass it makes", denoiser.pairs)
    print(f"  time of a step outside the network: median {1e3 * statistics.median(denoiser.loop):8.1f} ms")
    ours = statistics.mean(step for step, _ in denoiser.pairs) * denoiser.number
    plain = statistics.mean(denoiser.plain) * STEPS
    print(f"  ancestral sampling, 128 steps: {ours:8.1f} s\n  the plain loop, 128 steps:     {plain:8.1f} s")
    print(f"  ratio: {plain / ours:.2f}", flush=True)
    return overhead, plain / ours


def main() -> None:
    """Measure in fp32 and, if the CPU has instructions for it, in bf16; fail if a requirement is not met."""
    parser = argparse.ArgumentParser(prog="sampling_overhead")
    parser.add_argument("--stride", type=int, default=10, help="forward passes from one measured step to the next")
    parser.add_argument("--plain-every", type=int, default=4, help="measured steps from one plain step to the next")
    given, _ = parser.parse_known_args()
    context = Context(vocabulary_size=V, length=L, width=512)
    backbone = Zoo.load().build("backbone", {"use": "dit", "preset": "tiny"}, context).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in backbone.parameters():
        if parameter.ndim > 1:
            parameter.data = 0.03 * torch.randn(parameter.shape, generator=generator)
    met = True
    for bf16 in (False, True) if torch.cpu._is_avx512_bf16_supported() else (False,):
        overhead, gain = measure(backbone, bf16, given.stride, given.plain_every)
        met = met and overhead <= 1.2 and gain >= 3
    said = "met" if met else "NOT met"
    print(f"limits (at most 1.2 times the bare passes; plain loop at least 3 times as long): {said}")
    if not met:
        sys.exit(1)
