"""Speculative decoding: its forward passes per decoding step, and its time for one text over that of plain decoding.

Plain decoding has one step per pass, in the same order or with one token per step.

Two set-causal models are trained on the State of the Union addresses without an n-gram prior, one with one stream and
one with two. Each also learns blocks of its order, so that it predicts several steps ahead. Both samplers draw texts
from the same distribution. The time is that of the processor with one thread, which other programs do not change.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from atat_zoo.generation.model import Model
from atat_zoo.registry.registry_file import inline
from benchmarks.baselines import trained_model
from benchmarks.pairs import interleave, quartiles

LENGTH = 64
STREAMS = (1, 2)
AHEAD = 4  # steps of a block
COMMON = ("backbone.ngram_prior=0", "objective.prompt_share=0", "objective.gap_share=0", "evaluation.samples=0")


def order(streams: int) -> dict[str, Any]:
    """Return the position sets of so many streams."""
    return {"use": "strided", "stride": LENGTH // streams}


def settings(streams: int) -> list[str]:
    """Return the overrides of `sets` for a model that learns so many streams, and blocks of their order."""
    sets = order(streams)
    mixture = {"use": "mixture", "components": [sets, {"use": "blocks", "block_size": AHEAD, "order": sets}]}
    return [*COMMON, f"position_sets={inline(mixture)}", f"sampler={inline(sets)}"]


def measure(model: Model, streams: int, draft_length: int, texts: int, pairs: int) -> tuple[float, list[list[float]]]:
    """Return the passes per text, and one text's times over those of plain decoding of K streams and of one stream."""
    drafted = {"use": "speculative", "draft_length": draft_length, "position_sets": order(streams)}
    passes = fmean(model.sample(texts, sampler=drafted, seed=1).sample.nfe.tolist())
    ratios = []
    for each in sorted({streams, 1}, reverse=True):  # for one stream, both are the same
        ours, theirs = (partial(model.sample, 1, sampler=one, seed=2) for one in (drafted, order(each)))
        ratios.append([first / second for first, second in interleave(ours, theirs, pairs, clock=time.process_time)])
    return passes, [ratios[0], ratios[-1]]


def main() -> None:
    """Train missing runs, and print the table."""
    parser = argparse.ArgumentParser(prog="speculative")
    parser.add_argument("--runs", type=Path, default=Path("runs/speculative"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[18, 19, 20])
    parser.add_argument("--draft-lengths", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides for every training run")
    given, _ = parser.parse_known_args(sys.argv[2:])
    print("| K | draft length | passes per token, by seed | per step | time of one text | over one token per step |")
    print("| --- | --- | --- | --- | --- | --- |")
    for streams in STREAMS:
        models = [
            trained_model(given.runs / f"{streams}-seed{seed}", "sets", *settings(streams), f"seed={seed}", *given.set)
            for seed in given.seeds
        ]
        for length in given.draft_lengths:
            found = [measure(model, streams, length, given.texts, given.pairs) for model in models]
            times = [
                "{:.2f} [{:.2f}, {:.2f}]".format(*quartiles([ratio for _, ratios in found for ratio in ratios[i]]))
                for i in range(2)
            ]
            per_token = ", ".join(f"{passes / LENGTH:.3f}" for passes, _ in found)
            per_step = fmean(passes for passes, _ in found) / (LENGTH // streams)
            print(f"| {streams} | {length} | {per_token} | {per_step:.3f} | {' | '.join(times)} |", flush=True)


if __name__ == "__main__":
    main()
