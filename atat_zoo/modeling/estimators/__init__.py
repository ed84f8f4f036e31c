"""Importance estimators, which estimate how hard each token of a sequence is to predict.

The module of an estimator maps tokens to importance in [0, 1]. It reads the backbone's embedding or hidden states, but
detached, so its loss does not train the backbone.

An estimator reads either x, the clean sequence, or z, the masked sequence. Importance computed from x depends on the
masked tokens, so masks and weights that use it bias the model: the posterior no longer minimises the loss. Importance
computed from z depends only on visible tokens, so it introduces no such bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

import attrs
from typing_extensions import override

from atat_zoo.registry import Context, component, component_base, component_param, network_of, param, problems_of
from atat_zoo.system.errors import Problem
from atat_zoo.system.machine import require

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.experiment import Experiment

# The clean text, or the text with masks.
Reads: TypeAlias = Literal["x", "z"]


class EstimatorModule(Protocol):
    """The `nn.Module` that `build` returns, with this `forward`."""

    reads: Reads = "x"  # which tokens it gets
    reads_time: bool = False  # whether `t` changes the result
    reads_hidden: bool = False  # whether it gets hidden states in place of the embedding
    reads_ngram_scores: bool = False  # whether the scores of the n-gram prior follow the embedding

    def __call__(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return importance, float32 [B, L] in [0, 1]; values outside `maskable`, bool [B, L], are ignored.

        `tokens`, int64 [B, L], are x or z, depending on `reads`; the mask id is V. `embedded` [B, L, D] is their
        detached embedding from the backbone. With `reads_hidden`, it is instead the detached hidden state from which
        the head predicts each token, followed by the information, in nats, that each of the R neighbours per side
        gives according to the n-gram prior: [B, L, D + 2R]. With `reads_ngram_scores`, the embedding is followed by the
        surprisal of the token and by the score of the token given each neighbour, both according to the prior:
        [B, L, D + 1 + 2R]. The diffusion time `t` [B] may be None for an estimator that does not read it.
        """


class Estimator(Protocol):
    """A component of kind `estimator`."""

    name: str
    network: ClassVar[str]

    @property
    def reads(self) -> Reads:
        """The sequence that the module reads: "x", the clean one (the default), or "z", the masked one."""
        return "x"

    @property
    def reads_time(self) -> bool:
        """Whether the module reads the diffusion time t; false by default."""
        return False

    @property
    def reads_hidden(self) -> bool:
        """Whether the module reads the backbone's hidden states of z instead of the embedding; false by default."""
        return False

    @property
    def reads_ngram_scores(self) -> bool:
        """Whether the module also reads the scores of each token from the n-gram prior; false by default."""
        return False

    @property
    def learns(self) -> bool:
        """Whether the estimator has parameters to train; false by default."""
        return False

    def width_read(self, width: int, reach: int) -> int:
        """Return the number of values read per token; `width` is the backbone's D, `reach` its n-gram prior's R."""
        return width + 2 * reach * (self.reads_hidden or self.reads_ngram_scores) + self.reads_ngram_scores

    def tells_apart(self, trained: bool) -> bool:
        """Return whether tokens can differ in importance, given whether the estimator is `trained`."""
        return True

    def weights(self, vocabulary_size: int, width: int, length: int) -> int:
        """Return the number of parameters, 0 by default; `width` is the result of `width_read`."""
        return 0

    def flops(self, rows: int, length: int, width: int) -> float:
        """Return the FLOPs of a forward pass over [rows, length] tokens, 0 by default; `width` as in `weights`."""
        return 0.0

    def activations(self, rows: int, length: int, width: int) -> int:
        """Return the bytes of activations kept for the backward pass under bf16 autocast, 0 by default."""
        return 0

    def build(self, context: Context) -> nn.Module:
        """Return an `EstimatorModule`; a module without parameters is not trained."""
        return network_of(self, context)


