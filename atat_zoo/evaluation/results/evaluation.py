"""The numbers of an evaluation: bounds on −log p of held-out text, metrics and baselines."""

import math
from collections.abc import Mapping
from typing import Any

import attrs
from typing_extensions import override

from atat_zoo.evaluation.results.format import NONE, cell, size, with_error
from atat_zoo.evaluation.results.quantity_names import ANSWERS, NELBO, PERPLEXITY, exponential, title
from atat_zoo.evaluation.results.store import RunResult, finite
from atat_zoo.experiment import Experiment
from atat_zoo.modeling.bounds import Bound

# The method of an objective with an exact likelihood, which needs no random masks.
LIKELIHOOD = "likelihood"


@attrs.frozen(kw_only=True)
class BoundValue:
    """One bound on −log p_θ(x). Errors are standard errors over sequences."""

    nats_per_token: float  # Σ bound / Σ tokens
    value: float  # the exponential of nats_per_token; the perplexity if the bound is `nelbo`
    stderr: float  # of the value
    bits_per_byte: float  # Σ bound in bits, divided by the number of UTF-8 bytes
    bits_per_byte_stderr: float  # of bits_per_byte
    factorisation: str = ""  # of the text, as named by `Objective.factorisations`; may be empty


@attrs.frozen(kw_only=True)
class MetricValue:
    """The value of a metric, with its standard error and details where the metric has them."""

    value: float
    stderr: float | None = None  # standard error over sequences, if the metric computes it
    table: dict[str, list[float]] | None = None  # details by column, such as the bins of a calibration

    @property
    def said(self) -> str:
        """The value and its error with four decimals, or a dash if the value is not finite."""
        if not math.isfinite(self.value):
            return NONE
        return with_error(self.value, self.stderr, ".4f")


