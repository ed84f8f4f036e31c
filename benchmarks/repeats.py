"""Text that repeats: perplexity of models that read a part of the State of the Union addresses once or several times.

All models have the same number of training steps, so the part is smaller the more often it is read. They have no n-gram
prior, which would count the part. Of the usual remedies, `autoregressive-regular` has dropout and more weight decay,
and `autoregressive-short` a third of the steps and readings, so that its learning rate has decayed before it overfits.
The perplexity is that of the claim half of the validation split: exact for autoregressive and set-causal models, the
any-order ELBO for masked diffusion. The best model of a run has the lowest perplexity on 64 sequences of the validation
split, every 25 steps; differences are between the best models, with 95 % CIs over sequences.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from atat_zoo.evaluation.results.format import change
from atat_zoo.evaluation.results.intervals import paired
from atat_zoo.generation.model import Model
from benchmarks.baselines import trained_model
from benchmarks.streams import claim_half, nats_of

if TYPE_CHECKING:
    import torch

STEPS, BATCH, LENGTH = 225, 64, 64
READINGS = (1, 4, 16)
COMMON = (
    *("schedule.use=wsd", "schedule.warmup_steps=20", "schedule.decay=0.5"),
    *("backbone.ngram_prior=0", "evaluation.samples=0", "evaluation.sequences=64"),
    *(f"train.steps={STEPS}", f"train.save_every={STEPS}", f"train.batch_size={BATCH}"),
    *("train.evaluate_every=25", "train.evaluate_sequences=64", "train.keep_best=true"),
)
BASE = "autoregressive"
REMEDIES = ("autoregressive-regular", "autoregressive-short")  # only for the largest number of readings
# By the name of the run; the others are compared with the first one.
ARMS = {
    BASE: ("baselines/autoregressive",),
    REMEDIES[0]: ("baselines/autoregressive", "backbone.dropout=0.1", "optimizer.weight_decay=0.1"),
    REMEDIES[1]: ("baselines/autoregressive", f"train.steps={STEPS // 3}"),
    "set-causal": ("sets", "objective.prompt_share=0", "objective.gap_share=0"),
    "masked-diffusion": ("mdlm",),
}


def settings(arm: str, readings: int, seed: int) -> list[str]:
    """Return the overrides of an arm's experiment."""
    return [*COMMON, *ARMS[arm][1:], f"data.sequences={STEPS * BATCH // readings}", f"seed={seed}"]


def measure(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nats of each sequence of the claim half, float64 [n], and its number of tokens, int64 [n]."""
    tokens, maskable = claim_half(model)
    return nats_of(model, tokens, maskable).sum(1), maskable.sum(1)


def main() -> None:
    """Train missing runs, and print the table."""
    parser = argparse.ArgumentParser(prog="repeats")
    parser.add_argument("--runs", type=Path, default=Path("runs/repeats"))
    parser.add_argument("--readings", type=int, nargs="+", default=READINGS)
    parser.add_argument("--seed", type=int, default=18)
    given, _ = parser.parse_known_args(sys.argv[2:])
    head = ["model", "readings", "different tokens", "perplexity of the last model", "of the best", "its step"]
    head += ["relative to one reading", f"relative to `{BASE}`"]
    print(f"| {' | '.join(head)} |\n{'| --- ' * len(head)}|")
    found: dict[tuple[str, int], torch.Tensor] = {}
    for readings, arm in itertools.product(given.readings, ARMS):
        if arm in REMEDIES and readings < max(READINGS):
            continue
        run = given.runs / f"{arm}-{readings}-seed{given.seed}"
        last = trained_model(run, ARMS[arm][0], *settings(arm, readings, given.seed))
        best = Model.from_run(run, step="best")
        (final, count), (nats, _) = measure(last), measure(best)
        found[arm, readings] = nats
        others = found.get((arm, given.readings[0]), nats), found[BASE, readings]
        differences = ["" if nats is other else change(paired(nats, other, count).to_table(), 1) for other in others]
        perplexities = [f"{math.exp(float(each.sum() / count.sum())):,.1f}" for each in (final, nats)]
        size = f"{STEPS * BATCH // readings * LENGTH:,}"
        cells = [f"`{arm}`", f"{readings * last.step / STEPS:.3g}", size, *perplexities, str(best.step), *differences]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
