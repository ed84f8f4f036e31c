"""Paired comparison of runs on the same n held-out sequences of L tokens with the same masks.

The difference between two runs is Σ(a − b) / Σ tokens, where a and b are the nats of a bound on −log p(x) for each
sequence. Its interval is bootstrapped over sequences.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from atat_zoo.data.shard_manifest import load_counts
from atat_zoo.evaluation import Progress, progress_of_part
from atat_zoo.evaluation.held_out_text import byte_counts, check_evaluation, counted_of, text_of
from atat_zoo.evaluation.likelihood import bound_value, loss_correlations, measure
from atat_zoo.evaluation.ngram_likelihood import NGramPriorNats, figure, measure_ngram_prior
from atat_zoo.evaluation.results.evaluation import BoundValue, MetricValue, NGramPriorValue, method_of
from atat_zoo.evaluation.results.history import History, history
from atat_zoo.evaluation.results.intervals import LEVEL, RESAMPLES, Interval, paired, unpaired
from atat_zoo.evaluation.results.quantity_names import PERPLEXITY, title
from atat_zoo.evaluation.results.store import finite
from atat_zoo.evaluation.text_scores import measure_texts
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.experiment.effects import learns_importance
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.experiment.runs.model_files import TOKENIZER
from atat_zoo.generation.model import Model
from atat_zoo.system.errors import UserError
from atat_zoo.system.parsing import read

# The metrics of predictions if neither the experiment nor the command line names any.
METRICS = ("brier_score", "top_accuracy")
_ADVICE = "compare runs with the same corpus, tokenizer and data.length"


@attrs.frozen(kw_only=True, eq=False)
class MeasuredRun:
    """The bounds and metrics of a run on n held-out sequences, and its number of parameters."""

    step: int  # optimizer steps of the weights
    method: str  # the bound estimator, or `likelihood` if the numbers are exact
    nats: Mapping[str, Tensor]  # by bound name, the nats of each sequence, float64 [n]
    factorisations: Mapping[str, str] = attrs.field(factory=dict)  # of the text, by the name of the bound
    count: Tensor  # tokens of each sequence, int64 [n]
    bytes: Tensor  # UTF-8 bytes of each sequence, int64 [n]
    ngram: NGramPriorNats | None = None  # n-gram model of the run's training shards, or None
    parameters: int  # of the entire model, including frozen parameters
    without_embeddings: int  # excluding token embeddings and the head, which grow with the vocabulary
    metrics: Mapping[str, MetricValue] = attrs.field(factory=dict)  # by title

    @property
    def quantity(self) -> str:
        """The name of the run's main bound, which is the first bound of its objective."""
        return next(iter(self.nats))

    def bounds(self) -> dict[str, BoundValue]:
        """Return a dict from the name of each bound to its value."""
        of = self.factorisations
        return {name: bound_value(nats, self.count, self.bytes, of.get(name, "")) for name, nats in self.nats.items()}

    def beside(self) -> NGramPriorValue | None:
        """Return the n-gram model's NLL, compared with the run's main bound, or None without an n-gram model."""
        return figure(self.ngram, self.nats[self.quantity], self.count) if self.ngram else None


@attrs.frozen(kw_only=True, eq=False)
class ComparedRun(MeasuredRun):
    """A run in a comparison: its bounds, name, training history and experiment."""

    name: str  # name of the run in the table

    objective: str  # name of the run's objective
    ema: bool  # whether the weights are EMA weights
    history: History  # of the run's training
    experiment: Mapping[str, Any] = attrs.field(factory=dict)  # the experiment as a table with every parameter


