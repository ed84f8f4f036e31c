"""The numbers of tokens per step of a masked diffusion model in random order: perplexity in 8, 16 and 32 steps.

Three MDLMs are trained on the State of the Union addresses without an n-gram prior. The perplexity is the sampler's
own (policy bound) on sequences of the claim half. The optimal numbers come from the model's loss by mask rate; no pace
reads predictions. Differences are paired by sequence and order, with 95 % CIs over seeds and sequences.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import torch

from atat_zoo.evaluation.results.format import change
from atat_zoo.evaluation.results.intervals import paired
from atat_zoo.generation.model import Model
from atat_zoo.studies.differences import difference, shown
from benchmarks.baselines import atat, trained_model

EXPERIMENT, SETTINGS = "cpu/mdlm", ("backbone.ngram_prior=0", "evaluation.samples=0")
PACES = ("fixed", "cosine", "binomial", "optimal")


def measure(run: Path, steps: int, sequences: int, orders: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the nats of each sequence by pace, float64 [n], and its number of tokens, int64 [n]."""
    from atat_zoo.data.build import build
    from atat_zoo.evaluation.policy import measure_policy
    from atat_zoo.registry import Zoo
    from atat_zoo.studies.run_measurement import text_of

    model, nats = Model.from_run(run), {}
    _, tokens, maskable = text_of(build(model.experiment), "claim", sequences)
    for pace in PACES:
        table: dict[str, Any] = {"use": "combination", "order": "random"}
        sampler = Zoo.load().spec("sampler", table | {"tokens_per_step": {"use": pace, "steps": steps}})
        found = measure_policy(model.text_generator("fp32"), sampler, tokens, maskable, seed=0, orders=orders)
        nats[pace] = found.nats
    return nats, maskable.sum(1)


def row(measured: list[dict[str, torch.Tensor]], count: torch.Tensor, pace: str) -> list[str]:
    """Return the perplexity of a pace by seed, and its difference from the same number of tokens in every step."""
    values = ", ".join(f"{math.exp(float(nats[pace].sum() / count.sum())):.1f}" for nats in measured)
    if pace == PACES[0]:
        return [values, ""]
    each = [paired(nats[pace], nats[PACES[0]], count) for nats in measured]
    mean = {name: torch.stack([nats[name] for nats in measured]).mean(0) for name in (pace, PACES[0])}
    return [values, change(shown(difference(each, paired(mean[pace], mean[PACES[0]], count))), 1)]


def main() -> None:
    """Train missing runs, measure the loss by mask rate where it is missing, and print the table."""
    parser = argparse.ArgumentParser(prog="paces")
    parser.add_argument("--runs", type=Path, default=Path("runs/paces"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[18, 19, 20])
    parser.add_argument("--steps", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--orders", type=int, default=2)
    given, _ = parser.parse_known_args(sys.argv[2:])
    runs = [given.runs / f"mdlm-seed{seed}" for seed in given.seeds]
    for run, seed in zip(runs, given.seeds, strict=True):
        if trained_model(run, EXPERIMENT, *SETTINGS, f"seed={seed}").module.loss_by_mask_rate is None:
            atat("eval", str(run))
    print("| steps | tokens per step | perplexity (sampler) by seed | relative to `fixed` |")
    print("| --- | --- | --- | --- |")
    for steps in given.steps:
        found = [measure(run, steps, given.sequences, given.orders) for run in runs]
        for pace in PACES:
            cells = row([nats for nats, _ in found], found[0][1], pace)
            print(f"| {steps} | `{pace}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
