"""The modules of the mask-rate distributions. Shapes: B sequences of a micro-batch, K blocks per sequence, R bins."""

import math
from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.diffusion.contracts import NoisedBatch, NoiseLevels
from atat_zoo.modeling.noise import Noise
from atat_zoo.registry import Context

# The smallest u and mask rate of a step: at a lower rate, hardly any row gets a mask, however long it is.
SMALLEST = 2.0**-53


class MixedRatesModule(nn.Module):
    """The base of modules that mix a density f, given by `density` and `quantile`, with uniform rates."""

    def __init__(self, uniform_share: float, uniform_until: float, uniform_from: float) -> None:
        super().__init__()
        self.uniform_share, self.uniform_until, self.uniform_from = uniform_share, uniform_until, uniform_from

    @abstractmethod
    def density(self, rate: Tensor) -> Tensor:
        """Return f(r), float64, in the shape of `rate`, which is float64 in (0, 1]."""

    @abstractmethod
    def quantile(self, u: Tensor) -> Tensor:
        """Return the r at which ∫₀^r f = u, in the shape of u, which is float64 in [0, 1]."""

    def levels(self, u: Tensor, noise: Noise, progress: float) -> NoiseLevels:
        """Return rates, their times and weights, in the shape of u; see `MaskRates.levels`."""
        mixed = self.uniform_until <= progress < self.uniform_from
        share, u = self.uniform_share if mixed else 1.0, u.double()
        # The value that is not selected does not matter, as long as it is finite.
        uniform, above = u / max(share, SMALLEST), (u - share) / max(1 - share, SMALLEST)
        rate = torch.where(u <= share, uniform, self.quantile(above.clamp(min=0))).clamp(min=SMALLEST)
        density = share + (1 - share) * self.density(rate) if share < 1 else torch.ones_like(rate)
        drawn = rate.float()
        return NoiseLevels(t=noise.time_at(drawn), rate=drawn, weight=(rate * density).reciprocal().float())


class LogitNormalRatesModule(MixedRatesModule):
    """The module of the logit-normal density: (logit r − m)/s is standard normal."""

    def __init__(self, context: Context, *, location: float, scale: float, **uniform: float) -> None:
        super().__init__(**uniform)
        self.location, self.scale = location, scale

    @override
    def density(self, rate: Tensor) -> Tensor:
        rate, scale = rate.clamp(max=1 - SMALLEST), self.scale
        z = (rate.logit() - self.location) / scale
        log_normal = -z.square() / 2 - math.log(scale * math.sqrt(2 * math.pi))
        return (log_normal - rate.log() - rate.neg().log1p()).exp()

    @override
    def quantile(self, u: Tensor) -> Tensor:
        # u = 0 and u = 1 are replaced by the closest numbers between them.
        z = torch.special.ndtri(u.clamp(SMALLEST, 1 - SMALLEST))
        return (self.location + self.scale * z).sigmoid()