@component
class UniformEstimator(Estimator):
    """Importance ½ for every token; masking and curriculum then treat all tokens alike."""

    name = "uniform"
    summary = "importance ½ for every token"
    network = "atat_zoo.modeling.estimators.estimator_networks:ConstantModule"

    @override
    def tells_apart(self, trained: bool) -> bool:
        return False


@component
class FrequencyEstimator(Estimator):
    """Importance from the unigram frequencies of the training shards.

    I(v) = log p(v) / min log p, with one added to every count, so a token that never occurs has importance 1. The
    values are stored in a buffer of the model.
    """

    name = "frequency"
    summary = "importance = unigram surprisal, scaled to [0, 1]: rare tokens are important"
    network = "atat_zoo.modeling.estimators.estimator_networks:SurprisalModule"


@component
class TransformerEstimator(Estimator):
    """Transformer layers over the sequence, two by default; importance is a sigmoid output for each token.

    With `reads = "z"`, the layers read the masked sequence and learn the difficulty of each masked token. With
    `ngram_scores`, they also read how probable each token of the clean sequence is given each of its neighbours, which
    they would otherwise have to learn.

    The input is a projection of the backbone's token embedding; the estimator adds about 2 % to the parameters of a
    124M backbone. `own_embedding` adds a separate embedding, as in the ATAT report: 13M parameters for a vocabulary of
    50k.
    """

    name = "transformer"
    learns: ClassVar[bool] = True
    summary = "learned: transformer layers on the backbone's detached token embedding"
    network = "atat_zoo.modeling.estimators.estimator_networks:TransformerModule"
    refs = ("ATAT",)
    reads: Reads = param("x", help="input: x, the clean sequence, or z, the masked one")
    layers: int = param(2, help="transformer layers", ge=1, le=10_000)
    width: int = param(256, help="width of the layers", ge=2)
    heads: int = param(4, help="attention heads", ge=1)
    max_length: int = param(1024, help="maximum sequence length, for the learned position embeddings", ge=1)
    time_conditioning: bool = param(
        False, help="condition the estimator on t; cannot be used with the objective `adaptive`"
    )
    own_embedding: bool = param(False, help="use a separate token embedding instead of the backbone's")
    ngram_scores: bool = param(
        False, help='with reads = "x": also read the scores of each token from the backbone\'s n-gram prior'
    )

    @property
    @override
    def reads_time(self) -> bool:
        return self.time_conditioning

    @property
    @override
    def reads_ngram_scores(self) -> bool:
        return self.ngram_scores

    @override
    def tells_apart(self, trained: bool) -> bool:
        return trained  # it starts at ½ everywhere

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the length or the number of heads does not fit, or n-gram scores cannot be read."""
        if experiment.data.length > self.max_length:
            yield Problem(
                "data.length",
                f"{experiment.data.length} is longer than estimator.max_length = {self.max_length}; "
                "lower data.length or raise estimator.max_length",
            )
        if self.width % self.heads:
            yield Problem(
                "estimator.width", f"{self.width} cannot be split into {self.heads} heads; change estimator.heads"
            )
        if self.ngram_scores:
            remedy = "set estimator.ngram_scores = false"
            if self.reads == "z" or self.own_embedding:
                key = 'reads = "z"' if self.reads == "z" else "own_embedding = true"
                yield Problem("estimator.ngram_scores", f"true cannot be combined with {key}; {remedy}")
            if not experiment.parts["backbone"].ngram_prior:
                yield Problem(
                    "estimator.ngram_scores", f"the backbone has no n-gram prior; set backbone.ngram_prior, or {remedy}"
                )

    @override
    def weights(self, vocabulary_size: int, width: int, length: int) -> int:
        E, rows = self.width, vocabulary_size + 1 if self.own_embedding else width
        time = E * (64 + E + 2) if self.time_conditioning else 0
        return E * (rows + min(self.max_length, length) + 3) + 1 + time + self.layers * E * (12 * E + 9)

    @override
    def flops(self, rows: int, length: int, width: int) -> float:
        E = self.width
        layer = E * (12 * E + 2 * length)
        return 2.0 * rows * length * (self.layers * layer + E + (0 if self.own_embedding else width * E))

    @override
    def activations(self, rows: int, length: int, width: int) -> int:
        # Per layer in float32: the inputs of two norms; in bf16: 2 norms, 3 queries, keys and values, 1 attention, and
        # twice the width of the feed-forward layer, 4 E; also the statistics of the norms and of attention. Once: the
        # embedding in bf16 and the last norm.
        layer = 4 * 2 * self.width + 2 * (6 + 2 * 4) * self.width + 4 * (4 + self.heads)
        return rows * length * (self.layers * layer + 6 * self.width + (0 if self.own_embedding else 2 * width))

    @override
    def build(self, context: Context) -> nn.Module:
        weights = self.weights(context.vocabulary_size, context.width, context.length)
        asked = f"an estimator of {self.layers} layers and width {self.width}"
        require(4 * weights, asked, "its weights", "reduce `layers` or `width`")
        return super().build(context)


@component
class LossPredictionEstimator(Estimator):
    """A small MLP that predicts the loss of each masked token from the backbone's detached hidden state.

    With an n-gram prior, it also reads how much each neighbour narrows the prediction down, since the hidden state need
    not represent what the prior adds to the logits. The importance of visible tokens is meaningless. In training, in
    evaluations and in the decoding steps of masked diffusion, it needs no extra forward pass of the backbone.
    """

    name = "loss_prediction"
    learns: ClassVar[bool] = True
    reads: ClassVar[Reads] = "z"
    reads_hidden: ClassVar[bool] = True
    summary = "learned: a small MLP on the backbone's detached hidden states predicts the loss of masked tokens"
    network = "atat_zoo.modeling.estimators.estimator_networks:LossPredictionModule"
    refs = ("arXiv:1905.03677",)
    width: int = param(128, help="width of the hidden layer", ge=1, le=65_536)

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the sampler would run the backbone twice per step, since NFE would count one pass only."""
        sampler, objective = experiment.parts["sampler"], experiment.parts["objective"]
        reads_time = experiment.parts["backbone"].reads_time
        if sampler.uses_importance and (objective.masks_attention or reads_time):
            why = "a backbone that reads the time" if reads_time else f"the objective {objective.name!r}"
            yield Problem(
                "sampler",
                f"{sampler.name!r} uses importance, for which the estimator 'loss_prediction' needs an extra forward "
                f"pass in every step with {why}; choose a different sampler or the estimator 'transformer'",
            )

    @override
    def tells_apart(self, trained: bool) -> bool:
        return trained  # it starts at ½ everywhere

    @override
    def weights(self, vocabulary_size: int, width: int, length: int) -> int:
        return self.width * (width + 2) + 1

    @override
    def flops(self, rows: int, length: int, width: int) -> float:
        return 2.0 * rows * length * self.width * (width + 1)

    @override
    def activations(self, rows: int, length: int, width: int) -> int:
        # The hidden states in float32 and normalised in bf16; twice the layer in bf16; the statistics of the norm.
        return rows * length * (6 * width + 4 * self.width + 8)


