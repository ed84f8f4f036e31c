"""Cost and quality of generated texts: one run compared with held-out text, or several samplers of one model.

The NLL of held-out text under a sampler (the policy bound, docs/explanation/mathematics.md) does not need a judge
model. Generative perplexity is lower for repetitive text and at a lower temperature, so it is reported with unigram
entropy and NFE, and two samplers are considered equally good only if their unigram entropies also agree. There are n
texts of L tokens.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor
from typing_extensions import override

from atat_zoo.data import is_framed
from atat_zoo.data.build import build
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.diffusion.statistics import ratio
from atat_zoo.evaluation import StageProgress
from atat_zoo.evaluation.held_out_text import held_out_text, text_of
from atat_zoo.evaluation.judges import JudgeModel
from atat_zoo.evaluation.mauve import check_mauve
from atat_zoo.evaluation.metrics import (
    CopiedMetric,
    DistinctMetric,
    GenerativeMetric,
    LongestCopyMetric,
    MauveMetric,
    Metric,
    UnigramEntropyMetric,
    reading,
)
from atat_zoo.evaluation.overlap import overlap
from atat_zoo.evaluation.policy import PolicyNats, PolicyValue, measure_policy, policy_value
from atat_zoo.evaluation.results.evaluation import MetricValue
from atat_zoo.evaluation.results.quantity_names import GENERATIVE_PERPLEXITY, exponential
from atat_zoo.evaluation.results.store import RunResult, finite
from atat_zoo.evaluation.text_scores import Judges, ScoredTexts, pieces_of, sizes_of, values_of
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers import Sample, Sampler
from atat_zoo.generation.text_generator import Generation
from atat_zoo.registry.spec import evolve, unstructure
from atat_zoo.system.devices import device_name
from atat_zoo.system.errors import UserError

SIZES = (4, 8, 13)  # n of the n-grams to look up in the training text
# The metrics that are computed on every sampler's texts.
VARIETY: tuple[Metric, ...] = (UnigramEntropyMetric(), DistinctMetric(n=2))
# Relative tolerance within which two samplers are considered equally good.
CLOSE = 0.02


class Judged:
    """Scores of texts that include their NLL under a judge model."""

    nats_per_token: float | None
    nats_per_token_stderr: float | None

    @property
    def value(self) -> float | None:
        """The generative perplexity, or None without a judge."""
        return None if self.nats_per_token is None else exponential(self.nats_per_token)

    @property
    def stderr(self) -> float | None:
        """The standard error of the generative perplexity over texts, or None without a judge."""
        error = self.nats_per_token_stderr
        return None if self.value is None or error is None else self.value * error

    def named(self) -> dict[str, float | None]:
        """Return the generative perplexity and its standard error as a JSON object."""
        key = GENERATIVE_PERPLEXITY.replace(" ", "_")
        return {key: self.value, f"{key}_stderr": self.stderr}


def costs(sample: Sample, seconds: float) -> dict[str, Any]:
    """Return the cost of a sample as fields of `Scores`."""
    speed = sample.tokens.numel() / seconds if seconds else None
    return {"nfe": float(sample.nfe.double().mean()), "max_nfe": sample.max_nfe, "tokens_per_second": speed}


def variety(found: Mapping[str, MetricValue]) -> dict[str, Any]:
    """Return the values of the metrics `VARIETY` on texts, as fields of `Scores`."""
    return {metric.title: finite(found[metric.title].value) for metric in VARIETY}


@attrs.frozen
class SamplerBound:
    """The NLL of held-out text under a sampler, or a bound on it."""

    policy: PolicyValue | None = None
    policy_difference: float | None = None  # nats per token minus the first sampler's, on the same sequences
    policy_difference_stderr: float | None = None  # over sequences
    unpriced: str | None = None  # why the bound does not exist; also None if it was not requested


@attrs.frozen(kw_only=True)
class SamplerResult(SamplerBound, Judged):
    """The cost and the scores of a sampler's texts."""

    name: str  # the sampler's name or table
    steps: int | None  # the requested steps, or None for explicit settings
    sampler: dict[str, Any]  # the sampler's parameters
    nfe: float  # network evaluations per text, on average
    max_nfe: int  # the maximum NFE that the sampler's settings allow
    seconds: float  # spent in the sampler for all texts; the minimum over repetitions
    tokens_per_second: float  # including special tokens
    unigram_entropy: float  # of the token frequencies within a text, in nats, averaged over texts
    distinct_2: float | None  # ratio of distinct to all pairs of neighbouring tokens

    nats_per_token: float | None  # under the judge; None without a judge
    nats_per_token_stderr: float | None  # over texts


