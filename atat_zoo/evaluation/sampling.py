"""Samplers compared by cost and text quality: one model, the same number of texts, one judge.

n texts of L tokens. Generative perplexity is lower for dull text and at a lower draw
temperature, so a sampler is only called as good as another if their unigram
entropies agree too (MATH 6).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.diffusion.statistics import ratio
from atat_zoo.evaluation.generative import Judged, costs, variety
from atat_zoo.evaluation.overlap import pieces
from atat_zoo.evaluation.perplexity import finite, record, special_ids
from atat_zoo.registry.spec import unstructure
from atat_zoo.run import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atat_zoo.evaluation.judges import JudgeModel
    from atat_zoo.model import Model
    from atat_zoo.samplers import Sampler

# Relative tolerance within which two samplers count as equally good.
CLOSE = 0.02


@attrs.frozen(kw_only=True)
class SamplerResult(Judged):
    """The numbers of a sampler's texts."""

    name: str  # of the sampler, or its table
    steps: int | None  # the requested steps, or None for explicit settings
    sampler: dict[str, Any]  # the specification
    nfe: float  # network evaluations per text, on average
    max_nfe: int  # the maximum that the settings allow
    seconds: float  # in the sampler, for all texts; the minimum over the repetitions
    tokens_per_second: float  # special tokens included
    unigram_entropy: float  # within a text, in nats, averaged over texts
    distinct_2: float | None  # distinct pairs of neighbouring tokens over all pairs
    nats_per_token: float | None  # of the judge; None without one
    nats_per_token_stderr: float | None  # over texts


@attrs.frozen(kw_only=True)
class Bench:
    """Samplers side by side; the others are compared with the first."""

    judge: str | None  # its title, or None without one
    step: int  # optimizer steps of the weights
    number: int  # texts per sampler
    length: int  # their tokens, special ones included
    seed: int  # of the samplers
    threads: int  # of the computation
    device: str  # of the computation
    measured: tuple[SamplerResult, ...]  # one for each sampler

    def as_good(self, result: SamplerResult) -> bool | None:
        """Return whether generative perplexity is at most 2 % above the first's and entropy within 2 % of it.

        None without a judge.
        """
        first = self.measured[0]
        if result.nats_per_token is None or first.nats_per_token is None:
            return None
        entropy = abs(result.unigram_entropy - first.unigram_entropy) <= CLOSE * first.unigram_entropy
        return entropy and result.nats_per_token - first.nats_per_token <= math.log1p(CLOSE)

    def share(self, result: SamplerResult) -> float:
        """Return a sampler's time relative to the first's."""
        return result.seconds / self.measured[0].seconds

    def to_table(self) -> dict[str, Any]:
        """Return everything as a JSON object; non-finite numbers become null."""
        rows = [
            attrs.asdict(m) | m.named() | {"time": self.share(m), "as_good": self.as_good(m)} for m in self.measured
        ]
        table: dict[str, Any] = finite(attrs.asdict(self, recurse=False) | {"measured": rows})
        return table


def bench(
    model: Model,
    run: str | Path,
    judge: JudgeModel | None,
    samplers: Sequence[tuple[str, int | None, Sampler]],
    *,
    number: int = 64,
    length: int | None = None,
    seed: int = 0,
    repeat: int = 1,
    batch_size: int = 64,
    progress: Callable[[str, int, int], None] | None = None,
) -> Bench:
    """Generate texts with one model and several samplers, and score them.

    Args:
        model: of `Model.from_run(run)`.
        run: the run folder, for the result.
        judge: scores the texts; None for no scores.
        samplers: name, requested steps and specification of each.
        number: texts per sampler.
        length: tokens in a text; the training length if None.
        seed: seed of all samplers.
        repeat: repetitions, in rounds over all samplers, so that a temporary load does not slow only one of them;
            the minimum time counts, the texts are the same.
        batch_size: texts at once.
        progress: called with the name of the stage, the amount done and the amount to do.

    Raises:
        UserError: see `Writer.write` and the judge.
    """
    import torch

    report = progress or (lambda stage, done, total: None)
    options: dict[str, Any] = {"length": length, "seed": seed, "batch_size": batch_size}
    # The first evaluations of a process are slower, so they are not measured.
    model.sample(min(number, batch_size), sampler=samplers[0][2], **options)
    seconds = [math.inf] * len(samplers)
    generations = []
    for again in range(repeat):
        for i, (name, _, sampler) in enumerate(samplers):
            report(name, again * len(samplers) + i, repeat * len(samplers))
            written = model.sample(number, sampler=sampler, **options)
            seconds[i] = min(seconds[i], written.seconds)
            if not again:
                generations.append(written)
    results = []
    for i, (name, steps, sampler) in enumerate(samplers):
        if judge:
            report("judging", i, len(samplers))
        sample = generations[i].sample
        nats, error = ratio(*judge.nats(generations[i].texts)) if judge else (None, None)
        parts = [pieces(row, special_ids(model.tokenizer)) for row in sample.tokens.cpu().numpy()]
        results.append(
            SamplerResult(
                name=name,
                steps=steps,
                sampler=unstructure(sampler),
                seconds=seconds[i],
                nats_per_token=nats,
                nats_per_token_stderr=error,
                **costs(sample, seconds[i]),
                **variety(parts),
            )
        )
    table = Bench(
        judge=judge.title if judge else None,
        step=model.step,
        number=number,
        length=length or model.context.length,
        seed=seed,
        threads=torch.get_num_threads(),
        device=str(model.context.device),
        measured=tuple(results),
    )
    name, specs = f"samplers-{number}x{table.length}", [one.sampler for one in table.measured]
    record(RunFolder(Path(run)), name, table.to_table(), table.judge, specs)
    return table
