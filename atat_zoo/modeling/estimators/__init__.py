"""Importance estimators: which tokens of a text are hard to predict.

The module of an estimator maps tokens to importance in [0, 1]. It gets the backbone's embedding as a detached input,
so its loss does not train the backbone.

An estimator reads x, the clean text, or z, the text with masks. One on x knows the tokens that it weighs: masks and
weights by it tilt what the model learns, since the posterior of a hidden token is then no longer what fits best. One on
z says how hard a hidden token is, given what is shown: nothing that follows from it tilts anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

import attrs
from typing_extensions import override

from atat_zoo.experiment.effects import weighs_tokens
from atat_zoo.registry import Context, component, component_base, component_param, network_of, param, problems_of
from atat_zoo.system.errors import Problem, UserError
from atat_zoo.system.machine import require

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.experiment import Experiment

# The clean text, or the text with masks.
Reads: TypeAlias = Literal["x", "z"]


class EstimatorModule(Protocol):
    """The result of `build`: an `nn.Module` with this `forward`."""

    reads: Reads = "x"  # which tokens it gets
    reads_time: bool = False  # whether `t` changes the result

    def __call__(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return importance, float32 [B, L] in [0, 1]; where not `maskable`, bool [B, L], it is not used.

        The tokens are x or z, as `reads` says, int64 [B, L]; the mask is the id after the last. Their embedding by the
        backbone, [B, L, D], is detached. The diffusion time, [B], may be None for an estimator that does not read it.
        """


class Estimator(Protocol):
    """A component of the kind estimator."""

    name: str
    network: ClassVar[str]

    @property
    def reads(self) -> Reads:
        """Whether its module reads the clean text, "x", by default, or the one with masks, "z"."""
        return "x"

    @property
    def reads_time(self) -> bool:
        """Whether its module reads t; by default it does not."""
        return False

    @property
    def learns(self) -> bool:
        """Whether it has anything to train; by default it has not."""
        return False

    def tells_apart(self, trained: bool) -> bool:
        """Return whether tokens can have different importance, if what can be learned of it is `trained`, or is not."""
        return True

    def weights(self, vocabulary_size: int, width: int, length: int) -> int:
        """Return the number of its parameters, 0 by default; `width` is the backbone's D."""
        return 0

    def flops(self, rows: int, length: int, width: int) -> float:
        """Return the FLOPs of a forward pass over [rows, length] tokens, 0 by default; `width` is the backbone's D."""
        return 0.0

    def activations(self, rows: int, length: int, width: int) -> int:
        """Return the bytes that it keeps for the backward pass under autocast to bf16, 0 by default."""
        return 0

    def build(self, context: Context) -> nn.Module:
        """Return an `EstimatorModule`; one without parameters is not trained."""
        module: nn.Module = network_of(self, context)
        return module


@component
class UniformEstimator(Estimator):
    """Importance ½ for every token, so masking and curriculum treat all tokens alike."""

    name = "uniform"
    summary = "the same importance for every token"
    network = "atat_zoo.modeling.estimators.estimator_networks:ConstantModule"

    @override
    def tells_apart(self, trained: bool) -> bool:
        return False


@component
class FrequencyEstimator(Estimator):
    """Importance from the unigram prior of the training shards.

    I(v) = log p(v) / min log p, with one added to every count: a certain token would have 0, a token that was never
    seen has 1. The table is a buffer of the model.
    """

    name = "frequency"
    summary = "importance = unigram surprisal, scaled to [0, 1]: rare tokens are important"
    network = "atat_zoo.modeling.estimators.estimator_networks:SurprisalModule"


