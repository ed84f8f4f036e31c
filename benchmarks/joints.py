"""Text where streams meet, and the time of K streams, with the models of the study `sets_512`.

A set-causal model that decodes K streams of L/K tokens side by side begins a stream without its left context; a joint
is where this beginning meets the end of the previous stream. The first table has the NLL that an autoregressive judge,
trained with a different seed, gives the 8 tokens before and after joints, minus its NLL of the text's other tokens, for
generated and held-out text at the same places. The second table has the processor time of a training step and of
generation, relative to the autoregressive model, with one thread, in turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from atat_zoo.diffusion.ngram_prior import NGramPrior
from atat_zoo.evaluation.results.intervals import interval, resampled
from atat_zoo.generation.model import Model
from atat_zoo.registry import Context
from benchmarks.pairs import interleave, quartiles
from benchmarks.step_time import stepper
from benchmarks.streams import BASE, STREAMS, claim_half, nats_of
from benchmarks.strided import TOKEN_BY_TOKEN

if TYPE_CHECKING:
    from atat_zoo.generation.text_generator import Generation

ARMS = ("two_whole", "four_whole", "eight_whole")
NEAR = 8  # tokens on either side of a joint


def around(nats: torch.Tensor, streams: int) -> list[str]:
    """Return how much more the tokens before and after joints cost than the others, [n, L], with 95 % CIs over texts.

    The first and the last 8 tokens of a text, which are at no joint, are not among the others either.
    """
    length = nats.shape[1] // streams
    offsets = (torch.arange(nats.shape[1]) + NEAR) % length - NEAR  # from the next or last multiple of L/K
    inner = (torch.arange(nats.shape[1]) >= NEAR) & (torch.arange(nats.shape[1]) < nats.shape[1] - NEAR)
    parts = [inner & (offsets < 0), inner & (offsets >= 0) & (offsets < NEAR), inner & (offsets >= NEAR)]
    means = torch.stack([nats[:, part].mean(1) for part in parts], 1).double()
    drawn = resampled(means, purpose="joints", seed=0) / len(means)
    found = []
    for side in (0, 1):
        value, samples = ((each[..., side] - each[..., 2]) for each in (means.mean(0), drawn))
        one = interval(float(value), samples)
        found.append(f"{one.value:+.2f} [{one.low:+.2f}, {one.high:+.2f}]")
    return found


def writer(model: Model, arm: str) -> partial[Generation]:
    """Return a function that generates a number of texts in the order of the arm, and caches keys and values."""
    sampler = TOKEN_BY_TOKEN if arm == BASE else None
    return partial(model.sample, seed=0, batch_size=16, sampler=sampler)


def joints(folder: Path, texts: int) -> list[str]:
    """Return the rows of the first table."""
    judge = Model.from_run(folder / f"{BASE}-seed19")
    tokens, maskable = claim_half(judge)
    own = {"held-out": nats_of(judge, tokens, maskable)}
    for arm in (BASE, *ARMS):
        model = Model.from_run(folder / f"{arm}-seed18")
        written = writer(model, arm)(texts).sample.tokens
        own[arm] = nats_of(judge, written, torch.ones_like(written, dtype=torch.bool))
    rows = []
    for arm in ARMS:
        for source in ("held-out", BASE, arm):
            cells = [str(STREAMS[arm]), source if source == "held-out" else f"`{source}`", f"{own[source].mean():.2f}"]
            rows.append(f"| {' | '.join([*cells, *around(own[source], STREAMS[arm])])} |")
    return rows


def times(folder: Path, pairs: int, many: int) -> list[str]:
    """Return the rows of the second table."""
    models = {arm: Model.from_run(folder / f"{arm}-seed18") for arm in (BASE, *ARMS)}
    tokens, _ = claim_half(models[BASE])

    def step(arm: str) -> Any:
        model = models[arm]
        count = partial(NGramPrior.count, [tokens.numpy()], model.tokenizer.vocabulary_size)
        size = {"vocabulary_size": model.tokenizer.vocabulary_size, "length": tokens.shape[1]}
        return stepper(model.experiment, Context(**size, ngram_prior=count), tokens)[1]

    def work(arm: str) -> list[Any]:
        model = models[arm]
        return [step(arm), *(partial(writer(model, arm), number) for number in (1, many))]

    plain, rows = work(BASE), []
    for arm in ARMS:
        cells = []
        for ours, theirs in zip(work(arm), plain, strict=True):
            timed = interleave(ours, theirs, pairs, warmup=1, clock=time.process_time)
            median, low, high = quartiles([a / b for a, b in timed])
            cells.append(f"{median:.2f} [{low:.2f}, {high:.2f}]")
        rows.append(f"| `{arm}` | {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(prog="joints")
    parser.add_argument("--runs", type=Path, default=Path("runs/sets_512"), help="folder of the study's runs")
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=5)
    given, _ = parser.parse_known_args(sys.argv[2:])
    torch.set_num_threads(1)
    print("| K | text | nats per token | before joints, relative to other tokens | after joints |")
    print("| --- | --- | --- | --- | --- |", *joints(given.runs, given.texts), "", sep="\n", flush=True)
    print("| arm | training step | one text | 16 texts |\n| --- | --- | --- | --- |")
    print(*times(given.runs, given.pairs, 16), sep="\n", flush=True)


if __name__ == "__main__":
    main()
