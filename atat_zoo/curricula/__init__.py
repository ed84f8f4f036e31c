"""Curricula: loss weights that move the training from easy to hard tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Protocol

import attrs

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.curricula.modules import DynamicModule
    from atat_zoo.diffusion.contracts import Masked
    from atat_zoo.registry import Context


class CurriculumModule(Protocol):
    """What `build` returns. One that follows the loss is an `nn.Module` and implements `StatefulPart`."""

    def stage(self, progress: float) -> str:
        """Return the name of the stage at this progress, for the records."""
        ...

    def weights(self, masked: Masked, importance: Tensor, progress: float) -> Tensor:
        """Return c, float32 [B, L]: positive, with mean 1 over each row's maskable tokens.

        Args:
            masked: the step.
            importance: I in [0, 1], [B, L], detached.
            progress: share of the training that is done, in [0, 1].
        """
        ...


class Curriculum(Protocol):
    """A component of the kind curriculum."""

    name: str

    def build(self, context: Context) -> CurriculumModule:
        """Return a `CurriculumModule`."""
        ...


@component
class NoCurriculum:
    """Every token weighs 1 from the first step to the last."""

    name = "none"
    summary = "every token weighs 1, from the first step to the last"
    refs = ()

    def build(self, context: Context) -> NoCurriculum:
        """Return itself: there is nothing to prepare."""
        del context
        return self

    def stage(self, progress: float) -> str:
        """Return `"none"` at any progress."""
        del progress
        return "none"

    def weights(self, masked: Masked, importance: Tensor, progress: float) -> Tensor:
        """Return ones, float32 [B, L]."""
        import torch

        del importance, progress
        return torch.ones_like(masked.maskable, dtype=torch.float32)


_DECAY = 5.0  # of `exponential`: the strength falls to e^-5 of its distance over a stage


@component
class ThreeStageCurriculum:
    """Loss weights exp(−s·I) in the easy stage, 1 in the medium stage, exp(+s·I) in the hard one.

    The weights are divided by their mean over each row's maskable tokens, so the
    curriculum moves attention between tokens and not the learning rate. `progress`
    says how the strength moves inside the easy and the hard stage:

    - `step`: it stays at −s, jumps to 0, and jumps to +s;
    - `linear`: from −s to 0 over the easy stage, from 0 to +s over the hard one;
    - `exponential`: between the same ends, fast at first, then settling.

    During warm-up the strength grows from nothing. Warm-up ends with the easy
    stage at the latest, so that a short training also sees its curriculum.
    """

    name = "three_stage"
    summary = "easy tokens weigh more at first, hard ones at the end"
    refs = ("doi:10.1145/1553374.1553380",)

    sharpness: float = param(2.0, help="s: the weight of I = 1 over that of I = 0 is exp(s)", ge=0, le=50)
    boundaries: tuple[float, float] = param((0.2, 0.8), help="progress at which medium and hard begin", ge=0, le=1)
    warmup_steps: int = param(1000, help="optimizer steps over which the weights leave 1", ge=0)
    progress: Literal["linear", "step", "exponential"] = param("step", help="how the strength moves inside a stage")

    def __attrs_post_init__(self) -> None:
        """Refuse boundaries in the wrong order."""
        if self.boundaries[0] > self.boundaries[1]:
            raise ValueError(f"boundaries must not fall, not {list(self.boundaries)}")

    def build(self, context: Context) -> ThreeStageSchedule:
        """Return the timetable of a training of `context.steps` steps."""
        share = self.warmup_steps / max(context.steps, 1)
        return ThreeStageSchedule(spec=self, warmup=min(share, self.boundaries[0]))


@attrs.frozen(kw_only=True)
class ThreeStageSchedule:
    """The timetable: no state, everything is a function of progress.

    Attributes:
        spec: the parameters.
        warmup: share of the training over which the weights leave 1.
    """

    spec: ThreeStageCurriculum
    warmup: float

    def stage(self, progress: float) -> str:
        """Return `"easy"`, `"medium"` or `"hard"`."""
        first, second = self.spec.boundaries
        return "easy" if progress < first else "medium" if progress < second else "hard"

    def strength(self, progress: float) -> float:
        """Return the factor of I in the exponent, in [−s, +s]."""
        first, second = self.spec.boundaries
        stage = self.stage(progress)
        if stage == "medium":
            size = 0.0
        elif stage == "easy":
            size = -1.0 if self.spec.progress == "step" else self._moved(progress / first) - 1.0
        else:
            over = (progress - second) / (1 - second) if second < 1 else 1.0
            size = 1.0 if self.spec.progress == "step" else self._moved(over)
        started = min(progress / self.warmup, 1.0) if self.warmup > 0 else 1.0
        return self.spec.sharpness * size * started

    def _moved(self, share: float) -> float:
        """Return how far a gradual strength has moved when `share` of the stage is over."""
        if self.spec.progress == "linear":
            return share
        return math.expm1(-_DECAY * share) / math.expm1(-_DECAY)

    def weights(self, masked: Masked, importance: Tensor, progress: float) -> Tensor:
        """Return c, float32 [B, L]: positive, with mean 1 over each row's maskable tokens."""
        # merged

        return tilt(importance, self.strength(progress), masked.maskable)


