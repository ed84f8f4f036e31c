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
from atat_zoo.registry import Context, component, component_base, network_of, param, part, problems_of
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

    def build(self, context: Context) -> nn.Module:
        """Return an `EstimatorModule`; one without parameters is not trained."""
        module: nn.Module = network_of(self, context)
        return module


@component
class UniformEstimator(Estimator):
    """Importance ½ for every token, so masking and curriculum treat all tokens alike."""

    name = "uniform"
    summary = "the same importance for every token"
    network = "atat_zoo.modeling.estimators.networks:ConstantModule"

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
    summary = "rare tokens are important: the unigram surprisal over its largest value"
    network = "atat_zoo.modeling.estimators.networks:SurprisalModule"


@component
class TransformerEstimator(Estimator):
    """Two transformer layers over the text, with importance σ(·) for each token.

    With `reads = "z"` they see the text with masks, and learn how hard each hidden token is, given the others.

    It reads the backbone's token embedding through a projection, so it adds about 2 % to a backbone of 124M.
    `own_embedding` gives it its own embedding, as in ATAT's documents: 13M parameters for a vocabulary of 50k.
    """

    name = "transformer"
    learns: ClassVar[bool] = True
    summary = "two small transformer layers over the backbone's detached embedding"
    network = "atat_zoo.modeling.estimators.networks:TransformerModule"
    refs = ("ATAT",)
    reads: Reads = param("x", help="x, the clean text, or z, the text with masks")
    layers: int = param(2, help="transformer layers", ge=1, le=10_000)
    width: int = param(256, help="width of the layers", ge=2)
    heads: int = param(4, help="attention heads", ge=1)
    max_length: int = param(1024, help="longest sequence: the learned positions", ge=1)
    time_conditioning: bool = param(False, help="whether it reads t; a bound for adaptive masks cannot use it then")
    own_embedding: bool = param(False, help="an embedding of its own instead of the backbone's")

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
    def build(self, context: Context) -> nn.Module:
        own = context.vocabulary_size if self.own_embedding else context.width
        weights = self.width * (own + min(self.max_length, context.length) + 12 * self.layers * self.width)
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
    summary = "a learned estimator and the frequency prior, mixed 0.7 to 0.3"
    network = "atat_zoo.modeling.estimators.networks:MixModule"
    refs = ("ATAT",)
    inside = ("learned", "prior")
    mix: float = param(0.7, help="share of the learned estimator", ge=0, le=1)
    learned: Estimator = part("estimator", "transformer", help="the estimator that is trained")
    prior: Estimator = part("estimator", "frequency", help="the estimator that it is mixed with")

    @override
    def tells_apart(self, trained: bool) -> bool:
        learned, prior = self.learned.tells_apart(trained), self.prior.tells_apart(False)
        return bool(self.mix and learned) or (self.mix < 1 and prior)


@component
class TermBiasEstimator(_ComposedEstimator):
    """Raises the importance of a domain's words by another estimator: their tokens have I + s · (1 − I).

    With a negative strength they have I + s · I. Masking does not change the mean rate of a row, so the words are
    masked more often and the rest less. In sampling, the guidance `importance_bias` does the same with any model.
    """

    name = "term_bias"
    summary = "another estimator, with the importance of some words raised or lowered"
    network = "atat_zoo.modeling.estimators.networks:BiasedModule"
    refs = ("ATAT",)
    inside = ("base",)

    words: tuple[str, ...] = param((), help="words or phrases whose importance changes")
    strength: float = param(0.5, help="share of the way to importance 1, or, when negative, to 0", ge=-1, le=1)
    base: Estimator = part("estimator", "uniform", help="the estimator whose importance is changed")

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
        problem = f"has the estimator {experiment.parts['estimator'].name!r}, to which all tokens are alike"
    else:
        return
    raise UserError(f"{run} {problem}; name a run whose experiment has an [estimator] that tells tokens apart")