@component
class TransformerEstimator(Estimator):
    """Two transformer layers over the sequence; importance is a sigmoid output for each token.

    With `reads = "z"` they read the masked sequence and learn the difficulty of each masked token, given the others.

    The input is the backbone's token embedding through a projection, which adds about 2 % to a backbone of 124M.
    `own_embedding` adds a separate embedding, as in ATAT's documents: 13M parameters for a vocabulary of 50k.
    """

    name = "transformer"
    learns: ClassVar[bool] = True
    summary = "learned: two transformer layers on the backbone's detached token embedding"
    network = "atat_zoo.modeling.estimators.estimator_networks:TransformerModule"
    refs = ("ATAT",)
    reads: Reads = param("x", help="input: x, the clean sequence, or z, the masked one")
    layers: int = param(2, help="transformer layers", ge=1, le=10_000)
    width: int = param(256, help="width of the layers", ge=2)
    heads: int = param(4, help="attention heads", ge=1)
    max_length: int = param(1024, help="maximum sequence length (learned position embeddings)", ge=1)
    time_conditioning: bool = param(
        False, help="condition on t; the bound of the objective `adaptive` cannot be computed then"
    )
    own_embedding: bool = param(False, help="use a separate token embedding instead of the backbone's")

    @property
    @override
    def reads_time(self) -> bool:
        return self.time_conditioning

    @override
    def tells_apart(self, trained: bool) -> bool:
        return trained  # it starts at ½ everywhere

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems: the length, or heads that do not divide the width."""
        if experiment.data.length > self.max_length:
            yield Problem(
                "data.length",
                f"{experiment.data.length} is longer than estimator.max_length = {self.max_length}; "
                "shorten the one or raise the other",
            )
        if self.width % self.heads:
            yield Problem(
                "estimator.width", f"{self.width} does not divide into {self.heads} heads; change estimator.heads"
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
        # Of each layer in float32 what two norms read; in bf16 2 norms, 3 queries, keys and values, 1 attention, and
        # twice the width of the feed-forward layer, 4 E; statistics of the norms and of attention. Once, the embedding
        # in bf16, and the last norm.
        layer = 4 * 2 * self.width + 2 * (6 + 2 * 4) * self.width + 4 * (4 + self.heads)
        return rows * length * (self.layers * layer + 6 * self.width + (0 if self.own_embedding else 2 * width))

    @override
    def build(self, context: Context) -> nn.Module:
        weights = self.weights(context.vocabulary_size, context.width, context.length)
        asked = f"an estimator of {self.layers} layers and width {self.width}"
        require(4 * weights, asked, "its weights", "make it smaller")
        return super().build(context)


@component_base
class _ComposedEstimator(Estimator):
    """An estimator with others inside."""

    inside: ClassVar[tuple[str, ...]]  # the parameters that are estimators; the first one is trained

    @property
    def trained(self) -> Estimator:
        """The estimator inside that is trained; all read the text that it reads."""
        trained: Estimator = getattr(self, self.inside[0])
        return trained

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

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems of the estimators inside; they read the same text."""
        for key in self.inside:
            inner = getattr(self, key)
            if inner.reads != self.reads:
                yield Problem(
                    f"estimator.{key}",
                    f"{inner.name!r} reads {inner.reads} and the {self.inside[0]} one "
                    f'{self.reads}; set reads = "{inner.reads}" there too, or take it without the other',
                )
            for problem in problems_of(inner, experiment):
                # It names the table `estimator`; here it is nested one level deeper.
                yield Problem(*(text.replace("estimator.", f"estimator.{key}.") for text in attrs.astuple(problem)))


@component
class HybridEstimator(_ComposedEstimator):
    """I = mix · learned + (1 − mix) · prior; only the learned part is trained."""

    name = "hybrid"
    summary = "mixture of a learned estimator and the frequency prior, 0.7 to 0.3"
    network = "atat_zoo.modeling.estimators.estimator_networks:MixModule"
    refs = ("ATAT",)
    inside = ("learned", "prior")
    mix: float = param(0.7, help="fraction of the learned estimator", ge=0, le=1)
    learned: Estimator = component_param("estimator", "transformer", help="estimator that is trained")
    prior: Estimator = component_param("estimator", "frequency", help="estimator that it is mixed with")

    @override
    def tells_apart(self, trained: bool) -> bool:
        learned, prior = self.learned.tells_apart(trained), self.prior.tells_apart(False)
        return bool(self.mix and learned) or (self.mix < 1 and prior)


@component
class TermBiasEstimator(_ComposedEstimator):
    """Raises the importance of given words over that of another estimator: I + s · (1 − I) for their tokens.

    With a negative strength it is I + s · I. The mean mask rate of a sequence does not change, so these words are
    masked more often and all others less. The guidance `importance_bias` does the same for sampling, with any model.
    """

    name = "term_bias"
    summary = "another estimator with the importance of given words raised or lowered"
    network = "atat_zoo.modeling.estimators.estimator_networks:BiasedModule"
    refs = ("ATAT",)
    inside = ("base",)

    words: tuple[str, ...] = param((), help="words or phrases whose importance changes")
    strength: float = param(
        0.5, help="how far importance moves towards 1 (or towards 0, if negative), as a fraction", ge=-1, le=1
    )
    base: Estimator = component_param("estimator", "uniform", help="estimator whose importance is changed")

    @override
    def tells_apart(self, trained: bool) -> bool:
        return bool(self.words and self.strength) or self.base.tells_apart(trained)

    @override
    def build(self, context: Context) -> nn.Module:
        """Return the module, or raise `UserError`, naming a word that the tokenizer does not know."""
        return super().build(context) if self.words and self.strength else self.base.build(context)


def require_estimator(experiment: Experiment, run: object, *, constant: bool = False) -> None:
    """Raise a `UserError` if a run has no importance, or, unless it may be `constant`, none that tells tokens apart."""
    objective = experiment.parts["objective"]
    if "estimator" not in objective.uses:
        problem = f"was trained by the objective {objective.name!r}, which uses no importance estimator"
    elif not constant and not weighs_tokens(experiment):
        name = experiment.parts["estimator"].name
        problem = f"has the estimator {name!r}, which gives every token the same importance"
    else:
        return
    raise UserError(f"{run} {problem}; name a run whose experiment has an [estimator] that tells tokens apart")