def numbers_of(
    model: Model,
    data: Path | None,
    tokens: Tensor,
    maskable: Tensor,
    spec: EvaluationSpec,
    *,
    documents: Tensor | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the fields of a `MeasuredRun`; `data` is the folder of shards, and `options` are those of `measure`."""
    form = model.experiment.data.format
    counted = counted_of(form, model.tokenizer, tokens, maskable)
    of_rows: Any = {"form": form, "counted": counted, "documents": documents}
    measured = measure(model.module, tokens, maskable, spec, **of_rows, **options)
    measured.refuse_nan(model.experiment.name)
    of_texts = measure_texts(model, tokens, maskable, spec, seed=options["seed"])
    of_importance: dict[str, MetricValue] = {}
    if measured.under_masks and learns_importance(model.experiment):
        rhos = loss_correlations(measured.masked_tokens(), load_counts(data) if data else None)
        of_importance = {f"{name}_correlation": MetricValue(value=rho) for name, rho in rhos.items()}
    exact, masks = model.experiment.parts["objective"].exact, {"seed": options["seed"], "rows": measured.rows}
    ngram = measure_ngram_prior(model.module, data, tokens, maskable, spec, exact=exact, **masks) if data else None
    total, without = sizes(model.module, model.context.vocabulary_size)
    return {
        "step": model.step,
        "method": method_of(model.experiment, spec.bound),
        "factorisations": model.experiment.parts["objective"].factorisations(model.experiment),
        "nats": {name: nats.sum(1) for name, nats in measured.contribution.items()},
        "count": counted.sum(1),
        "bytes": byte_counts(model.tokenizer, tokens, maskable),
        "ngram": ngram,
        "parameters": total,
        "without_embeddings": without,
        "metrics": {**measured.metrics, **of_texts, **of_importance},
    }


def measure_runs(
    runs: Sequence[Path],
    spec: EvaluationSpec,
    *,
    seed: int,
    baseline: int = 0,
    device: str = "cpu",
    step: int | str | None = None,
    progress: Progress = None,
    **other: Any,
) -> list[ComparedRun]:
    """Evaluate runs on the same sequences and masks; return a `ComparedRun` each, or raise `UserError` if texts differ.

    `baseline` is the index of the run whose held-out text the other runs must share, and `step` selects the checkpoint
    of every run (default: the final model). Pass the arguments of `text_of` as `other` to use a different text.
    """
    first = runs[baseline]
    text = text_of(Model.from_run(first, step=step), first, spec, packed=True, **other)
    shards: list[Path | None] = []
    for run, model in alike(runs, spec, baseline=baseline, step=step):  # report mistakes before anything is measured
        own = text if other or run == first else text_of(model, run, spec, packed=True)
        if len(own.tokens) != len(text.tokens):
            what = f"has {len(own.tokens)} held-out sequences, but {first} has {len(text.tokens)}"
            raise UserError(f"{run} {what}; {_ADVICE}")
        if not (torch.equal(own.tokens, text.tokens) and torch.equal(own.maskable, text.maskable)):
            what = f"has different held-out text from {first}, because its corpus or held-out share differs"
            raise UserError(f"{run} {what}; {_ADVICE}")
        shards.append(own.data)
    names = [run.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run) for run in runs]
    compared = []
    for number, (run, name, data) in enumerate(zip(runs, names, shards, strict=True)):
        model, x = Model.from_run(run, device, step), (text.tokens, text.maskable)
        told = progress_of_part(progress, number * len(text.tokens), len(runs) * len(text.tokens))
        found = numbers_of(model, data, *x, spec, documents=text.documents, seed=seed, progress=told)
        compared.append(
            ComparedRun(
                name=name,
                objective=model.experiment.parts["objective"].name,
                ema=model.experiment.train.ema_decay > 0,
                history=history(RunFolder(run), model.experiment, until=model.step),
                experiment=model.experiment.to_table(),
                **found,
            )
        )
        del model  # so that only one model is in memory at a time
    return compared


def alike(
    runs: Sequence[Path], spec: EvaluationSpec, *, baseline: int, step: int | str | None
) -> Iterator[tuple[Path, Model]]:
    """Yield each run with its model, or raise `UserError` if the run cannot be compared with the baseline."""
    first = runs[baseline]
    tokenizer = read(RunFolder(first).model_at(step) / TOKENIZER)
    data = Model.from_run(first, step=step).experiment.data
    for run in runs:
        model = Model.from_run(run, step=step)
        check_evaluation(model, run, spec)
        if read(RunFolder(run).model_at(step) / TOKENIZER) != tokenizer:
            raise UserError(
                f"{run} has a different tokenizer from {first}: nats per token are not comparable; {_ADVICE}"
            )
        for key in ("length", "special_tokens", "packing", "format"):
            here, there = getattr(data, key), getattr(model.experiment.data, key)
            if here != there:
                problem = f"{run} has data.{key} = {there!r}, but {first} has {here!r}, so their sequences differ"
                raise UserError(f"{problem}; compare runs with the same data.{key}")
        yield run, model


def sizes(module: nn.Module, vocabulary_size: int) -> tuple[int, int]:
    """Return a model's numbers of parameters, first with and then without those that grow with the vocabulary."""
    grow: dict[int, int] = {}
    for part in module.modules():
        if isinstance(part, nn.Embedding) and part.num_embeddings >= vocabulary_size:
            grow |= {id(p): p.numel() for p in part.parameters()}
    # A backbone's head consists only of a column for each token.
    head = getattr(getattr(module, "backbone", None), "head", None)
    if isinstance(head, nn.Module):
        grow |= {id(p): p.numel() for p in head.parameters()}
    total = sum(p.numel() for p in module.parameters())
    return total, total - sum(grow.values())


@attrs.frozen(kw_only=True)
class Difference:
    """A bound of a run minus the baseline's main bound, in nats per token."""

    paired: Interval  # with the interval for paired sequences and masks
    unpaired: Interval  # with the interval for independent sequences, for reference

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object."""
        narrower = self.unpaired.width / self.paired.width if self.paired.width else None
        widths = {"paired_width": self.paired.width, "unpaired_width": self.unpaired.width, "narrower": narrower}
        return self.paired.to_table() | widths


@attrs.frozen(kw_only=True)
class Comparison:
    """The results of several runs, their differences from a baseline, and the settings of the comparison."""

    runs: tuple[ComparedRun, ...]  # in the given order
    # For each run, each of its bounds minus the baseline's first bound; None for that bound itself.
    differences: tuple[Mapping[str, Difference | None], ...]
    quantity: str  # the bound whose differences are shown: `nelbo`, or the estimate of `--bound`
    baseline: str  # name of the run with which the others are compared
    reach: float | None  # the perplexity to reach, or None if no run recorded a perplexity
    corpus: str  # the source of the text; empty for the corpus of the baseline's experiment
    split: str  # name of the split; `all` for the whole text of a corpus
    method: str  # how the bound was estimated
    sequences: int  # n
    draws: int  # masks drawn for each sequence

    seed: int  # of the masks
    tokens: int  # Σ n

    def title(self, name: str) -> str:
        """Return the title of a bound, with its factorisation if all runs that have the bound share it."""
        found = {run.factorisations.get(name, "") for run in self.runs if name in run.nats}
        return title(name, found.pop() if len(found) == 1 else "")

    def reached(self, run: ComparedRun) -> tuple[int | None, float | None]:
        """Return the step and the seconds after which a run reached the perplexity `reach`; None where unknown."""
        step = None if self.reach is None else run.history.reached(self.reach)
        return step, None if step is None else run.history.seconds_at(step)

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object; non-finite numbers become null."""
        plain = attrs.asdict(self, filter=lambda field, _: field.name not in ("runs", "differences"))
        runs = map(self._of_run, self.runs, self.differences)
        return finite(plain | {"level": LEVEL, "resamples": RESAMPLES, "runs": list(runs)})

    def _of_run(self, run: ComparedRun, differences: Mapping[str, Difference | None]) -> dict[str, Any]:
        past, bounds, (steps, seconds), counts = run.history, run.bounds(), self.reached(run), run.beside()
        table: dict[str, Any] = {name: getattr(run, name) for name in ("objective", "step", "ema", "method")}
        if self.quantity in bounds and title(self.quantity) == PERPLEXITY:
            value = bounds[self.quantity]
            table |= {PERPLEXITY: value.value, f"{PERPLEXITY}_stderr": value.stderr}
        return {"run": run.name, **table} | {
            "bounds": {
                name: attrs.asdict(bound) | {"difference": each.to_table() if (each := differences[name]) else None}
                for name, bound in bounds.items()
            },
            "metrics": {name: attrs.asdict(value) for name, value in run.metrics.items()},
            "ngram_prior": counts.to_table() if counts else None,
            "seconds": past.seconds,
            "steps_to_reach": steps,
            "seconds_to_reach": seconds,
            "parameters": run.parameters,
            "parameters_without_embeddings": run.without_embeddings,
            "tokens_per_second": past.tokens_per_second,
            "peak_memory": past.peak_memory,
            "evaluated": [{"step": at, PERPLEXITY: value} for at, value in past.evaluated],
            "computed": past.computed,
        }


def compare(
    runs: Sequence[ComparedRun],
    spec: EvaluationSpec,
    *,
    seed: int,
    baseline: int = 0,
    reach: float | None = None,
    corpus_name: str = "",
    all_of_corpus: bool = False,
) -> Comparison:
    """Return a comparison of runs with a baseline, or raise `UserError` if a run lacks the baseline's main bound.

    `baseline` is the index of the baseline, and `reach` is a perplexity (default: the highest final perplexity). `seed`
    is the seed of the masks; the seed of the bootstrap is fixed. The arguments for a different text are those of
    `text_of`.
    """
    base = runs[baseline]
    quantity = base.quantity
    finals = [run.history.final for run in runs if run.history.final is not None]
    if reach is None and finals:
        reach = max(finals)
    differences = []
    for run in runs:
        if quantity not in run.nats:
            problem = f"{run.name} does not have the bound {quantity!r}, the main bound of {base.name}"
            raise UserError(f"{problem}; compare the runs with --bound exact_k, or choose another --baseline")
        of_run: dict[str, Difference | None] = {}
        for name, nats in run.nats.items():
            pair = nats, base.nats[quantity], base.count
            itself = run is base and name == quantity
            of_run[name] = None if itself else Difference(paired=paired(*pair), unpaired=unpaired(*pair))
        differences.append(of_run)
    return Comparison(
        runs=tuple(runs),
        differences=tuple(differences),
        quantity=quantity,
        baseline=base.name,
        reach=reach,
        corpus=corpus_name,
        split="all" if all_of_corpus else spec.split,
        method=spec.bound.name,
        sequences=len(base.count),
        draws=spec.mask_samples,
        seed=seed,
        tokens=int(base.count.sum()),
    )