@component
class DynamicCurriculum:
    """The stages of `three_stage`, entered and left on the trend of the loss.

    Two running means of the masked cross-entropy are kept in a stage, a fast and a
    slow one. Their relative difference, gain = (slow − fast)/slow, says where the
    loss is going:

    - gain ≥ `threshold`: it falls, the stage has work left, wait;
    - gain < −`tolerance`: it rises, the stage is too hard, go back one;
    - otherwise it is flat: after `patience` such steps in a row, go on to the next.

    A new stage starts with empty means. The loss followed is the unweighted one, so
    a change of weights is not taken for a change of the model.
    """

    name = "dynamic"
    summary = "the stages of three_stage, moved on, held or moved back by the trend of the loss"
    refs = ("doi:10.1145/1553374.1553380",)

    sharpness: float = param(2.0, help="s: the weight of I = 1 over that of I = 0 is exp(s)", ge=0, le=50)
    threshold: float = param(0.01, help="smallest relative gain that is an improvement", ge=0, le=1)
    tolerance: float = param(0.05, help="relative rise of the loss that sends it back a stage", ge=0, le=1)
    patience: int = param(200, help="flat steps in a row before the next stage", ge=1)
    fast: float = param(20.0, help="steps that the fast mean remembers", ge=1)
    slow: float = param(200.0, help="steps that the slow mean remembers", ge=1)

    def __attrs_post_init__(self) -> None:
        """Refuse a fast mean that is not faster."""
        if self.fast >= self.slow:
            raise ValueError(f"fast must be less than slow, not {self.fast} and {self.slow}")

    def build(self, context: Context) -> DynamicModule:
        """Return a module whose buffers hold the stage and the means; it implements `StatefulPart`."""
        from atat_zoo.curricula.modules import DynamicModule

        del context
        return DynamicModule(self)


def tilt(importance: Tensor, strength: float | Tensor, maskable: Tensor) -> Tensor:
    """Return exp(strength · I), divided by its mean over each row's maskable tokens.

    The mean is not taken over the masked tokens, where a lone one would always weigh 1.

    Args:
        importance: I in [0, 1], [B, L], in any floating type.
        strength: negative favours easy tokens, positive hard ones, 0 gives 1 everywhere.
        maskable: bool [B, L].

    Returns:
        c, float32 [B, L]: positive; 1 where not maskable.
    """
    import torch

    # In float64 and log space: the mean stays 1 to rounding, and no strength overflows.
    logits = (importance.double() * strength).masked_fill(~maskable, -torch.inf)
    count = maskable.sum(-1, keepdim=True)
    log_mean = logits.logsumexp(-1, keepdim=True) - count.log()
    return torch.where(maskable, (logits - log_mean).exp(), 1.0).float()
