"""Easy tokens first, then all alike, then hard ones, on a fixed timetable."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import attrs

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.records import Masked
    from atat_zoo.registry import Context

_DECAY = 5.0  # of `exponential`: the strength falls to e^-5 of its distance over a stage


@component
class ThreeStage:
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

    spec: ThreeStage
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
        from atat_zoo.curricula.weighting import tilt

        return tilt(importance, self.strength(progress), masked.maskable)
