"""What samplers cost and what comes of them: one model, the same number of texts, one judge.

n texts of L tokens. Generative perplexity falls with dull text and the draw's
temperature, so a sampler is only called as good as another where unigram
entropy agrees as well (MATH 6).
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.diffusion.statistics import ratio
from atat_zoo.evaluation.generative import distinct, text_entropy
from atat_zoo.evaluation.naming import GENERATIVE_PERPLEXITY, exponential
from atat_zoo.evaluation.overlap import pieces
from atat_zoo.evaluation.perplexity import finite, special_ids
from atat_zoo.registry.spec import unstructure
from atat_zoo.run import RunFolder, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atat_zoo.evaluation.judges import JudgeModel
    from atat_zoo.model import Model
    from atat_zoo.samplers import Sampler

# As close as two samplers must be to count as equally good.
CLOSE = 0.02


@attrs.frozen(kw_only=True)
class SamplerResult:
    """A sampler's texts in numbers.

    Attributes:
        name: what the sampler is called.
        steps: the steps that were asked for, or None where the settings were given.
        sampler: the specification.
        nfe: network evaluations a text, on average.
        max_nfe: the most that the settings allow.
        seconds: in the sampler, for all texts; the least of all repetitions.
        tokens_per_second: special tokens included.
        unigram_entropy: within a text, in nats, averaged over texts.
        distinct_2: distinct pairs of neighbouring tokens over all pairs.
        nats_per_token: of the judge; None without one.
        nats_per_token_stderr: over texts.
    """

    name: str
    steps: int | None
    sampler: dict[str, Any]
    nfe: float
    max_nfe: int
    seconds: float
    tokens_per_second: float
    unigram_entropy: float
    distinct_2: float | None
    nats_per_token: float | None
    nats_per_token_stderr: float | None

    @property
    def value(self) -> float | None:
        """The generative perplexity, where there is a judge."""
        return None if self.nats_per_token is None else exponential(self.nats_per_token)

    @property
    def stderr(self) -> float | None:
        """Its standard error over texts."""
        if self.value is None or self.nats_per_token_stderr is None:
            return None
        return self.value * self.nats_per_token_stderr

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object."""
        key = GENERATIVE_PERPLEXITY.replace(" ", "_")
        return {**attrs.asdict(self), key: self.value, f"{key}_stderr": self.stderr}


@attrs.frozen(kw_only=True)
class Bench:
    """Samplers side by side; the first is what the others are compared with.

    Attributes:
        judge: its title, or None without one.
        step: optimizer steps behind the weights.
        number: texts of each.
        length: their tokens, special ones included.
        seed: of the samplers.
        threads: that computed.
        device: that computed.
        measured: one for each sampler.
    """

    judge: str | None
    step: int
    number: int
    length: int
    seed: int
    threads: int
    device: str
    measured: tuple[SamplerResult, ...]

    def as_good(self, result: SamplerResult) -> bool | None:
        """Say whether generative perplexity is at most 2 % above the first's and entropy within 2 % of it.

        None without a judge.
        """
        first = self.measured[0]
        if result.nats_per_token is None or first.nats_per_token is None:
            return None
        entropy = abs(result.unigram_entropy - first.unigram_entropy) <= CLOSE * first.unigram_entropy
        return entropy and result.nats_per_token - first.nats_per_token <= math.log1p(CLOSE)

    def share(self, result: SamplerResult) -> float:
        """Return the time that a sampler takes over the first's."""
        return result.seconds / self.measured[0].seconds

    def to_table(self) -> dict[str, Any]:
        """Return everything as a JSON object; what is not finite becomes null."""
        rows = [m.to_table() | {"time": self.share(m), "as_good": self.as_good(m)} for m in self.measured]
        table: dict[str, Any] = finite(attrs.asdict(self, recurse=False) | {"measured": rows})
        return table

    def record(self, folder: RunFolder) -> None:
        """Write everything into a run folder; other samplers or another judge make another file."""
        settings = [self.judge, [m.sampler for m in self.measured]]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
        what = f"samplers-{self.number}x{self.length}-seed{self.seed}-step{self.step:08d}-{digest}"
        write_json(folder.evaluations / f"{what}.json", self.to_table())


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
    """Let samplers write with one model, and score what they wrote.

    Args:
        model: of `Model.from_run(run)`.
        run: the run folder, which gets the result.
        judge: what scores the texts, if anything does.
        samplers: what each is called, the steps it was asked for, and its specification.
        number: texts of each.
        length: tokens in a text; the training length if None.
        seed: of all of them.
        repeat: how often each writes, in rounds over all samplers, so that a busy moment does not fall on one of
            them; the least time counts, the texts are the same.
        batch_size: texts at once.
        progress: called with what is being done, and how much of how much.

    Raises:
        UserError: see `Writer.write` and the judge.
    """
    import torch

    tell = progress or (lambda what, done, total: None)
    options: dict[str, Any] = {"length": length, "seed": seed, "batch_size": batch_size}
    # The first evaluations of a process are slower, and not measured.
    model.sample(min(number, batch_size), sampler=samplers[0][2], **options)
    seconds = [math.inf] * len(samplers)
    made = []
    for again in range(repeat):
        for i, (name, _, sampler) in enumerate(samplers):
            tell(name, again * len(samplers) + i, repeat * len(samplers))
            written = model.sample(number, sampler=sampler, **options)
            seconds[i] = min(seconds[i], written.seconds)
            if not again:
                made.append(written)
    results = []
    for i, (name, steps, sampler) in enumerate(samplers):
        if judge:
            tell("judging", i, len(samplers))
        sample = made[i].sample
        nats, error = ratio(*judge.nats(made[i].texts)) if judge else (None, None)
        parts = [pieces(row, special_ids(model.tokenizer)) for row in sample.tokens.cpu().numpy()]
        results.append(
            SamplerResult(
                name=name,
                steps=steps,
                sampler=unstructure(sampler),
                nfe=float(sample.nfe.double().mean()),
                max_nfe=sample.max_nfe,
                seconds=seconds[i],
                tokens_per_second=sample.tokens.numel() / seconds[i],
                unigram_entropy=text_entropy(parts),
                distinct_2=distinct([piece for text in parts for piece in text], 2),
                nats_per_token=nats,
                nats_per_token_stderr=error,
            )
        )
    done = Bench(
        judge=judge.title if judge else None,
        step=model.step,
        number=number,
        length=length or model.context.length,
        seed=seed,
        threads=torch.get_num_threads(),
        device=str(model.context.device),
        measured=tuple(results),
    )
    done.record(RunFolder(Path(run)))
    return done
