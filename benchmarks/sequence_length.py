"""Training steps of 4,096 tokens in bf16: 1,024 tokens per sequence / 256.

Both models have the n-gram prior, and the set-causal one decodes four streams, as in the study `sets_512`. The clock is
processor time, so other programs disturb little; run it with one thread. A step on 1,024 tokens per sequence may take
at most 1.3 times one on 256, whose attention needs a quarter of the products.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from atat_zoo.diffusion.ngram_prior import NGramPrior
from atat_zoo.experiment import load
from atat_zoo.registry import Context
from atat_zoo.training.memory import keep_freed_memory
from benchmarks.pairs import hold, interleave, options, report
from benchmarks.step_time import VOCABULARY, stepper

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS, STREAMS, BATCHES, LIMIT = 4096, 4, 30, 1.3
MODELS = {"mdlm": "mdlm", "set_causal": "sets"}


def step_of(model: str, length: int) -> Callable[[], None]:
    """Return a training step on sequences of `length` tokens."""
    rows = TOKENS // length
    chosen = [f"data.length={length}", f"train.batch_size={rows}", "train.precision=bf16"]
    chosen.append("backbone.ngram_prior=2")
    if model == "set_causal":
        chosen += [f"{table}.stride={length // STREAMS}" for table in ("position_sets", "sampler")]
    # Frequencies as in text, as in `step_time`.
    text = np.random.default_rng(0).zipf(1.2, (BATCHES * rows, length)) % VOCABULARY
    count = partial(NGramPrior.count, [text], VOCABULARY)
    context = Context(vocabulary_size=VOCABULARY, length=length, ngram_prior=count)
    return stepper(load(MODELS[model], chosen), context, torch.from_numpy(text))[1]


def main() -> None:
    """Print the ratios of step times in interleaved pairs, and fail if a limit is exceeded."""
    pairs, bars = options(pairs=8).pairs, []
    keep_freed_memory()
    for model in MODELS:
        step, other = (step_of(model, length) for length in (1024, 256))
        first, second = (f"{model}, {length:,} tokens" for length in (1024, 256))
        ratio = report(first, second, interleave(step, other, pairs, clock=time.process_time))
        bars.append((f"{first} / {second}", ratio, LIMIT))
    hold(bars)


if __name__ == "__main__":
    main()
