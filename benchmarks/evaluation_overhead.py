"""The time to evaluate 100,000 held-out tokens relative to the bare forward passes: nano model, default corpus."""

from __future__ import annotations

import attrs
import torch

from atat_zoo.data import shard_manifest
from atat_zoo.data.build import build
from atat_zoo.data.sequences import held_out_sequences
from atat_zoo.diffusion.likelihood_bounds import average, exact_k
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.evaluation.likelihood import measure, summarise
from atat_zoo.experiment import load
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from benchmarks.pairs import interleave, options, report


@torch.no_grad()
def main() -> None:
    """Print the ratio from interleaved pairs."""
    given = options(tokens=100_000, batch_size=64, pairs=8)
    experiment = load("mdlm")
    data = build(experiment)
    counts = shard_manifest.load_counts(data)
    length = experiment.data.length
    context = Context(vocabulary_size=len(counts), length=length, counts=counts)
    module = assemble(experiment, context).eval()
    x, keep, _ = held_out_sequences(data, "validation", -(-given.tokens // length))
    rows, spec = torch.arange(len(x)), attrs.evolve(experiment.evaluation, mask_samples=1, batch_size=given.batch_size)
    tokenizer = experiment.parts["tokenizer"].load(data)

    def evaluate() -> None:
        found = measure(module, x, keep, spec, seed=0)
        summarise(
            found, tokenizer=tokenizer, counts=counts, split="validation", step=0, ema=False, draws=1, seed=0
        )  # fmt: skip

    # The masks that the evaluation draws, drawn before the clock starts.
    passes: list[tuple[torch.Tensor, torch.Tensor]] = []

    def remember(
        z: torch.Tensor, t: torch.Tensor | None, masked: torch.Tensor, x: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        passes.append((z, masked))
        return {}

    for first in range(0, len(x), given.batch_size):
        part = slice(first, first + given.batch_size)
        keys = sequence_keys(0, "evaluation", rows[part])
        masks = exact_k(keep[part], keys, 1, time_at=experiment.parts["noise"].time_at)
        average(remember, x[part], masks, context.mask_id)

    def forward() -> None:
        for z, masked in passes:
            module.backbone.head(module.backbone(z)[masked])

    print(f"  {int(keep.sum()):,} tokens in {len(x):,} sequences, one mask each, {len(passes)} forward passes")
    report("evaluation", "bare forward passes", interleave(evaluate, forward, given.pairs, warmup=1))


if __name__ == "__main__":
    main()
