"""Metrics of a model's predictions of masked tokens or of generated texts, with standard errors.

An evaluation updates a metric of predictions once per batch and mask, with the predictions over V tokens for the N
masked tokens of the batch. Predictions are weighted as in the bound: with `exact_k`, the numbers of masked tokens, from
one to all, have equal total weights; with an exact likelihood, every token is predicted once with weight 1.

A metric of texts is updated with n texts that the run's sampler generates, and with n held-out texts.
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

    from atat_zoo.evaluation.judges import Judge


class Metric(Protocol):
    """A component of the kind `metric`, which evaluates predictions or generated texts."""

    name: str
    #: Whether the metric evaluates predictions or generated texts.
    reads: ClassVar[Literal["predictions", "texts"]] = "predictions"

    @property
    def title(self) -> str:
        """The metric's name in JSON, unique within an evaluation; tables replace its underscores with spaces."""
        return self.name

    @property
    def ngrams(self) -> tuple[int, ...] | None:
        """The sizes n of the n-grams to look up in the training text, or None if the metric does not read this text."""
        return None

    def build(self) -> TorchMetric:
        """Return a `torchmetrics.Metric` whose states can be merged over batches and ranks in any order.

        Its `update` may take any of the following arguments by name. A metric of predictions gets N predictions:

        - `log_probs`, float [N, V]; `tokens`, the true tokens, int64 [N]; `weight`, float64 [N];
        - `row`, the row of each token in its batch, int64 [N]; `sequence`, the index of each row's sequence in the
          held-out text, int64 [B].

        A metric of texts gets n texts, where n may be 0:

        - `texts`, and their indices `sequence`, int64 [n]; `references`, the texts of n held-out sequences;
        - `pieces`, for each text, its tokens split at special tokens into arrays int64 [L];
        - `judge_of`, a function that returns the `JudgeModel` of a judge component;
        - `overlap`, the overlap of the texts with the training text, for the n in `ngrams`.

        Its `compute` returns a scalar or a `MetricValue`.
        """
        ...


def of_states(name: str, score: str | None = None) -> Any:
    """Return a `build` method that calls the class `name` of `metric_states` with its `score` and the parameters."""

    def build(self: Metric) -> TorchMetric:
        from atat_zoo.evaluation import metric_states  # torchmetrics takes seconds to import

        of = () if score is None else (getattr(metric_states, score),)
        return getattr(metric_states, name)(*of, **values_of(self))

    return build


def built(metrics: Iterable[Metric]) -> dict[str, TorchMetric]:
    """Return a dict from each metric's title to its `torchmetrics.Metric`."""
    return {metric.title: metric.build() for metric in metrics}


def reading(metrics: Iterable[Metric], what: Literal["predictions", "texts"]) -> tuple[Metric, ...]:
    """Return the metrics whose `reads` is `what`."""
    return tuple(metric for metric in metrics if metric.reads == what)


@component
class BrierMetric(Metric):
    """Brier score, Σ_v (p_v − 1[v = x])², in [0, 2]: 0 is best, 2 is worst (Brier, 1950)."""

    name = "brier_score"
    summary = "Brier score: squared distance between predicted probabilities and one-hot true token, 0 (best) to 2"
    refs = ("https://doi.org/10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2",)
    build = of_states("SequenceMean", score="brier")


@component
class TopAccuracyMetric(Metric):
    """Fraction of predictions whose k most probable tokens include the true token."""

    name = "top_accuracy"
    summary = "fraction of predictions whose k most probable tokens include the true token"
    refs = ("arXiv:1409.0575",)

    k: int = param(1, help="number of most probable tokens that count as correct", ge=1)

    @property
    @override
    def title(self) -> str:
        return f"top_{self.k}_accuracy"

    build = of_states("SequenceMean", score="among_top")


@component
class CalibrationErrorMetric(Metric):
    """Expected calibration error, Σ_b w_b |confidence_b − accuracy_b| / Σ_b w_b (Guo et al., arXiv:1706.04599).

    Confidence is the largest probability of a prediction. It divides the predictions into bins b of total weight w_b.
    The error is 0 if the model is right in 70 % of the cases with 70 % confidence, and so on for every confidence.
    """

    name = "calibration_error"
    summary = "expected calibration error of the predictions, binned by confidence"
    refs = ("arXiv:1706.04599",)

    bins: int = param(15, help="number of bins of equal width", ge=1)
    build = of_states("Calibration")


@component
class GenerativeMetric(Metric):
    """Generative perplexity of texts: exp(Σ −log p / Σ tokens), with the judge model's probabilities p and tokenizer.

    Repetitive text also has a low generative perplexity, so report `unigram_entropy` as well.
    """

    name = GENERATIVE_PERPLEXITY.replace(" ", "_")
    summary = "generative perplexity: perplexity of generated texts under a judge model; report it with unigram_entropy"
    refs = ("arXiv:1904.09751",)
    reads = "texts"

    judge: Judge = component_param("judge", attrs.NOTHING, help="judge model that scores the texts")
    build = of_states("JudgedNats")


