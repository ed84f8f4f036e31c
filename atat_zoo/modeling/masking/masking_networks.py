"""The modules of `position` and `progressive` masking and of the position biases. Shapes: B sequences, L tokens."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.data.sample_order import Repetition
from atat_zoo.diffusion.calibration import count_masked, lowest, water_fill
from atat_zoo.diffusion.contracts import NoisedBatch, StatefulComponent
from atat_zoo.diffusion.likelihood_bounds import uniform_order
from atat_zoo.diffusion.randomness import fold, sequence_keys, to_unit
from atat_zoo.modeling.masking import StepwiseMaskingModule
from atat_zoo.modeling.masking.position_bias import PositionBiasModule
from atat_zoo.registry import Context


class PositionModule(nn.Module):
    """The module of `position`: `water_fill` turns (importance + strength · bias) / temperature into probabilities.

    With a learned bias, `statistics` and `update` are those of the bias.
    """

    def __init__(self, context: Context, *, temperature: float, strength: float, bias: nn.Module) -> None:
        super().__init__()
        self.bias, self.temperature, self.strength = bias, temperature, strength
        if isinstance(bias, StatefulComponent):
            self.statistics, self.update = bias.statistics, bias.update

    def probabilities(self, importance: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
        """Return p, float32 [B, L]; see `Masking.probabilities`."""
        bias = cast("PositionBiasModule", self.bias).values(importance.shape[-1]).double()
        return water_fill((importance.double() + self.strength * bias) / self.temperature, rate, maskable)


class FixedBiasModule(nn.Module, PositionBiasModule):
    """A bias that depends only on the position, 0 … L−1, and has no saved state."""

    device_of: Tensor  # empty; tells the module's device, to find one that supports float64

    def __init__(self, context: Context, bias: Callable[[Tensor], Tensor], **numbers: float) -> None:
        super().__init__()  # `bias` already holds its numbers
        self.bias = bias
        self.register_buffer("device_of", torch.empty(0, dtype=torch.float64), persistent=False)

    @override
    def values(self, length: int) -> Tensor:
        return self.bias(torch.arange(length, device=self.device_of.device)).float()


class RunningBiasModule(nn.Module, PositionBiasModule):
    """The module of `running`: exponentially decaying sums of the loss and the count at each position.

    With sums in place of means, a rarely masked position keeps its estimate, and the first steps need no bias
    correction.
    """

    sums: Tensor  # float64 [2, L]: sum of losses, count

    def __init__(self, context: Context, *, decay: float, floor: float) -> None:
        super().__init__()
        self.decay, self.floor = decay, floor
        self.register_buffer("sums", torch.zeros(2, context.length, dtype=torch.float64))

    def statistics(self, noised: NoisedBatch, loss: Tensor) -> Tensor:
        """Return the sum of masked losses and their count at each position, float64 [2, L]."""
        return _sums(noised, loss, self.sums.shape[-1])

    def update(self, total: Tensor, progress: float) -> None:
        """Decay the sums and add those of the global batch."""
        self.sums.mul_(self.decay).add_(total)

    @override
    def values(self, length: int) -> Tensor:
        _hold(length, self.sums.shape[-1])
        mean, overall = _means(self.sums)
        low, high = mean.amin(), mean.amax()
        spread = torch.maximum(high - low, self.floor * overall).clamp(min=1e-12)
        return ((mean - low) / spread).float()[:length]


class GradientBiasModule(nn.Module, PositionBiasModule):
    """The module of `gradient`: θ [L], updated from the loss at each position."""

    theta: Tensor  # float64 [L]

    def __init__(self, context: Context, *, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.register_buffer("theta", torch.zeros(context.length, dtype=torch.float64))

    def statistics(self, noised: NoisedBatch, loss: Tensor) -> Tensor:
        """Return the sum of masked losses and their count at each position, float64 [2, L]."""
        return _sums(noised, loss, len(self.theta))

    def update(self, total: Tensor, progress: float) -> None:
        """Update θ with the gradient over the global batch; positions without a mask do not change."""
        mean, overall = _means(total)
        slope = self.theta.sigmoid() * (1 - self.theta.sigmoid())
        self.theta.add_(self.learning_rate * slope * (mean - overall) / overall.clamp(min=1e-12))

    @override
    def values(self, length: int) -> Tensor:
        _hold(length, len(self.theta))
        return self.theta.sigmoid().float()[:length]


def _sums(noised: NoisedBatch, loss: Tensor, length: int) -> Tensor:
    """Return the sum of masked losses and their count at each of `length` positions, float64 [2, length]."""
    here = noised.masked.double()
    seen = torch.stack([(loss.detach().double() * here).sum(0), here.sum(0)])
    return nn.functional.pad(seen, (0, length - seen.shape[-1]))


def _means(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss of each position (the overall mean where it was never masked), and the overall mean."""
    loss, count = sums
    overall = loss.sum() / count.sum().clamp(min=1e-12)
    return torch.where(count > 0, loss / count.clamp(min=1e-12), overall), overall


def _hold(length: int, most: int) -> None:
    if length > most:
        raise ValueError(f"this bias has {most} positions, fewer than {length}")


class ProgressiveModule(nn.Module, StepwiseMaskingModule):
    """The module of `progressive`: for each sequence in use, its number and the difficulty of its masked tokens."""

    # For each sequence in use, its number + 1, and 1 + the difficulty of its masked tokens: float64 [slots, 1 + L]
    carried: Tensor

    def __init__(
        self,
        context: Context,
        *,
        steps_per_sequence: int,
        spacing: int,
        policy: str,
        uncertainty: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.repetition = Repetition(context.batch_size, steps_per_sequence, spacing)
        self.seed, self.reads_importance = context.seed, policy == "importance"
        self.uncertainty = uncertainty if policy == "uncertainty" else None
        self.register_buffer("carried", torch.zeros(self.repetition.slots, 1 + context.length, dtype=torch.float64))

    @override
    def draw_mask(self, rate: Tensor, maskable: Tensor, index: Tensor) -> Tensor:
        row = self.repetition.place(index).row
        keys = sequence_keys(self.seed, "mask", row)
        # One uniform number per sequence: the count never rises while the rate falls.
        count = count_masked(rate, maskable, to_unit(fold(keys, 1), torch.float64))
        order = uniform_order(maskable, fold(keys, 0))
        number, difficulty = self.carried[self.repetition.slot(index)].split([1, maskable.shape[1]], dim=1)
        known = number == row[:, None] + 1
        # The hardest tokens stay masked. A visible token has the value 0, a masked one at least 1, so no visible token
        # is masked again. Without a previous use, the order decides.
        return lowest(torch.where(known, -difficulty, 0), order, count, maskable)

    @override
    def difficulty(self, logits: Tensor) -> Tensor | None:
        return None if self.uncertainty is None else self.uncertainty(logits)

    @override
    def statistics(self, noised: NoisedBatch, loss: Tensor) -> Tensor:
        # The next `carried` of the rows of a micro-batch, zero for all other rows.
        assert noised.index is not None
        carried = torch.zeros_like(self.carried)
        place = self.repetition.slot(noised.index)
        carried[place, 0] = (self.repetition.place(noised.index).row + 1).double()
        difficulty = torch.zeros_like(noised.p) if noised.difficulty is None else noised.difficulty
        carried[place, 1 : 1 + noised.x.shape[1]] = (1 + difficulty.double()) * noised.masked
        return carried

    @override
    def update(self, total: Tensor, progress: float) -> None:
        self.carried.copy_(torch.where(total[:, :1] > 0, total, self.carried))
