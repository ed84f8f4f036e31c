"""Samplers compared by cost and quality: one model, the same number of texts, the same held-out text, one judge.

The likelihood of held-out text under a sampler (the policy bound of docs/mathematics.md) needs no judge. Generative
perplexity is lower for dull text and at a lower draw temperature, so it is reported with unigram entropy and network
evaluations, and a sampler is only as good as another if their unigram entropies agree too. n texts of L tokens.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from typing_extensions import override

from atat_zoo.errors import UserError
from atat_zoo.evaluation import StageProgress
from atat_zoo.evaluation.judges import JudgeModel
from atat_zoo.evaluation.metrics import DistinctMetric, Metric, UnigramEntropyMetric
from atat_zoo.evaluation.overlap import pieces
from atat_zoo.evaluation.policy import PolicyNats, PolicyValue, measure_policy, policy_value
from atat_zoo.evaluation.results.evaluation import MetricValue
from atat_zoo.evaluation.results.naming import GENERATIVE_PERPLEXITY, exponential
from atat_zoo.evaluation.results.store import RunResult, finite
from atat_zoo.evaluation.text import special_ids, text_of
from atat_zoo.evaluation.written import ScoredTexts, values_of
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers import Sample, Sampler
from atat_zoo.modeling.diffusion.statistics import ratio
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.devices import device_name

# Of every sampler's texts.
VARIETY: tuple[Metric, ...] = (UnigramEntropyMetric(), DistinctMetric(n=2))
# Relative tolerance within which two samplers count as equally good.
CLOSE = 0.02


class Judged:
    """Scores of texts, with a judge's nats."""

    nats_per_token: float | None
    nats_per_token_stderr: float | None

    @property
    def value(self) -> float | None:
        """The generative perplexity; None without a judge."""
        return None if self.nats_per_token is None else exponential(self.nats_per_token)

    @property
    def stderr(self) -> float | None:
        """Its standard error over texts."""
        error = self.nats_per_token_stderr
        return None if self.value is None or error is None else self.value * error

    def named(self) -> dict[str, float | None]:
        """Return both by their names in a JSON object."""
        key = GENERATIVE_PERPLEXITY.replace(" ", "_")
        return {key: self.value, f"{key}_stderr": self.stderr}


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
    policy: PolicyValue | None = None  # the likelihood of held-out text under the sampler, or a bound on it
    policy_difference: float | None = None  # of its nats per token from the first's, on the same sequences
    policy_difference_stderr: float | None = None  # over sequences
    unpriced: str | None = None  # why there is no such likelihood; None also where none was asked for