@component_base
class _ComposedEstimator(Estimator):
    """An estimator composed of inner estimators."""

    inside: ClassVar[tuple[str, ...]]  # the parameters that are estimators; the first one is trained

    @property
    def trained(self) -> Estimator:
        """The inner estimator that is trained; all inner estimators read the same input, x or z."""
        return getattr(self, self.inside[0])

    @property
    def _all(self) -> list[Estimator]:
        return [getattr(self, name) for name in self.inside]

    @override
    def weights(self, vocabulary_size: int, width: int, length: int) -> int:
        return sum(each.weights(vocabulary_size, width, length) for each in self._all)

    @override
    def flops(self, rows: int, length: int, width: int) -> float:
        return sum(each.flops(rows, length, width) for each in self._all)

    @override
    def activations(self, rows: int, length: int, width: int) -> int:
        return sum(each.activations(rows, length, width) for each in self._all)

    @property
    @override
    def learns(self) -> bool:
        return self.trained.learns

    @property
    @override
    def reads(self) -> Reads:
        return self.trained.reads

    @property
    @override
    def reads_time(self) -> bool:
        return any(getattr(self, name).reads_time for name in self.inside)

    @property
    @override
    def reads_hidden(self) -> bool:
        return self.trained.reads_hidden

    @property
    @override
    def reads_ngram_scores(self) -> bool:
        return self.trained.reads_ngram_scores

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems of the inner estimators, which must all read x or all read z."""
        for key in self.inside:
            inner = getattr(self, key)
            if inner.reads != self.reads:
                yield Problem(
                    f"estimator.{key}",
                    f"{inner.name!r} reads {inner.reads} but the {self.inside[0]} estimator reads "
                    f"{self.reads}; choose estimators that read the same sequence, or use only one of them",
                )
            elif inner.learns and inner.width_read(1, 1) != self.width_read(1, 1):
                yield Problem(
                    f"estimator.{key}",
                    f"{inner.name!r} and {self.trained.name!r} read different inputs (embeddings, hidden states or "
                    "n-gram scores); replace one of them, or give both the same settings",
                )
            for problem in problems_of(inner, experiment):
                # A problem names the table `estimator`, but the inner estimator is nested one level deeper.
                yield Problem(*(text.replace("estimator.", f"estimator.{key}.") for text in attrs.astuple(problem)))


@component
class HybridEstimator(_ComposedEstimator):
    """The mixture I = mix · learned + (1 − mix) · prior; only the learned estimator is trained."""

    name = "hybrid"
    summary = "weighted mean of a learned estimator and a prior, by default token frequency: 0.7 and 0.3"
    network = "atat_zoo.modeling.estimators.estimator_networks:MixModule"
    refs = ("ATAT",)
    inside = ("learned", "prior")
    mix: float = param(0.7, help="weight of the learned estimator; the prior has weight 1 − mix", ge=0, le=1)
    learned: Estimator = component_param("estimator", "transformer", help="estimator that is trained")
    prior: Estimator = component_param("estimator", "frequency", help="estimator that the learned one is mixed with")

    @override
    def tells_apart(self, trained: bool) -> bool:
        learned, prior = self.learned.tells_apart(trained), self.prior.tells_apart(False)
        return bool(self.mix and learned) or (self.mix < 1 and prior)


@component
class TermBiasEstimator(_ComposedEstimator):
    """Another estimator, whose importance I is raised to I + s · (1 − I) for given words, with strength s.

    A negative strength lowers it to I + s · I. The mean mask rate of a sequence does not change, so raising importance
    masks these words more often and all others less often. The guidance `importance_bias` does the same for sampling,
    with any model.
    """

    name = "term_bias"
    summary = "another estimator with the importance of given words raised or lowered"
    network = "atat_zoo.modeling.estimators.estimator_networks:BiasedModule"
    refs = ("ATAT",)
    inside = ("base",)

    words: tuple[str, ...] = param((), help="words or phrases whose importance changes")
    strength: float = param(
        0.5, help="fraction by which importance moves towards 1 (or towards 0, if negative)", ge=-1, le=1
    )
    base: Estimator = component_param("estimator", "uniform", help="estimator whose importance is changed")

    @override
    def tells_apart(self, trained: bool) -> bool:
        return bool(self.words and self.strength) or self.base.tells_apart(trained)

    @override
    def build(self, context: Context) -> nn.Module:
        """Return the module; raise a `UserError` that names any word unknown to the tokenizer."""
        return super().build(context) if self.words and self.strength else self.base.build(context)
