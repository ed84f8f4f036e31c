"""What is to be written, given the rest: whole texts, halves and gaps, by the bound and by samplers, paired."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
from torch import Tensor

from atat_zoo import Zoo
from atat_zoo.bounds import ExactKBound
from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.diffusion.statistics import ratio
from atat_zoo.measure.policy import measure_policy
from atat_zoo.measure.text import text_of
from atat_zoo.model import Model

STRIDED = "{use = 'strided', stride = 16}"
RANDOM = "{use = 'combination', order = 'random', pace = 'one_at_a_time'}"


def main() -> None:
    """Print a table: what each run and sampler pays, and its distance from the first run's bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="run folders; the first is the baseline")
    parser.add_argument("--samplers", nargs="+", default=[STRIDED, RANDOM], help="whose policy bounds are measured")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--draws", type=int, default=4, help="masks for the bound")
    parser.add_argument("--orders", type=int, default=1, help="orders inside the logarithm of the policy bound")
    given, _ = parser.parse_known_args(sys.argv[2:])
    models = [Model.from_run(run) for run in given.runs]
    for run, model in zip(given.runs, models, strict=True):
        if model.experiment.parts["objective"].exact:
            sys.exit(f"{run}: a model of one order has no bound for what stands around a gap; leave it out")
        if model.tokenizer.decode(list(range(64))) != models[0].tokenizer.decode(list(range(64))):
            sys.exit(f"{run}: its tokens are not those of {given.runs[0]}; leave it out")
    spec = models[0].experiment.evaluation
    text = text_of(models[0], given.runs[0], spec)
    tokens = text.tokens[: given.sequences]
    torch.manual_seed(0)
    names = [run.name for run in given.runs]
    samplers = [(word, Zoo.load().spec("sampler", table(word))) for word in given.samplers]
    print("| to be written | run | by | value | against the first run's bound |")
    print("| --- | --- | --- | --- | --- |")
    for what, free in free_of(tokens.shape[1]).items():
        free = free.expand(tokens.shape) & text.maskable[: given.sequences]
        first = bound_of(models[0], tokens, free, given.draws)
        show(what, names[0], "bound", first, first, free)
        for model, name in zip(models, names, strict=True):
            if model is not models[0]:
                show(what, name, "bound", bound_of(model, tokens, free, given.draws), first, free)
            for word, sampler in samplers:
                measured = measure_policy(model.writer("fp32"), sampler, tokens, free, seed=0, orders=given.orders)
                nats = measured.contribution.sum(1) if given.orders == 1 else measured.nats
                show(what, name, word, nats, first, free)


def table(word: str) -> dict[str, object]:
    """Return a sampler's table from TOML."""
    import tomllib

    return dict(tomllib.loads(f"sampler = {word}")["sampler"])


def free_of(length: int) -> dict[str, Tensor]:
    """Return what is free, bool [L], by name: all, the second half, gaps in the middle."""
    position = torch.arange(length)
    pieces = {"all": (0, length), "second half": (length // 2, length)}
    pieces |= {f"a gap of {n}": ((length - n) // 2, (length + n) // 2) for n in (32, 16, 8) if n < length}
    return {name: (position >= start) & (position < stop) for name, (start, stop) in pieces.items()}


@torch.no_grad()
def bound_of(model: Model, tokens: Tensor, free: Tensor, draws: int) -> Tensor:
    """Return the bound of each sequence's free tokens, nats, float64 [n]."""
    keys, found = row_keys(0, "evaluation", torch.arange(len(tokens))), []
    for rows in torch.arange(len(tokens)).split(64):
        estimates = model.module.bound(tokens[rows], free[rows], keys[rows], draws, ExactKBound())
        found.append(next(iter(estimates.values())).contribution.sum(1))
    return torch.cat(found)


def show(what: str, name: str, by: str, nats: Tensor, first: Tensor, free: Tensor) -> None:
    """Print a row: e to the nats per token, and the paired difference in per cent with its standard error."""
    n = free.sum(1)
    value, _ = ratio(nats, n)
    difference, error = ratio(nats - first, n)
    change = (
        "" if nats is first else f"{100 * math.expm1(difference):+.1f} ± {100 * math.exp(difference) * error:.1f} %"
    )
    print(f"| {what} | {name} | {by} | {math.exp(value):.1f} | {change} |", flush=True)