@attrs.frozen(kw_only=True)
class Bench(RunResult):
    """Samplers side by side; the others are compared with the first."""

    judge: str | None  # its title, or None without one
    step: int  # optimizer steps of the weights
    number: int  # texts per sampler
    length: int  # their tokens, special ones included
    seed: int  # of the samplers
    threads: int  # of the computation
    device: str  # of the computation
    measured: tuple[SamplerResult, ...]  # one for each sampler
    sequences: int = 0  # held-out sequences of the policy bounds; 0 for none
    orders: int = 1  # averaged inside them, where the sampler's order is random

    def as_good(self, result: SamplerResult) -> bool | None:
        """Whether generative perplexity is at most 2 % above the first's and entropy within 2 %; None without judge."""
        first = self.measured[0]
        if result.nats_per_token is None or first.nats_per_token is None:
            return None
        entropy = abs(result.unigram_entropy - first.unigram_entropy) <= CLOSE * first.unigram_entropy
        return entropy and result.nats_per_token - first.nats_per_token <= math.log1p(CLOSE)

    @property
    def prices(self) -> bool:
        """Whether policy bounds were asked for."""
        return any(m.policy or m.unpriced for m in self.measured)

    def share(self, result: SamplerResult) -> float:
        """Return a sampler's time relative to the first's."""
        return result.seconds / self.measured[0].seconds

    @property
    @override
    def key(self) -> str:
        return f"samplers-{self.number}x{self.length}"

    @property
    @override
    def settings(self) -> tuple[Any, ...]:
        return self.judge, [result.sampler for result in self.measured], self.sequences, self.orders

    @override
    def to_table(self) -> dict[str, Any]:
        rows = []
        for m in self.measured:
            rows.append(attrs.asdict(m) | m.named() | {"time": self.share(m), "as_good": self.as_good(m)})
        return finite(attrs.asdict(self, recurse=False) | {"measured": rows})


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
    sequences: int = 64,
    orders: int = 1,
    progress: StageProgress = None,
) -> Bench:
    """Generate texts with one model, which is `Model.from_run(run)`, and several samplers, and score them.

    `samplers` are name, requested steps and specification of each. All write `number` texts of `length` tokens (None:
    the training length) by one seed, `repeat` times in rounds, so that a temporary load does not slow only one; the
    minimum time counts. `sequences` is the maximum number of held-out sequences of the policy bounds (0: none),
    `orders` the K averaged inside them.
    """
    report = progress or (lambda stage, done, total: None)
    options: dict[str, Any] = {"length": length, "seed": seed, "batch_size": batch_size, "windows": True}
    if not samplers:
        raise UserError(f"{run}: no sampler of those fits its model; name one that does, as the run's own")
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
    priced = {"seed": seed, "orders": orders, "batch_size": batch_size}
    bounds = policy_bounds(model, run, [sampler for *_, sampler in samplers], sequences, report, priced)
    results = []
    for i, (name, steps, sampler) in enumerate(samplers):
        if judge:
            report("judging", i, len(samplers))
        sample = generations[i].sample
        nats, error = ratio(*judge.nats(generations[i].texts)) if judge else (None, None)
        cut = [pieces(row, special_ids(model.tokenizer)) for row in sample.tokens.cpu().numpy()]
        texts = ScoredTexts(texts=generations[i].texts, pieces=cut)
        results.append(
            SamplerResult(
                name=name,
                steps=steps,
                sampler=unstructure(sampler),
                seconds=seconds[i],
                nats_per_token=nats,
                nats_per_token_stderr=error,
                **bounds[i],
                **costs(sample, seconds[i]),
                **variety(values_of(VARIETY, texts)),
            )
        )
    result = Bench(
        judge=judge.title if judge else None,
        step=model.step,
        number=number,
        length=length or model.context.length,
        seed=seed,
        threads=torch.get_num_threads(),
        device=device_name(model.device),
        measured=tuple(results),
        sequences=max((each.policy.sequences for each in results if each.policy), default=0),
        orders=orders,
    )
    result.record(run)
    return result


def policy_bounds(
    model: Model,
    run: str | Path,
    samplers: Sequence[Sampler],
    sequences: int,
    report: Callable[[str, int, int], None],
    options: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return the fields of `SamplerResult` about the policy bound of each sampler, in float32 as every bound."""
    if not sequences:
        return [{} for _ in samplers]
    own: Any = model.experiment.evaluation
    text = text_of(model, run, attrs.evolve(own, sequences=sequences))
    guidance = model.experiment.parts["guidance"]
    n = text.counted.sum(1)
    writer = guidance.guide(model.writer("fp32"))
    bounds: list[dict[str, Any]] = []
    first: PolicyNats | None = None
    for i, sampler in enumerate(samplers):
        report("along held-out text", i, len(samplers))
        try:
            measured = measure_policy(writer, sampler, text.tokens, text.maskable, **options)
        except UserError as error:  # not covered, or a guidance that this text does not suit
            bounds.append({"unpriced": sampler.no_policy_bound_because or str(error)})
            continue
        value = policy_value(model, measured, text, sampler, guidance, seed=options["seed"], orders=options["orders"])
        fields: dict[str, Any] = {"policy": value}
        if i == 0:
            first = measured
        elif first is not None:
            fields["policy_difference"], fields["policy_difference_stderr"] = ratio(measured.nats - first.nats, n)
        bounds.append(fields)
    return bounds


def costs(sample: Sample, seconds: float) -> dict[str, Any]:
    """Return the cost of a sample as fields of `Scores`."""
    speed = sample.tokens.numel() / seconds if seconds else None
    return {"nfe": float(sample.nfe.double().mean()), "max_nfe": sample.max_nfe, "tokens_per_second": speed}


def variety(found: Mapping[str, MetricValue]) -> dict[str, Any]:
    """Return what the metrics `VARIETY` have found of texts as fields of `Scores`."""
    return {metric.title: finite(found[metric.title].value) for metric in VARIETY}