@attrs.frozen(kw_only=True)
class NGramPriorValue:
    """An n-gram baseline, and a model's difference from it. Errors are standard errors over sequences."""

    reads: str  # the tokens that the n-gram model reads

    counted: int  # number of counted sequences in the training shards
    nats_per_token: float
    value: float  # the exponential of nats_per_token

    stderr: float  # of the value
    difference: float  # the model's nats per token minus the n-gram model's, on the same tokens and masks
    difference_stderr: float  # of the difference, from paired differences

    @property
    def percent(self) -> tuple[float, float]:
        """The model's perplexity relative to the n-gram model's, as a change in percent, and its standard error."""
        times = exponential(self.difference)
        return 100 * (times - 1), 100 * times * self.difference_stderr

    @property
    def verdict(self) -> str:
        """How much lower or higher the model's perplexity is, such as `12.3 ± 0.4 % lower`."""
        percent, error = self.percent
        return f"{with_error(abs(percent), error, '.1f')} % {'lower' if percent < 0 else 'higher'}"

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object."""
        percent, error = self.percent
        return attrs.asdict(self) | {"percent": percent, "percent_stderr": error}


@attrs.frozen(kw_only=True)
class Evaluation(RunResult):
    """The bounds, metrics and baselines of an evaluation, and its settings."""

    corpus: str  # the source of the text; empty for the experiment's own
    form: str = "text"  # as in `[data]`; for `chat`, only the answers are measured, given everything else
    split: str  # name of the held-out split

    step: int  # optimizer steps of the weights
    ema: bool  # whether the weights are EMA weights
    method: str  # how the bound was estimated; `likelihood` if it is exact
    sequences: int  # number of sequences
    draws: int  # masks drawn for each sequence; 0 for a likelihood
    seed: int  # of the masks
    tokens: int  # number of tokens, including special tokens but not padding
    special_tokens: int  # number of BOS and EOS among these tokens
    padding: int  # number of positions that are not counted
    bytes: int  # UTF-8 bytes of the tokens
    characters: int  # of the decoded text
    words: int  # of the decoded text; a word begins after white space within a sequence
    bounds: Mapping[str, BoundValue]  # by name; the perplexity is the exponential of `nelbo`
    perplexity_without_special: float | None  # over text tokens only; None without `nelbo`
    bits_per_character: float | None  # Σ NELBO over characters, None without `nelbo` or text
    perplexity_per_word: float | None  # exp(Σ NELBO / words), None without `nelbo` or words
    unigram_perplexity: float | None  # from the frequencies of the training tokens, on the same tokens
    ngram_prior: NGramPriorValue | None  # an n-gram model of the training tokens, on the same tokens and masks
    metrics: Mapping[str, MetricValue] = attrs.field(factory=dict)  # the metrics in evaluation.metrics, by title
    importance_spearman: float | None  # ρ between importance and per-token loss
    frequency_spearman: float | None  # ρ between unigram surprisal and per-token loss
    entropy_spearman: float | None = None  # ρ between the prediction's entropy and per-token loss, with an estimator
    importance_chance: float | None = None  # standard error of ρ by chance; None without learned importance

    @property
    def learned_nothing(self) -> bool:
        """Whether the importance orders the tokens by their loss no better than chance; False without importance."""
        return by_chance(self.importance_spearman, self.importance_chance)

    @property
    def nelbo(self) -> BoundValue | None:
        """The bound whose exponential is the perplexity, or None if it was not computed."""
        return self.bounds.get(NELBO)

    @property
    def own(self) -> tuple[str, BoundValue]:
        """The name and value of the objective's own bound, the last one; by it, a model is the best one of a run.

        An example is the NLL under the position sets of a set-causal model, whose any-order ELBO may rise meanwhile.
        """
        return list(self.bounds.items())[-1]

    @override
    def to_table(self) -> dict[str, Any]:
        table = attrs.asdict(self)
        if self.nelbo:  # also at the top level, where most readers look
            nelbo = attrs.asdict(self.nelbo)
            table |= {PERPLEXITY: nelbo.pop("value"), f"{PERPLEXITY}_stderr": nelbo.pop("stderr"), **nelbo}
        if self.ngram_prior:
            table["ngram_prior"] = self.ngram_prior.to_table()
        return finite(table)

    @property
    @override
    def key(self) -> str:
        # The name of a bound that is not a perplexity includes its steps, so that other steps do not overwrite it.
        method = self.method if self.nelbo or ANSWERS in self.bounds else next(iter(self.bounds))
        form = ANSWERS if self.form == "chat" else ""
        what = "-".join(word for word in (self.corpus, self.split, form, method) if word)
        return f"{what}-{self.sequences}x{self.draws}"

    def sentence(self, of: int = 0) -> str:
        """Return one line per bound; `of` is the total number of sequences if only some of them were evaluated."""
        first, *others = (
            f"{title(name, bound.factorisation)} {with_error(bound.value, bound.stderr, '.1f')}"
            for name, bound in self.bounds.items()
        )
        return "\n  ".join([f"{self.split} {first} ({size(self.sequences, self.draws, of)})", *others])

    def on_importance(self) -> list[str]:
        """Return sentences on how well the importance orders tokens by their loss."""
        rho, chance = self.importance_spearman, self.importance_chance
        if rho is None and chance is None:
            return []
        others = {"token frequency": self.frequency_spearman, "entropy of the prediction": self.entropy_spearman}
        known = "".join(f"; {name}: {value:.3f}" for name, value in others.items() if value is not None)
        found = f"{cell(rho, '.3f')} (by chance up to ±{2 * chance:.3f}{known})" if chance else f"{rho:.3f}"
        said = [f"rank correlation (Spearman ρ) of importance with the per-token loss: {found}"]
        if self.learned_nothing:
            said.append("the importance estimator learned nothing: it orders the tokens no better than chance")
        return said


def by_chance(spearman: float | None, chance: float | None) -> bool:
    """Return whether ρ (None: constant importance) is at most twice `chance`, its standard error, if that is known."""
    return chance is not None and (spearman is None or spearman <= 2 * chance)


def method_of(experiment: Experiment, bound: Bound) -> str:
    """Return the name of the bound estimator that evaluates an experiment's model, or `likelihood` if it is exact."""
    return LIKELIHOOD if experiment.parts["objective"].exact else bound.name
