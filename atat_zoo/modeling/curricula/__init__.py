"""Curricula: loss weights that shift the training from easy to hard tokens or depend on the visible tokens.

Weights that depend on the importance of the clean sequence x bias the learned distribution towards tokens with high
weights. Weights that depend only on z, the masked sequence, such as those of `context_adaptive` and `planner_aware`, do
not; see docs/explanation/adaptive-masks.md, "Masks by visible tokens".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

from typing_extensions import override

from atat_zoo.diffusion.contracts import NoisedBatch
from atat_zoo.registry import Context, component, network_of, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.experiment import Experiment


class CurriculumModule(Protocol):
    """The object that `build` returns; one that follows the loss is an `nn.Module` and a `StatefulComponent`."""

    def stage(self, progress: float) -> str:
        """Return the name of the stage at this progress, for the metrics."""

    def weights(self, noised: NoisedBatch, importance: Tensor, progress: float) -> Tensor:
        """Return the weights c, float32 [B, L], which are positive and have mean 1 over each row's maskable tokens.

        `importance`, [B, L] in [0, 1], is detached; the estimator computed it from the clean tokens or from z.
        `progress` is the completed fraction of training, in [0, 1].
        """


@runtime_checkable
class ExponentialWeighting(Protocol):
    """A `CurriculumModule` whose weight for importance 1 is exp(strength) times the weight for importance 0."""

    def strength(self, progress: float) -> float:
        """Return the strength at this progress, for the metrics; it is below 0 while easy tokens weigh more."""


class Curriculum(Protocol):
    """A component of kind `curriculum`."""

    name: str
    network: ClassVar[str]
    #: Whether it weights all tokens alike if all have the same importance; such an experiment is refused.
    reads_importance: ClassVar[bool] = False

    def build(self, context: Context) -> CurriculumModule:
        """Return a `CurriculumModule`."""
        return network_of(self, context)


class StatelessCurriculum(CurriculumModule):
    """A curriculum with a single stage that serves as its own module."""

    name: str
    reads_importance: ClassVar[bool] = False

    @override
    def stage(self, progress: float) -> str:
        return self.name


@component
class NoCurriculum(StatelessCurriculum):
    """No curriculum: every token has weight 1."""

    name = "none"
    summary = "no curriculum: every token has weight 1"

    @override
    def weights(self, noised: NoisedBatch, importance: Tensor, progress: float) -> Tensor:
        import torch

        return torch.ones_like(noised.maskable, dtype=torch.float32)


@component
class ThreeStageCurriculum(Curriculum):
    """Loss weights exp(−s·I) in the easy stage, 1 in the medium one and exp(+s·I) in the hard one, for importance I.

    The weights are divided by their mean over each row's maskable tokens, so the curriculum shifts weight between
    tokens without changing the scale of the loss. `progress` decides how I's factor, the strength, changes in a stage:

    - `step`: constant −s, 0 and +s;
    - `linear`: from −s to 0 over the easy stage, from 0 to +s over the hard one;
    - `exponential`: between the same values, quickly at first, then slowly.

    With `thresholds`, a token is easy below the first threshold and hard above the second. Before the division, easy
    tokens weigh exp(s) in the easy stage, hard tokens weigh exp(s) in the hard stage, and all others weigh 1.

    During warmup, the size of the strength grows from 0 over `warmup_steps`, by default the first tenth of the easy
    stage. A warmup longer than that stage is shortened to its length, so choose `warmup_steps` much shorter than the
    stage; otherwise, the strength is reduced throughout the stage.
    """

    name = "three_stage"
    summary = "ATAT's curriculum: higher loss weights for easy tokens at first and for hard tokens at the end"
    network = "atat_zoo.modeling.curricula.curriculum_networks:ThreeStageModule"
    reads_importance = True
    refs = ("doi:10.1145/1553374.1553380",)

    sharpness: float = param(
        2.0, help="s, strength: in the easy and hard stages, weights differ by a factor of up to exp(s)", ge=0, le=50
    )
    boundaries: tuple[float, float] = param(
        (0.2, 0.8), help="training progress at which the medium and hard stages begin", ge=0, le=1
    )
    warmup_steps: int | None = param(
        None, help="optimizer steps over which the strength grows from 0; default: a tenth of the easy stage", ge=0
    )
    progress: Literal["linear", "step", "exponential"] = param("step", help="how the strength changes within a stage")
    thresholds: tuple[float, float] | None = param(
        None, help="importance below which a token is easy and above which it is hard; default: none"
    )

    def __attrs_post_init__(self) -> None:
        if self.boundaries[0] > self.boundaries[1]:
            raise ValueError(f"boundaries must be in ascending order, not {list(self.boundaries)}")
        if self.thresholds and not 0 <= self.thresholds[0] <= self.thresholds[1] <= 1:
            raise ValueError(f"thresholds must be in [0, 1] and in ascending order, not {list(self.thresholds)}")

    def extends(self, done: int, steps: int, more: int) -> bool:
        """Return False: the stages of the first steps depend on the total number of steps."""
        return False


@component
class DynamicCurriculum(Curriculum):
    """The stages of `three_stage`, switched by the trend of the loss.

    Each stage has two running means of the masked cross-entropy, a fast and a slow one. The trend of the loss is their
    relative difference, gain = (slow − fast)/slow:

    - gain ≥ `threshold`: the loss is falling, and the stage stays the same;
    - gain < −`tolerance`: the loss is rising because the stage is too hard, and the previous stage returns;
    - otherwise, the loss is flat, and the next stage begins after `patience` such steps in a row.

    A new stage starts with empty means. The loss is unweighted, so a change in the weights is not mistaken for a change
    in the model.
    """

    name = "dynamic"
    summary = "the stages of `three_stage`, switched by the trend of the loss"
    network = "atat_zoo.modeling.curricula.curriculum_networks:DynamicModule"
    reads_importance = True
    refs = ("doi:10.1145/1553374.1553380",)

    sharpness: float = param(
        2.0, help="s, strength: in the easy and hard stages, weights differ by a factor of up to exp(s)", ge=0, le=50
    )
    threshold: float = param(0.01, help="relative improvement of the loss needed to stay in a stage", ge=0, le=1)
    tolerance: float = param(
        0.05, help="relative increase of the loss that triggers a return to the previous stage", ge=0, le=1
    )
    patience: int = param(200, help="number of consecutive steps without improvement before the next stage", ge=1)
    fast: float = param(20.0, help="time constant of the fast running mean, in steps", ge=1)
    slow: float = param(200.0, help="time constant of the slow running mean, in steps", ge=1)

    def __attrs_post_init__(self) -> None:
        if self.fast >= self.slow:
            raise ValueError(f"fast must be less than slow, not {self.fast} and {self.slow}")


@component
class ContextAdaptiveCurriculum(StatelessCurriculum):
    """Higher loss weights for tokens near visible tokens: CART, of Dream 7B (Ye et al., arXiv:2508.15487).

        c_i ∝ ε + (1 − ε) · Σ_{j visible, j ≠ i} ½ p (1 − p)^{|i − j| − 1}

    The sum is the visible fraction of the neighbourhood, weighted by a geometric distribution on each side. The floor
    ε, which CART does not have, keeps tokens without visible neighbours in the loss. As in every curriculum, the
    weights have mean 1 over the maskable tokens of a sequence.
    """

    name = "context_adaptive"
    summary = "CART: higher loss weights for masked tokens with visible neighbours"
    refs = ("arXiv:2508.15487",)

    sharpness: float = param(
        0.3, help="p of the geometric distribution of distances; a larger p favours nearer tokens more", gt=0, le=1
    )
    floor: float = param(
        0.1, help="ε, weight of a token without visible neighbours; at 1, all tokens weigh the same", gt=0, le=1
    )

    @override
    def weights(self, noised: NoisedBatch, importance: Tensor, progress: float) -> Tensor:
        import torch

        maskable = noised.maskable
        position = torch.arange(maskable.shape[1], device=maskable.device, dtype=torch.float64)
        distance = (position[:, None] - position).abs()
        near = 0.5 * self.sharpness * (1 - self.sharpness) ** (distance - 1).clamp(min=0)
        visible = (maskable & ~noised.masked).double()
        share = visible @ near.fill_diagonal_(0.0)
        weights = self.floor + (1 - self.floor) * share
        mean = (weights * maskable).sum(-1, keepdim=True) / maskable.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(maskable, weights / mean, 1.0).float()


@component
class PlannerAwareCurriculum(StatelessCurriculum):
    """Higher loss weights for the tokens that the sampler `policy` fills next (Peng et al., arXiv:2509.23405).

        c_i = (1 − a) + a · k · softmax_j(∓I_j / T)_i   over the k masked tokens of a sequence, and 1 elsewhere

    I is the importance from an estimator that reads z; the sign is minus for `first = "easy"`. The planner in the paper
    is the model's own confidence; here it is the estimator, both in the loss and in the sampler's order.
    """

    name = "planner_aware"
    summary = "higher loss weights for the masked tokens that the sampler `policy` fills next"
    reads_importance = True
    refs = ("arXiv:2509.23405",)

    first: Literal["easy", "hard"] = param("easy", help="whether the sampler fills easy or hard tokens first")
    share: float = param(
        0.5, help="a, fraction of the loss weight that follows the sampler's order; the rest is uniform", ge=0, lt=1
    )
    temperature: float = param(0.3, help="T, temperature; a low one favours the token filled next", ge=1e-3, le=1e9)

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the estimator reads the clean sequence."""
        if experiment.parts["estimator"].reads != "z":
            yield Problem(
                "curriculum",
                f"{self.name!r} needs the importance of masked tokens, but the estimator "
                'reads the clean sequence; set estimator.use = "transformer" and estimator.reads = "z"',
            )

    @override
    def weights(self, noised: NoisedBatch, importance: Tensor, progress: float) -> Tensor:
        import torch

        sign = -1 if self.first == "easy" else 1
        masked = noised.masked & noised.maskable
        scores = (importance.double() * (sign / self.temperature)).masked_fill(~masked, -torch.inf)
        planned = scores.softmax(-1) * masked.sum(-1, keepdim=True)
        return torch.where(masked, 1 - self.share + self.share * planned, 1.0).float()
