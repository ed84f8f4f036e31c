"""The modules of the curricula `three_stage` and `dynamic`. Shapes: B sequences, L tokens."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.diffusion.calibration import tilt
from atat_zoo.diffusion.contracts import NoisedBatch
from atat_zoo.modeling.curricula import CurriculumModule
from atat_zoo.registry import Context

_STAGES = ("easy", "medium", "hard")
_WARMUP = 0.1  # fraction of the easy stage
_DECAY = 5.0  # for `exponential`: over a stage, the distance to the final strength falls to e^-5 of its initial value


class ThreeStageModule(CurriculumModule):
    """The module of `three_stage`: a stateless function of progress."""

    def __init__(
        self,
        context: Context,
        *,
        sharpness: float,
        boundaries: tuple[float, float],
        warmup_steps: int | None,
        progress: Literal["linear", "step", "exponential"],
        thresholds: tuple[float, float] | None,
    ) -> None:
        self.sharpness, self.boundaries, self.shape, self.thresholds = sharpness, boundaries, progress, thresholds
        # Fraction of training over which the strength grows from 0.
        easy = boundaries[0]
        self.warmup = _WARMUP * easy if warmup_steps is None else min(warmup_steps / max(context.steps, 1), easy)

    @override
    def stage(self, progress: float) -> str:
        first, second = self.boundaries
        return "easy" if progress < first else "medium" if progress < second else "hard"

    def strength(self, progress: float) -> float:
        """Return the factor of importance in the exponent, between −`sharpness` and +`sharpness`."""
        first, second = self.boundaries
        stage, gradual = self.stage(progress), self.shape != "step"
        if stage == "medium":
            size = 0.0
        elif stage == "easy":
            size = self._moved(progress / first) - 1.0 if gradual else -1.0
        else:
            over = (progress - second) / (1 - second) if second < 1 else 1.0
            size = self._moved(over) if gradual else 1.0
        started = min(progress / self.warmup, 1.0) if self.warmup > 0 else 1.0
        return self.sharpness * size * started

    def _moved(self, share: float) -> float:
        """Return how much of a gradual change is complete at the fraction `share` of the stage."""
        return share if self.shape == "linear" else math.expm1(-_DECAY * share) / math.expm1(-_DECAY)

    @override
    def weights(self, noised: NoisedBatch, importance: Tensor, progress: float) -> Tensor:
        strength, thresholds = self.strength(progress), self.thresholds
        if thresholds is not None:  # importance becomes 0 or 1; for a negative strength, only easy tokens get 0
            easy, hard = thresholds
            importance = ((importance > hard) if strength > 0 else (importance >= easy)).float()
        return tilt(importance, strength, noised.maskable)


class DynamicModule(nn.Module, CurriculumModule):
    """The module of `dynamic`: the current stage, with a fast and a slow running mean of the loss in it.

    `weights` and `update` compute on the buffers, without Python branches, and never wait for the GPU; the others do.
    """

    position: Tensor  # int64 []: index of the stage
    flat: Tensor  # int64 []: flat steps in a row
    sums: Tensor  # float64 [2, 2]: for fast and slow, the decaying sums of losses and of ones
    decay: Tensor  # float64 [2, 1]: what fast and slow retain per step

    def __init__(
        self,
        context: Context,
        *,
        sharpness: float,
        threshold: float,
        tolerance: float,
        patience: int,
        fast: float,
        slow: float,
    ) -> None:
        super().__init__()
        self.sharpness, self.threshold, self.tolerance, self.patience = sharpness, threshold, tolerance, patience
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))
        self.register_buffer("flat", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sums", torch.zeros(2, 2, dtype=torch.float64))
        decay = torch.tensor([[1 - 1 / fast], [1 - 1 / slow]], dtype=torch.float64)
        self.register_buffer("decay", decay, persistent=False)

    @override
    def stage(self, progress: float) -> str:
        return _STAGES[int(self.position)]

    def strength(self, progress: float) -> float:
        """Return −`sharpness`, 0 or +`sharpness` for the current stage, waiting for the GPU; `progress` is ignored."""
        return self.sharpness * (int(self.position) - 1)

    @override
    def weights(self, noised: NoisedBatch, importance: Tensor, progress: float) -> Tensor:
        strength = self.sharpness * (self.position - 1).double()
        return tilt(importance, strength, noised.maskable)

    def statistics(self, noised: NoisedBatch, loss: Tensor) -> Tensor:
        """Return the sum of the masked losses and their count, float64 [2]."""
        here = noised.masked.double()
        return torch.stack([(loss.detach().double() * here).sum(), here.sum()])

    def update(self, total: Tensor, progress: float) -> None:
        """Update the means with the loss of a step, and switch the stage if the trend requires it.

        A step without masks or with a non-finite loss is ignored.
        """
        mean = total[0] / total[1].clamp(min=1)
        usable = (total[1] > 0) & mean.isfinite()
        sums = self.sums * self.decay + torch.stack([mean, torch.ones_like(mean)])
        fast, slow = sums[:, 0] / sums[:, 1]
        gain = (slow - fast) / slow.clamp(min=1e-12)
        rises = gain < -self.tolerance
        flat = torch.where(rises | (gain >= self.threshold), 0, self.flat + 1)
        moved = (flat >= self.patience).long() - rises.long()
        position = (self.position + moved).clamp(0, len(_STAGES) - 1)
        fresh = position != self.position
        flat, sums = torch.where(fresh, 0, flat), torch.where(fresh, 0.0, sums)
        self.position.copy_(torch.where(usable, position, self.position))
        self.flat.copy_(torch.where(usable, flat, self.flat))
        self.sums.copy_(torch.where(usable, sums, self.sums))
