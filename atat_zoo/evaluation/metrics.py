"""Metrics: numbers of a model's predictions of masked tokens, or of its texts, with errors, on any number of ranks.

An evaluation updates a metric of predictions with what it computes anyway: the predictions of the N masked tokens of
each batch under each mask. Their weights are those of the bound, so that every number of masks k = 1 … n counts alike
with `exact_k`; where the likelihood is exact, every token is predicted once, with weight 1. V predictable tokens.

A metric of texts is updated with n texts that a run's own sampler has written, each beside held-out text as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import attrs
from typing_extensions import override

from atat_zoo.evaluation.mauve import FEWEST_OF_MAUVE, RELIABLE_OF_MAUVE
from atat_zoo.evaluation.results.quantity_names import GENERATIVE_PERPLEXITY
from atat_zoo.registry import component, component_param, param
from atat_zoo.registry.spec import values_of
from atat_zoo.system.machine import lacking

if TYPE_CHECKING:
    from torchmetrics import Metric as TorchMetric


class Metric(Protocol):
    """A component of the kind metric."""

    name: str
    #: What it is a number of.
    reads: ClassVar[Literal["predictions", "texts"]] = "predictions"

    @property
    def title(self) -> str:
        """What the number is called, in JSON; tables write it with spaces. No other metric of an evaluation has it."""
        return self.name

    @property
    def ngrams(self) -> tuple[int, ...] | None:
        """The n of the n-grams of texts to look up in the training text; None: the training text is not read."""
        return None

    def build(self) -> TorchMetric:
        """Return a `torchmetrics.Metric` whose states add up over batches and ranks, and do not depend on their order.

        Of these its `update` takes the arguments that it names. A metric of predictions, some positions at a time:

        - `log_probs`, float [N, V]; `tokens`, the true ones, int64 [N]; `weight`, float64 [N];
        - `row`, the row of each token in its batch, int64 [N]; `sequence`, the number in the held-out text of the
          sequence in each row of the batch, int64 [B].

        A metric of texts, some texts at a time, or none:

        - `texts`, n of them, and their numbers `sequence`, int64 [n]; `references`, n held-out texts as long;
        - `pieces`, the tokens of each text in the vocabulary of its model, as arrays int64 [L] between which there were
          special tokens;
        - `judge_of`, which returns the `JudgeModel` of a specification of the kind judge;
        - `overlap`, that of these texts with the training text, of `ngrams`.

        Its `compute` returns a scalar, or a `MetricValue`.
        """
        ...


def of_states(name: str, score: str | None = None) -> Any:
    """Return the method `build` of a metric: a class of `metric_states`, of a function there, takes its parameters."""

    def build(self: Metric) -> TorchMetric:
        from atat_zoo.evaluation import metric_states  # torchmetrics takes seconds to import

        of = () if score is None else (getattr(metric_states, score),)
        return getattr(metric_states, name)(*of, **values_of(self))

    return build


def built(metrics: Iterable[Metric]) -> dict[str, TorchMetric]:
    """Return metrics ready for an evaluation, by their titles."""
    return {metric.title: metric.build() for metric in metrics}


def reading(metrics: Iterable[Metric], what: Literal["predictions", "texts"]) -> tuple[Metric, ...]:
    """Return those of some metrics that read predictions, or texts."""
    return tuple(metric for metric in metrics if metric.reads == what)


@component
class BrierMetric(Metric):
    """Σ_v (p_v − 1[v = x])², in [0, 2]: 0 is perfect, 2 the worst (Brier, 1950)."""

    name = "brier_score"
    summary = "Brier score: squared distance of the prediction to the true token, 0 to 2; lower is better"
    refs = ("https://doi.org/10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2",)
    build = of_states("SequenceMean", score="brier")


@component
class TopAccuracyMetric(Metric):
    """The share of the tokens that are among the k most probable ones."""

    name = "top_accuracy"
    summary = "fraction of tokens among the k most probable predictions"
    refs = ("arXiv:1409.0575",)

    k: int = param(1, help="number of most probable tokens that count as correct", ge=1)

    @property
    @override
    def title(self) -> str:
        return f"top_{self.k}_accuracy"

    build = of_states("SequenceMean", score="among_top")


@component
class CalibrationErrorMetric(Metric):
    """Σ_b w_b |confidence_b − accuracy_b| / Σ w over bins of the largest probability (Guo et al., arXiv:1706.04599).

    It is 0 for a model that is right in 70 % of the cases with a confidence of 70 %, and so on.
    """

    name = "calibration_error"
    summary = "expected calibration error of the predictions, binned by confidence"
    refs = ("arXiv:1706.04599",)

    bins: int = param(15, help="number of bins of equal width", ge=1)
    build = of_states("Calibration")


@component
class GenerativeMetric(Metric):
    """Generative perplexity: exp(Σ −log p / Σ tokens) of the generated texts, with p and tokens of a judge model.

    Repetitive text has a low value too, so report `unigram_entropy` as well.
    """

    name = GENERATIVE_PERPLEXITY.replace(" ", "_")
    summary = "generative perplexity: perplexity of generated texts under a judge model; report it with unigram_entropy"
    refs = ("arXiv:1904.09751",)
    reads = "texts"

    judge: Any = component_param("judge", attrs.NOTHING, help="judge model that scores the texts")
    build = of_states("JudgedNats")


@component
class UnigramEntropyMetric(Metric):
    """Entropy of the token frequencies within a text, in nats, averaged over the texts; at most log L.

    It is computed per text, as in s-sahoo/duo, metrics.py (arXiv:2506.10892), and not pooled: pooling would hide texts
    that each repeat themselves in a different way. Unlike there, BOS and EOS do not count.
    """

    name = "unigram_entropy"
    summary = "unigram entropy of the tokens of a generated text, in nats; low for repetitive text"
    refs = ("arXiv:2506.10892",)
    reads = "texts"
    build = of_states("TextMean", score="entropy")


@component
class DistinctMetric(Metric):
    """Distinct n-grams of tokens over all n-grams, pooled over the texts (Li et al., NAACL 2016)."""

    name = "distinct"
    summary = "fraction of distinct token n-grams, pooled over the generated texts"
    refs = ("arXiv:1510.03055",)
    reads = "texts"

    n: int = param(2, help="n, tokens per n-gram", ge=1)

    @property
    @override
    def title(self) -> str:
        return f"distinct_{self.n}"

    build = of_states("Distinct")


@component
class SelfBleuMetric(Metric):
    """BLEU of each text with all others as references, averaged over the texts (Zhu et al., SIGIR 2018).

    BLEU is that of torchmetrics, over whitespace-separated words; 1 if every text is a copy of another one. The value
    depends on the number of texts, so compare only equal numbers.
    """

    name = "self_bleu"
    summary = "BLEU of each generated text against the others; high for low diversity"
    refs = ("arXiv:1802.01886",)
    reads = "texts"

    n: int = param(4, help="maximum n, in words", ge=1)
    most: int = param(100, help="number of texts to compare; time grows quadratically", ge=2)
    build = of_states("SelfBleu")


@component
class CoherenceMetric(Metric):
    """The cosine between the word counts of a sentence and of the next one, averaged over these pairs, in [0, 1].

    Foltz, Kintsch and Landauer (Discourse Processes 25, 1998), on the counts themselves in place of a latent space of
    them. 1 for a text that repeats a sentence; texts of people are in between.
    """

    name = "coherence"
    summary = "cosine similarity of the word counts of adjacent sentences"
    refs = ("https://doi.org/10.1080/01638539809545029",)
    reads = "texts"
    build = of_states("TextMean", score="adjacent")


@component
class MauveMetric(Metric):
    """MAUVE: the similarity of the set of texts and the set of held-out ones, in (0, 1], on a judge's features.

    Computed by its authors' package, which compares histograms over n/10 clusters of features along a curve of mixtures
    (Pillutla et al., NeurIPS 2021). Of fewer than a thousand texts it hardly tells models apart.
    """

    name = "mauve"
    summary = "MAUVE between generated and held-out text, on features of a judge model"
    refs = ("arXiv:2102.01454",)
    reads = "texts"
    package = ("mauve", "atat-zoo[mauve]")

    judge: Any = component_param("judge", attrs.NOTHING, help="judge model that computes the features")

    def check(self, experiment: Any) -> Iterable[str]:
        """Yield what keeps it from being computed."""
        yield from lacking([self])
        spec, train = experiment.evaluation, experiment.train
        asked = {"evaluation.texts": spec.texts, "evaluation.sequences": spec.sequences}
        if train.evaluate_every:
            asked["train.evaluate_sequences"] = train.evaluate_sequences
        key = min(filter(asked.get, asked), key=lambda key: asked[key])  # 0 is all there are
        if (number := asked[key]) < FEWEST_OF_MAUVE:
            yield f"{key} = {number}: mauve needs {FEWEST_OF_MAUVE} at least, and better {RELIABLE_OF_MAUVE}; raise it"

    build = of_states("Mauve")


@component
class CopiedMetric(Metric):
    """Fraction of the generated token n-grams that occur anywhere in the training text, by exact comparison."""

    name = "copied"
    summary = "fraction of generated token n-grams that occur in the training text"
    refs = ("arXiv:2111.09509",)
    reads = "texts"

    n: int = param(8, help="n, tokens per n-gram", ge=1)

    @property
    @override
    def title(self) -> str:
        return f"copied_{self.n}"

    @property
    @override
    def ngrams(self) -> tuple[int, ...]:
        return (self.n,)

    build = of_states("Copied")


@component
class LongestCopyMetric(Metric):
    """Number of tokens of a text's longest span that occurs in the training text."""

    name = "longest_copy"
    summary = "length in tokens of the longest generated span that occurs in the training text"
    refs = ("arXiv:2111.09509",)
    reads = "texts"
    ngrams = ()
    build = of_states("LongestCopy")