@component
class UnigramEntropyMetric(Metric):
    """Entropy of the token frequencies within a text, in nats, averaged over the texts: at most log L for L tokens.

    The entropy is computed per text, as in metrics.py of s-sahoo/duo (arXiv:2506.10892), because pooling would hide
    texts that repeat themselves, each in a different way. Unlike in that code, BOS and EOS are not counted.
    """

    name = "unigram_entropy"
    summary = "unigram entropy of the tokens in a generated text, in nats; low for repetitive text"
    refs = ("arXiv:2506.10892",)
    reads = "texts"
    build = of_states("TextMean", score="entropy")


@component
class DistinctMetric(Metric):
    """Ratio of distinct token n-grams to all token n-grams, pooled over the texts (Li et al., NAACL 2016)."""

    name = "distinct"
    summary = "fraction of distinct token n-grams, pooled over the generated texts"
    refs = ("arXiv:1510.03055",)
    reads = "texts"

    n: int = param(2, help="number of tokens per n-gram", ge=1)

    @property
    @override
    def title(self) -> str:
        return f"distinct_{self.n}"

    build = of_states("Distinct")


@component
class SelfBleuMetric(Metric):
    """BLEU of each of the first `most` texts with the others as references, averaged (Zhu et al., SIGIR 2018).

    BLEU is computed by torchmetrics on whitespace-separated words; it is 1 if every text is a copy of another text. The
    value depends on the number of texts, so compare only values for the same number of texts.
    """

    name = "self_bleu"
    summary = "BLEU of each generated text against the other texts; high if diversity is low"
    refs = ("arXiv:1802.01886",)
    reads = "texts"

    n: int = param(4, help="maximum number of words per n-gram", ge=1)
    most: int = param(100, help="maximum number of texts to compare; the time grows quadratically with it", ge=2)
    build = of_states("SelfBleu")


@component
class CoherenceMetric(Metric):
    """Cosine similarity of the word counts of adjacent sentences, averaged over the pairs, in [0, 1].

    The metric follows Foltz, Kintsch and Landauer (Discourse Processes 25, 1998), but compares word counts, not latent
    semantic analysis (LSA) vectors. A text that repeats one sentence has the value 1: higher is not always better.
    """

    name = "coherence"
    summary = "cosine similarity of the word counts of adjacent sentences"
    refs = ("https://doi.org/10.1080/01638539809545029",)
    reads = "texts"
    build = of_states("TextMean", score="adjacent")


@component
class MauveMetric(Metric):
    """MAUVE: the similarity, in (0, 1], of generated and held-out texts in a judge's features.

    MAUVE is computed by its authors' package, which divides the features into n/10 clusters and compares the two
    histograms over clusters (Pillutla et al., NeurIPS 2021). It is unreliable for fewer than a thousand texts.
    """

    name = "mauve"
    summary = "MAUVE between generated and held-out text, in the features of a judge model"
    refs = ("arXiv:2102.01454",)
    reads = "texts"
    package = ("mauve", "atat-zoo[mauve]")

    judge: Judge = component_param("judge", attrs.NOTHING, help="judge model that computes the features")

    def check(self, experiment: Any) -> Iterable[str]:
        """Yield a sentence for each reason why an experiment's evaluations cannot compute this metric."""
        yield from lacking([self])
        spec, train = experiment.evaluation, experiment.train
        asked = {"evaluation.texts": spec.texts, "evaluation.sequences": spec.sequences}
        if train.evaluate_every:
            asked["train.evaluate_sequences"] = train.evaluate_sequences
        key = min(filter(asked.get, asked), key=lambda key: asked[key])  # 0 means all
        if (number := asked[key]) < FEWEST_OF_MAUVE:
            enough = f"at least {FEWEST_OF_MAUVE} texts, preferably {RELIABLE_OF_MAUVE}"
            yield f"{key} = {number}: mauve needs {enough}; raise {key}"

    build = of_states("Mauve")


@component
class CopiedMetric(Metric):
    """Fraction of the generated token n-grams that occur anywhere in the training text, compared exactly."""

    name = "copied"
    summary = "fraction of generated token n-grams that occur in the training text"
    refs = ("arXiv:2111.09509",)
    reads = "texts"

    n: int = param(8, help="number of tokens per n-gram", ge=1)

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
    """Length in tokens of the longest generated span that occurs in the training text."""

    name = "longest_copy"
    summary = "length in tokens of the longest generated span that occurs in the training text"
    refs = ("arXiv:2111.09509",)
    reads = "texts"
    ngrams = ()
    build = of_states("LongestCopy")
