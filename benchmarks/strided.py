"""Speed-up from position sets in sampling: time of a set-causal model over an autoregressive one, both with caches.

The same network (4 × 256, texts of 64 tokens by default, a vocabulary of 2,048) with the same random weights generates
with both objectives, in pairs, and each reads every token once. Both do the same number of multiplications, but s
decoding steps do them in fewer, larger products, so the speed-up shrinks as the number of texts at once grows. The
limits: generating texts of 64 tokens in 16 decoding steps takes at most 0.35 of the time for one text, and 0.7 for 64
texts.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from atat_zoo import Zoo
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.experiment import load
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from benchmarks.pairs import hold, interleave, report

V = 2048
# Like `left_to_right`, but for rows that are equally long, so it is a little faster.
TOKEN_BY_TOKEN = {"use": "semi_autoregressive", "block_size": 1, "block_sampler": "left_to_right"}
BARS = {1: 0.35, 64: 0.7}  # limits of the ratio, by number of texts at once


def denoiser(name: str, *overrides: str) -> Any:
    """Return the denoiser of an experiment with random weights, which are the same for every objective."""
    experiment = load(name, list(overrides))
    module = assemble(experiment, Context(vocabulary_size=V, length=experiment.data.length)).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        if parameter.ndim > 1:
            parameter.data = 0.03 * torch.randn(parameter.shape, generator=generator)
    return module.denoiser()


def writing(model: Any, sampler: Any, texts: int) -> Any:
    """Return a function that generates texts of the training length and returns the forward passes per text."""
    z, seeds = torch.full((texts, model.window), V), sequence_keys(0, "sample", torch.arange(texts))

    def write() -> float:
        return float(sampler.sample(model, z, seeds).nfe.double().mean())

    return write


def main() -> None:
    """Measure, and fail if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="strided")
    parser.add_argument("--pairs", type=int, default=8, help="number of pairs per setting")
    parser.add_argument("--texts", type=int, nargs="*", default=[1, 16, 64], help="numbers of texts at once")
    parser.add_argument("--length", type=int, default=64, help="number of tokens per text")
    parser.add_argument("--strides", type=int, nargs="*", default=[8, 16, 32], help="numbers of decoding steps")
    given, _ = parser.parse_known_args()
    spec = Zoo.load().spec
    token_by_token = spec("sampler", TOKEN_BY_TOKEN)
    same, bars = [f"data.length={given.length}", "backbone.ngram_prior=0"], []
    autoregressive, sets = denoiser("baselines/autoregressive", *same), denoiser("sets", *same)
    for texts in given.texts:
        other = writing(autoregressive, token_by_token, texts)
        for stride in given.strides:
            ours = writing(sets, spec("sampler", {"use": "strided", "stride": stride}), texts)
            print(f"{texts} at once: {ours():.0f} forward passes per text against {other():.0f}")
            ratio = report(f"strided, s = {stride}", "autoregressive", interleave(ours, other, given.pairs))
            if stride == 16 and given.length == 64 and texts in BARS:
                bars.append((f"s = 16, {texts} at once,", ratio, BARS[texts]))
    hold(bars)


if __name__ == "__main__":
    main()