@attrs.frozen(kw_only=True)
class Bench(RunResult):
    """The costs and scores of several samplers, each compared with the first."""

    judge: str | None  # the judge's title, or None without a judge
    step: int  # optimizer steps of the weights
    number: int  # texts per sampler
    length: int  # tokens per text, including special tokens
    seed: int  # of the samplers
    threads: int  # CPU threads
    device: str  # name of the device
    measured: tuple[SamplerResult, ...]  # one for each sampler
    sequences: int = 0  # held-out sequences for the policy bounds; 0 without policy bounds
    orders: int = 1  # decoding orders averaged inside the logarithm, for samplers with a random order

    def as_good(self, result: SamplerResult) -> bool | None:
        """Whether generative perplexity is at most 2 % above the first's and entropy within 2 %; None if not judged."""
        first = self.measured[0]
        if result.nats_per_token is None or first.nats_per_token is None:
            return None
        entropy = abs(result.unigram_entropy - first.unigram_entropy) <= CLOSE * first.unigram_entropy
        return entropy and result.nats_per_token - first.nats_per_token <= math.log1p(CLOSE)

    @property
    def prices(self) -> bool:
        """Whether policy bounds were requested."""
        return any(m.policy or m.unpriced for m in self.measured)

    def share(self, result: SamplerResult) -> float:
        """Return a sampler's time relative to the first sampler's time."""
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
    """Generate texts with several samplers of `model`, which is `Model.from_run(run)`; save and return their scores.

    `samplers` lists the name, requested steps and component of each sampler. All samplers generate `number` texts of
    `length` tokens (default: the training length) with the same seed. They do so `repeat` times in rounds, so that a
    temporary load does not slow down only one of them, and the shortest time is reported. `sequences` is the maximum
    number of held-out sequences for the policy bounds (0: no policy bounds), and `orders` is the number of decoding
    orders averaged inside their logarithm.
    """
    report = progress or (lambda stage, done, total: None)
    if not samplers:
        raise UserError(
            f"{run}: none of these samplers supports the run's model; pass one that does, such as the run's own sampler"
        )

    def write(number: int, sampler: Sampler) -> Generation:
        return model.sample(number, sampler=sampler, length=length, seed=seed, batch_size=batch_size, windows=True)

    # The first forward passes of a process are slower, so they are not timed.
    write(min(number, batch_size), samplers[0][2])
    rounds = []
    for again in range(repeat):
        for i, (name, _, sampler) in enumerate(samplers):
            report(name, again * len(samplers) + i, repeat * len(samplers))
            rounds.append(write(number, sampler))
    seconds = [min(each.seconds for each in rounds[i :: len(samplers)]) for i in range(len(samplers))]
    bounds = [SamplerBound()] * len(samplers)
    if sequences:
        wanted = [sampler for *_, sampler in samplers]
        bounds = policy_bounds(model, run, wanted, sequences, report, seed, orders, batch_size)
    results = []
    for i, (name, steps, sampler) in enumerate(samplers):
        if judge:
            report("judging", i, len(samplers))
        sample, written = rounds[i].sample, rounds[i].texts
        nats, error = ratio(*judge.nats(written)) if judge else (None, None)
        texts = ScoredTexts(texts=written, pieces=pieces_of(model.tokenizer, sample.tokens))
        results.append(
            SamplerResult(
                name=name,
                steps=steps,
                sampler=unstructure(sampler),
                seconds=seconds[i],
                nats_per_token=nats,
                nats_per_token_stderr=error,
                **attrs.asdict(bounds[i], recurse=False),
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
    seed: int,
    orders: int,
    batch_size: int,
) -> list[SamplerBound]:
    """Return each sampler's policy bound on held-out text, computed in float32, or the reason why it has none."""
    text = text_of(model, run, evolve(model.experiment.evaluation, sequences=sequences))
    guidance, n = model.experiment.parts["guidance"], text.counted.sum(1)
    text_generator, x = guidance.guide(model.text_generator("fp32")), (text.tokens, text.maskable)
    bounds: list[SamplerBound] = []
    first: PolicyNats | None = None
    for i, sampler in enumerate(samplers):
        report("policy bounds", i, len(samplers))
        try:
            measured = measure_policy(text_generator, sampler, *x, seed=seed, orders=orders, batch_size=batch_size)
        except UserError as error:  # the sampler is not covered, or its guidance does not suit this text
            bounds.append(SamplerBound(unpriced=sampler.no_policy_bound_because or str(error)))
            continue
        value = policy_value(model, measured, text, sampler, guidance, seed=seed, orders=orders)
        difference = (None, None) if first is None else ratio(measured.nats - first.nats, n)
        bounds.append(SamplerBound(value, *difference))
        if i == 0:
            first = measured
    return bounds


@attrs.frozen(kw_only=True)
class Scores(Judged):
    """The scores of n texts."""

    texts: int  # n
    tokens: int  # of the model's tokenizer, without BOS and EOS
    judged_tokens: int  # of the judge's tokenizer
    nats_per_token: float  # Σ −log p / Σ tokens, with the judge's p and tokens
    nats_per_token_stderr: float  # over texts
    unigram_entropy: float  # of the token frequencies within a text, in nats, averaged over the texts
    distinct_2: float | None  # ratio of distinct to all pairs of neighbouring tokens, pooled over texts
    # Only for text generated by a model of atat_zoo:
    nfe: float | None = None  # network evaluations per text, on average
    max_nfe: int | None = None  # the maximum NFE that the sampler's settings allow
    tokens_per_second: float | None = None  # while sampling, including special tokens
    mauve: float | None  # compared with different held-out text, or None if not requested
    copied: Mapping[int, float | None]  # by n, the fraction of n-grams that occur in the training text
    longest_copy: str  # the longest span that occurs in the training text
    longest_copy_tokens: int
    metrics: Mapping[str, MetricValue] = attrs.field(factory=dict)  # further metrics, by title

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object."""
        return self.named() | attrs.asdict(self) | {"copied": {str(n): share for n, share in self.copied.items()}}


def scored_by(judge: Any, sizes: Sequence[int], mauve: bool) -> tuple[Metric, ...]:
    """Return the metrics from which `score` computes `Scores`, for a judge component."""
    copied = (CopiedMetric(n=n) for n in sizes)
    of_judge = GenerativeMetric(judge=judge), *([MauveMetric(judge=judge)] if mauve else [])
    return (*of_judge, *VARIETY, *copied, LongestCopyMetric())


def score(
    texts: ScoredTexts,
    metrics: Sequence[Metric],
    judges: Judges,
    *,
    tokenizer: TokenizerModel,
    further: Sequence[Metric] = (),
    written: Generation | None = None,
) -> Scores:
    """Return the scores of texts according to the metrics of `scored_by` and further metrics.

    `written` is the generation of the texts, if any. Raises `UserError` if the judge counts no tokens.
    """
    found = values_of([*metrics, *further], texts, judges)
    (of_judge, *_), copies = metrics, texts.overlap
    assert isinstance(of_judge, GenerativeMetric)
    assert copies is not None
    counted = {name: number for name, (number,) in (found[of_judge.title].table or {}).items()}
    if not counted["tokens"]:
        title = judges(of_judge.judge).title
        raise UserError(
            f"the judge {title} finds no tokens to score in {len(texts.texts)} texts; generate longer texts"
        )
    return Scores(
        texts=len(texts.texts),
        tokens=sum(len(piece) for text in texts.pieces for piece in text),
        judged_tokens=int(counted["tokens"]),
        nats_per_token=counted["nats_per_token"],
        nats_per_token_stderr=counted["nats_per_token_stderr"],
        mauve=found["mauve"].value if "mauve" in found else None,
        copied={metric.n: finite(found[metric.title].value) for metric in metrics if isinstance(metric, CopiedMetric)},
        longest_copy=tokenizer.decode(copies.span),
        longest_copy_tokens=copies.longest,
        metrics={metric.title: found[metric.title] for metric in further},
        **variety(found),
        **(costs(written.sample, written.seconds) if written else {}),
    )


@attrs.frozen(kw_only=True)
class JudgedRun(RunResult):
    """The scores of a run's generated texts and of held-out texts, with a judge model."""

    judge: str  # the judge's title
    judge_table: dict[str, Any]  # the judge's parameters
    sampler: dict[str, Any]  # the sampler's parameters
    step: int  # optimizer steps of the weights
    ema: bool  # whether the weights are EMA weights
    number: int  # generated texts
    length: int  # tokens per text, including special tokens
    seed: int  # of the sampler
    split: str  # the split of the held-out texts
    model: Scores  # the scores of the generated texts
    data: Scores  # the scores of held-out texts of the same length, equally many if there are enough

    @property
    @override
    def key(self) -> str:
        return f"judged-{self.sampler['use']}-{self.number}x{self.length}"

    @property
    @override
    def settings(self) -> tuple[Any, ...]:
        further = [sorted(self.model.metrics)] if self.model.metrics else []
        return self.judge_table, self.sampler, self.split, self.model.mauve is None, list(self.model.copied), *further

    @override
    def to_table(self) -> dict[str, Any]:
        scores = {"model": self.model.to_table(), "data": self.data.to_table()}
        return finite(attrs.asdict(self, recurse=False) | scores)


def judge_run(
    model: Model,
    run: str | Path,
    judge: JudgeModel,
    judge_spec: Any,
    *,
    sampler: Sampler,
    spec: EvaluationSpec,
    number: int = 64,
    length: int | None = None,
    seed: int = 0,
    mauve: bool = False,
    sizes: Sequence[int] = SIZES,
    progress: StageProgress = None,
) -> JudgedRun:
    """Generate texts, score them and held-out texts with a judge model, and save and return the result.

    Most arguments are those of `bench`. `judge_spec` is the judge component, `spec` contains the split and further
    metrics, and `sizes` lists the n of the n-grams to look up in the training text. MAUVE uses the judge's features.
    """
    metrics, further = scored_by(judge_spec, sizes, mauve), reading(spec.metrics, "texts")
    if twice := [metric.title for metric in further if metric.title in {ours.title for ours in metrics}]:
        raise UserError(f"--metric: {twice[0]!r} is always computed here; leave it out")
    compares = any(isinstance(metric, MauveMetric) for metric in (*metrics, *further))
    if compares:
        check_mauve(number)
    report = progress or (lambda stage, done, total: None)
    length = length or model.context.length
    data, reference = _held_out(model, run, spec, number, length)
    if compares and len(reference) < number:
        check_mauve(len(reference))
        problem = f"the {spec.split} text has only {len(reference)} sequences"
        remedy = f"lower --num-samples to {len(reference)} or choose another --split"
        raise UserError(f"{problem}, and MAUVE needs as many held-out texts as generated texts; {remedy}")
    report("generating", 0, number)
    generation = model.sample(number, sampler=sampler, length=length, seed=seed, windows=True)
    report("generating", number, number)
    tokenizer, judges = model.tokenizer, Judges(known=[(judge_spec, judge)])
    cut = [pieces_of(tokenizer, generation.sample.tokens), pieces_of(tokenizer, data)]
    copied = overlap(
        cut,
        build(model.experiment),
        sizes=sizes_of([*metrics, *further]) or (),
        progress=lambda done, total: report("reading the training text", done, total),
    )
    compared, real = ([tokenizer.decode(ids.tolist()) for ids in each] for each in (reference, data))
    report("judging", 0, 2)
    texts = ScoredTexts(texts=generation.texts, pieces=cut[0], references=compared, overlap=copied[0])
    of_model = score(texts, metrics, judges, tokenizer=tokenizer, further=further, written=generation)
    report("judging", 1, 2)
    # MAUVE of held-out text is left out if there is not enough for two disjoint sets.
    apart = reference is not data and len(data) == number
    theirs, beside = (
        [metric for metric in some if apart or not isinstance(metric, MauveMetric)] for some in (metrics, further)
    )
    texts = ScoredTexts(texts=real, pieces=cut[1], references=compared, overlap=copied[1])
    of_data = score(texts, theirs, judges, tokenizer=tokenizer, further=beside)
    report("judging", 2, 2)
    result = JudgedRun(
        judge=judge.title,
        judge_table=unstructure(judge_spec),
        sampler=unstructure(sampler),
        step=model.step,
        ema=model.experiment.train.ema_decay > 0,
        number=number,
        length=length,
        seed=seed,
        split=spec.split,
        model=of_model,
        data=of_data,
    )
    result.record(run)
    return result


def _held_out(
    model: Model, run: str | Path, spec: EvaluationSpec, number: int, length: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tokens of the texts to score and of MAUVE's references: different sequences if there are enough."""
    text = held_out_text(model, run, spec.split, 2 * number)
    tokens, maskable = text.tokens[:, :length], text.maskable[:, :length].clone()
    if is_framed(model.experiment.data.special_tokens) and length < model.context.length:
        maskable[:, -1] = False  # the position at which a generated text of this length has EOS
    rows = [row[of_text] for row, of_text in zip(tokens, maskable, strict=True)]
    if len(rows) < 2 * number:
        rows = rows[:number]
        return rows, rows
    return rows[0::2], rows[1::2]