class BetaRatesModule(MixedRatesModule):
    """The beta density, with quantiles from cubic interpolation between the nodes of a table.

    The table is over the log-odds x, where the density σ(x)^a σ(−x)^b / B(a, b) is smooth and falls like e^{ax} and
    e^{−bx}, so one grid suits all a and b. Quantiles are accurate to about 1e-9 in log-odds.
    """

    nodes: Tensor  # x, float64 [n + 1], evenly spaced
    below: Tensor  # F at the nodes, [n + 1], from 0 to 1
    slope: Tensor  # dx/dF at the nodes, [n + 1]

    def __init__(self, context: Context, *, a: float, b: float, **uniform: float) -> None:
        super().__init__(**uniform)
        self.a, self.b = a, b
        self.log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
        # F(x) ≤ e^{ax} / (a·B), and likewise above: outside the nodes, the probability is less than 1e-24.
        low, high = ((math.log(1e-24 * c) + self.log_beta) / c for c in (a, b))
        nodes = torch.linspace(low, -high, 8193, dtype=torch.float64)
        half = (nodes[1] - nodes[0]) / 2
        node, weight = (torch.from_numpy(values) for values in np.polynomial.legendre.leggauss(6))
        inside = nodes[:-1, None] + half * (1 + node)
        below = (self.by_log_odds(inside) @ weight * half).cumsum(0)
        self.register_buffer("nodes", nodes, persistent=False)
        self.register_buffer("below", nn.functional.pad(below / below[-1], (1, 0)), persistent=False)
        self.register_buffer("slope", self.by_log_odds(nodes).reciprocal(), persistent=False)

    def by_log_odds(self, x: Tensor) -> Tensor:
        """Return the density of the log-odds, dF/dx."""
        logsigmoid = nn.functional.logsigmoid
        return (self.a * logsigmoid(x) + self.b * logsigmoid(-x) - self.log_beta).exp()

    @override
    def density(self, rate: Tensor) -> Tensor:
        rate = rate.clamp(max=1 - SMALLEST)
        return ((self.a - 1) * rate.log() + (self.b - 1) * rate.neg().log1p() - self.log_beta).exp()

    @override
    def quantile(self, u: Tensor) -> Tensor:
        right = torch.searchsorted(self.below, u.contiguous()).clamp(1, len(self.nodes) - 1)
        low, high = self.nodes[right - 1], self.nodes[right]
        width = self.below[right] - self.below[right - 1]
        # Hermite's cubic, from the values and slopes at both ends of a cell.
        s = ((u - self.below[right - 1]) / width).clamp(0, 1)
        left_slope, right_slope = self.slope[right - 1] * width, self.slope[right] * width
        x = low + (high - low) * s.square() * (3 - 2 * s) + s * (1 - s) * ((1 - s) * left_slope - s * right_slope)
        # At both extremes, where widths are rounded away, the result stays within its cell.
        return x.clamp(low, high).sigmoid()


class AdaptiveRatesModule(MixedRatesModule):
    """A piecewise constant density, from exponentially decaying sums of the loss and the count in each bin."""

    sums: Tensor  # float64 [2, R]: sum of the losses at masked tokens, and their count
    unigram: Tensor  # float64 []: H₁ in nats

    def __init__(self, context: Context, *, bins: int, floor: float, decay: float, **uniform: float) -> None:
        super().__init__(**uniform)
        self.floor, self.decay = floor, decay
        # A loaded model has no counts; H₁ then comes from its state.
        counts, unigram = context.counts, torch.tensor(math.log(context.vocabulary_size), dtype=torch.float64)
        if counts is not None and counts.sum() > 0:
            unigram = torch.special.entr(torch.as_tensor(counts).double() / float(counts.sum())).sum()
        self.register_buffer("unigram", unigram)
        self.register_buffer("sums", torch.zeros(2, bins, dtype=torch.float64))

    def heights(self) -> Tensor:
        """Return f in each bin, float64 [R], with mean 1."""
        loss, count = self.sums
        middle = (torch.arange(len(count), device=count.device) + 0.5).double() / len(count)
        gain = middle * (self.unigram - loss / count.clamp(min=1e-12))
        heights = self.floor + torch.where((count > 0).all(), gain.clamp(min=0), 0.0)
        return heights / heights.mean()

    def bins(self, rate: Tensor) -> Tensor:
        """Return the bin of each rate, int64; a bin includes its upper end."""
        R = self.sums.shape[-1]
        return (rate.double() * R).ceil().long().sub(1).clamp(0, R - 1)

    @override
    def density(self, rate: Tensor) -> Tensor:
        return self.heights()[self.bins(rate)]

    @override
    def quantile(self, u: Tensor) -> Tensor:
        heights, R = self.heights(), self.sums.shape[-1]
        below = nn.functional.pad(heights.cumsum(0) / R, (1, 0))
        bin = torch.searchsorted(below[1:], u.contiguous()).clamp(max=R - 1)
        inside = ((u - below[bin]) * R / heights[bin]).clamp(0, 1)
        return (bin + inside) / R

    def statistics(self, noised: NoisedBatch, loss: Tensor) -> Tensor:
        """Return the sum of the masked losses and their count in each bin, float64 [2, R]."""
        here = noised.masked.double()
        rows = torch.stack([(loss.detach().double() * here).sum(-1), here.sum(-1)])
        # A product instead of an indexed sum: the latter has no fixed order on a GPU.
        return rows @ nn.functional.one_hot(self.bins(noised.rate), self.sums.shape[-1]).double()

    def update(self, total: Tensor, progress: float) -> None:
        """Decay the sums and add those of the global batch."""
        self.sums.mul_(self.decay).add_(total)
