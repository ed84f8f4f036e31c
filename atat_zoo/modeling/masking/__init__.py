"""Masking strategies, which choose the tokens of a sequence to mask at a given rate.

There are three contracts. A `Masking` maps the importance I_i of each token i and a rate r to its masking probability
p_i. Importance computed from the clean sequence x makes p depend on the masked tokens, which biases the model. A
`VisibleTextMasking` draws a mask that depends only on the tokens that it leaves visible, which does not bias the model.
So does a `StepwiseMasking`, which masks some of the tokens that the previous step masked in the same sequence.

With n the number of maskable tokens in a sequence, every `Masking` has these properties:

    (a) mean of p over maskable tokens = r, per row; r = 0 and r = 1 exactly
    (b) p_i does not fall when I_i rises (the inverse strategy: does not rise)
    (c) p_i does not fall when r rises, so with fixed uniform numbers, a higher rate masks a superset
    (d) temperature → ∞ gives the uniform strategy; temperature → 0, a threshold on I_i, where ties have equal p
    (e) tokens that are not maskable have p = 0 and are left out of the mean
    (f) equal importance gives equal p; permuting tokens permutes p

`atat_zoo.testing` checks any strategy, built-in or from a plugin. The kinds position_bias and mask_drawing are also
defined in this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from typing_extensions import override

from atat_zoo.diffusion.contracts import StatefulComponent
from atat_zoo.modeling.uncertainty import ConfidenceUncertainty
from atat_zoo.registry import component, component_base, component_param, network_of, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.data.sample_order import Repetition
    from atat_zoo.experiment import Experiment
    from atat_zoo.modeling.masking.position_bias import PositionBias
    from atat_zoo.modeling.uncertainty import Uncertainty
    from atat_zoo.registry import Context


class Masking(Protocol):
    """A component of kind `masking`, or the result of its `build(context)`.

    A component with a state has a `network` that defines `probabilities` and implements `StatefulComponent`.
    """

    name: str
    direction: ClassVar[int] = 1  #: 0 if it ignores importance, −1 if important tokens are masked less often
    positional: ClassVar[bool] = False  #: whether the position of a token matters, too

    @property
    def reads_importance(self) -> bool:
        """Whether only importance makes the masking differ from uniform masking."""
        return self.direction != 0 and not self.positional

    def probabilities(self, importance: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
        """Return p, float32 [B, L]; importance [B, L], detached, and rate [B] are in [0, 1]; maskable is bool."""


# Maps a mask, bool [B, L], to the score of each token, [B, L], computed from the text under this mask.
Scores: TypeAlias = "Callable[[Tensor], Tensor]"


@runtime_checkable
class VisibleTextMasking(Protocol):
    """A component of kind `masking` whose mask depends only on the tokens that it leaves visible.

    The number of masked tokens is ⌊rn⌋ or ⌈rn⌉, with mean rn over the keys. The mask must not depend on the tokens that
    it masks: a strategy may call `scores` several times, but every call must mask at least the finally masked tokens.
    """

    name: str
    direction: ClassVar[int] = 1

    @property
    def reads_importance(self) -> bool:
        """Whether the strategy calls `scores`."""
        return True

    def draw_mask(self, scores: Scores, rate: Tensor, maskable: Tensor, keys: Tensor) -> Tensor:
        """Return the mask, bool [B, L], at the rates r [B] in [0, 1]; `maskable` is bool [B, L].

        `scores` maps a mask, bool [B, L], to the estimated difficulty of each masked token, in [0, 1]. `keys` has one
        counter-based key per sequence, int64 [B] (`diffusion.randomness`).
        """


@runtime_checkable
class StepwiseMasking(Protocol):
    """A component of kind `masking` that unmasks a sequence during several training steps.

    No step masks more tokens than the one before. Which of them stay masked depends on their difficulty, estimated from
    the text that the previous step left visible.
    """

    name: str

    @property
    def steps_per_sequence(self) -> int:
        """The number of training steps that use the same sequence."""

    @property
    def spacing(self) -> int:
        """The number of training steps from one use of a sequence to the next; 1 by default."""
        return 1

    @property
    def reads_importance(self) -> bool:
        """Whether the difficulty is the importance, which must then be that of z."""
        return False

    def build(self, context: Context) -> nn.Module:
        """Return a `StepwiseMaskingModule`."""


@runtime_checkable
class StepwiseMaskingModule(StatefulComponent, Protocol):
    """The `nn.Module` of a `StepwiseMasking`, which keeps the difficulty of a sequence's tokens until its next use.

    Its `statistics` read `index` and `difficulty` of the `NoisedBatch`.
    """

    repetition: Repetition  # which samples are the same sequence
    reads_importance: bool  # as in `StepwiseMasking`

    def draw_mask(self, rate: Tensor, maskable: Tensor, index: Tensor) -> Tensor:
        """Return the mask, bool [B, L], at the rates r [B]; `index` is the number of each row's sample, int64 [B].

        The number of masked tokens is ⌊rn⌋ or ⌈rn⌉, with mean rn over the sequences.
        """

    def difficulty(self, logits: Tensor) -> Tensor | None:
        """Return the difficulty, float32 [N], of masked tokens from their logits, [N, V]; None if it is not needed."""


@component
class UniformMasking(Masking):
    """p_i = r for every maskable token; ignores importance (MDLM, equation 3).

    This is the only strategy whose training loss estimates the NELBO, if `objective.weight` is "nelbo".
    """

    name = "uniform"
    summary = "uniform masking: every token with probability r"
    refs = ("arXiv:2406.07524",)
    direction = 0

    @override
    def probabilities(self, importance: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
        return rate.float().unsqueeze(-1) * maskable


@component_base
class _CalibratedMasking(Masking):
    """A masking strategy that calibrates I / T to the mask rate, or −I / T if `direction` is −1."""

    calibration: ClassVar[str]
    temperature: float = param(
        1.0,
        help="temperature; large values approach uniform masking, small values mask the most important tokens first",
        ge=1e-6,
        le=1e9,
    )

    @override
    def probabilities(self, importance: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
        function = getattr(import_module("atat_zoo.diffusion.calibration"), self.calibration)
        return function(importance.double() / (self.direction * self.temperature), rate, maskable)


@component
class ImportanceMasking(_CalibratedMasking):
    """p_i = min(1, λ exp(I_i / T)), with λ per row such that the mean over its maskable tokens is r.

    The simpler form, `softmax(I / T) · r · L` clamped to 1, masks too few tokens as soon as one is clamped; here, the
    other tokens compensate for this.
    """

    name = "importance"
    summary = "masks important tokens more often: softmax weights, calibrated to the mask rate"
    refs = ("doi:10.1007/0-387-34240-0",)
    calibration = "water_fill"


@component
class InverseMasking(_CalibratedMasking):
    """p_i = min(1, λ exp(−I_i / T)), with λ per row such that the mean over its maskable tokens is r.

    The control for `importance`: the same calibration with the opposite preference.
    """

    name = "inverse"
    summary = "masks important tokens less often: the control for `importance`"
    refs = ("doi:10.1007/0-387-34240-0",)
    calibration = "water_fill"
    direction = -1
    temperature: float = param(
        1.0,
        help="temperature; large values approach uniform masking, small values mask the least important tokens first",
        ge=1e-6,
        le=1e9,
    )


@component
class PowerMasking(_CalibratedMasking):
    """p_i = τ^{w_i} with w_i = exp(−I_i / T), and τ per row such that the mean over its maskable tokens is r.

    As in GenMD4, each token has the polynomial schedule α_i = 1 − τ^{w_i}; in reverse, tokens are unmasked in a
    Plackett–Luce order with weights w. No token has p = 1 before r = 1.
    """

    name = "power"
    summary = "masks important tokens earlier: token-wise polynomial schedules, as in GenMD4"
    refs = ("arXiv:2406.04329",)
    calibration = "power_path"


@component
class LogitMasking(_CalibratedMasking):
    """p_i = σ(I_i / T + c), with c per row such that the mean over its maskable tokens is r.

    With independent draws, this is the distribution of maximum entropy for a given rate and a given mean importance of
    the masked tokens.
    """

    name = "logit"
    summary = "masks important tokens more often: sigmoid of importance, calibrated to the mask rate"
    refs = ("doi:10.1007/0-387-34240-0",)
    calibration = "logit_shift"


@component
class PositionMasking(Masking):
    """p_i = min(1, λ exp((I_i + a·bias_i) / T)): `importance` masking applied to the sum of importance and bias.

    The bias is in [0, 1] like importance, and a is its weight relative to importance. Both are divided by T, so a high
    temperature again approaches uniform masking.
    """

    name = "position"
    summary = "masks by importance plus a fixed or learned position bias"
    refs = ("doi:10.1007/0-387-34240-0",)
    positional = True
    network = "atat_zoo.modeling.masking.masking_networks:PositionModule"

    @property
    @override
    def reads_importance(self) -> bool:
        # Whether importance is the only input, that is, whether there is no bias.
        from atat_zoo.modeling.masking.position_bias import FlatBias

        return not self.strength or isinstance(self.bias, FlatBias)

    temperature: float = param(
        1.0,
        help="temperature; large values approach uniform masking, small values mask the highest I + a·bias first",
        ge=1e-6,
        le=1e9,
    )
    strength: float = param(
        1.0, help="a, weight of the bias relative to importance; a negative weight reverses it", ge=-1e3, le=1e3
    )
    bias: PositionBias = component_param("position_bias", "u_shape", help="position bias: positions to mask more often")


@component
class RevealMasking(VisibleTextMasking):
    """Masks k₀ = min(n, ⌈c·k⌉) tokens uniformly, then reveals k₀ − k of them: the easiest, or the hardest.

    k is ⌊rn⌋ or ⌈rn⌉ with mean rn, so the mean rate is exact for any scores. Tokens are scored while all k₀ are masked.
    The mask therefore depends only on visible tokens, and the optimal denoiser is the posterior, as with uniform masks
    (missing at random: Rubin, Biometrika 1976). With `first = "easy"`, the model learns the contexts that the sampler
    `policy` produces when it fills the easiest positions first.
    """

    name = "reveal"
    summary = "masks extra tokens at random, then reveals the easiest or hardest, as scored from the visible tokens"
    refs = ("doi:10.1093/biomet/63.3.581",)

    excess: float = param(
        2.0, help="c, number of tokens masked at first per token that stays masked; 1 masks uniformly", ge=1, le=1e6
    )
    first: Literal["easy", "hard"] = param("easy", help="whether to reveal the tokens of lowest or highest importance")

    @property
    @override
    def reads_importance(self) -> bool:
        return self.excess > 1

    @override
    def draw_mask(self, scores: Scores, rate: Tensor, maskable: Tensor, keys: Tensor) -> Tensor:
        import torch

        from atat_zoo.diffusion.calibration import count_masked
        from atat_zoo.diffusion.likelihood_bounds import uniform_order
        from atat_zoo.diffusion.randomness import fold, to_unit

        count = count_masked(rate, maskable, to_unit(fold(keys, 1), torch.float64))
        return self.of_order(scores, uniform_order(maskable, fold(keys, 0)), count, maskable)

    def of_order(self, scores: Scores, order: Tensor, count: Tensor, maskable: Tensor) -> Tensor:
        """Return a mask, bool [B, L], of `count` tokens, int64 [B], after revealing the candidates that `first` names.

        The candidates are the ⌈excess · count⌉ maskable tokens that are first in `order`, the rank of each token, int64
        [B, L]. If the excess is 1, nothing is revealed and `scores` is not called; otherwise, it is called once.
        """
        from atat_zoo.diffusion.calibration import first_masked, lowest

        candidates = first_masked(order, count, self.excess, maskable)
        if self.excess == 1:
            return candidates
        difficulty = scores(candidates)
        return lowest(difficulty if self.first == "hard" else -difficulty, order, count, candidates)


@component
class ProgressiveMasking(StepwiseMasking):
    """Progressive unmasking (Kim et al., arXiv:2602.10314): trains on the masks that a sampler would visit.

    A sequence is used in K steps. The first masks it at random, at a time in (1 − 1/K, 1]; each later step takes a time
    in the next interval below and unmasks the easiest tokens, with their true values, down to its mask rate. The policy
    takes the difficulty from the predictions of the previous step, so it needs no extra forward pass. Since the
    intervals divide the time, the mask rates keep the distribution of `mask_rates`. With the n-gram prior, the policy
    reads all counts, as a sampler does; the loss leaves out the token's own occurrence.

    The mask depends only on visible tokens, so the optimal denoiser is the same as with uniform masks; but the loss
    under these masks is not a bound. In a training step, 1/K of the sequences are new.
    """

    name = "progressive"
    summary = "progressive unmasking: each sequence is unmasked over several training steps, easiest tokens first"
    refs = ("arXiv:2602.10314",)
    network = "atat_zoo.modeling.masking.masking_networks:ProgressiveModule"

    steps_per_sequence: int = param(12, help="K, number of training steps that use the same sequence", ge=2, le=10_000)
    spacing: int = param(
        1,
        help="number of training steps from one use of a sequence to the next; with 1, as in the paper, consecutive "
        "batches share most of their sequences",
        ge=1,
        le=10_000,
    )
    policy: Literal["uncertainty", "importance", "random"] = param(
        "uncertainty",
        help="difficulty of a masked token: the uncertainty of its prediction, its importance, or a random number, "
        "which gives uniform masks as a control",
    )
    uncertainty: Uncertainty = component_param("uncertainty", "confidence", help="uncertainty metric of the policy")

    @property
    @override
    def reads_importance(self) -> bool:
        return self.policy == "importance"

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem for an uncertainty metric that the policy does not use, or steps that are too far apart."""
        if self.spacing >= (steps := experiment.train.steps):
            yield Problem(
                "masking.spacing",
                f"{self.spacing} is not less than train.steps = {steps}, so no sequence is used twice; lower it",
            )
        if self.policy != "uncertainty" and not isinstance(self.uncertainty, ConfidenceUncertainty):
            yield Problem(
                "masking.uncertainty",
                f"{self.uncertainty.name!r} has no effect with masking.policy = {self.policy!r}; remove one of them",
            )

    @override
    def build(self, context: Context) -> nn.Module:
        module: nn.Module = network_of(self, context)
        return module
