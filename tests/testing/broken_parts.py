"""Parts with one mistake each, for the suite to find."""

import torch

from atat_zoo.curricula import ThreeStageCurriculum
from atat_zoo.diffusion.bounds import uniform_order
from atat_zoo.diffusion.calibration import water_fill
from atat_zoo.diffusion.contracts import Levels
from atat_zoo.diffusion.randomness import to_unit
from atat_zoo.diffusion.revealing import count_hidden
from atat_zoo.rates import UniformRates
from atat_zoo.registry import component, param


@component
class Textbook:
    """softmax · r · L, clamped: misses the rate as soon as a token saturates."""

    name, summary, refs = "textbook", "softmax times the rate, clamped", ()
    temperature: float = param(1.0, help="softness", gt=0)

    def probabilities(self, importance, rate, maskable):
        scores = (importance.float() / self.temperature).masked_fill(~maskable, -torch.inf)
        weights = scores.softmax(-1).nan_to_num(0.0)
        return (weights * rate.unsqueeze(-1) * maskable.sum(-1, keepdim=True)).clamp(max=1)


@component
class HalfPrecision:
    """Calibrated, then rounded to bfloat16."""

    name, summary, refs = "half", "rounded to bfloat16", ()
    temperature: float = param(1.0, help="softness", gt=0)

    def probabilities(self, importance, rate, maskable):
        return water_fill(importance.double() / self.temperature, rate, maskable).bfloat16().float()


@component
class WrongWay:
    """Falls with importance and does not say so."""

    name, summary, refs = "wrong_way", "falls with importance", ()
    temperature: float = param(1.0, help="softness", gt=0)

    def probabilities(self, importance, rate, maskable):
        return water_fill(-importance.double() / self.temperature, rate, maskable)


@component
class NotNested:
    """Prefers other tokens at high rates."""

    name, summary, refs = "not_nested", "changes its mind with the rate", ()
    temperature: float = param(1.0, help="softness", gt=0)

    def probabilities(self, importance, rate, maskable):
        sign = (1 - 2 * rate.double()).unsqueeze(-1)
        return water_fill(importance.double() * sign / self.temperature, rate, maskable)


@component
class Lukewarm:
    """Does not listen to its temperature."""

    name, summary, refs = "lukewarm", "ignores its temperature", ()
    temperature: float = param(1.0, help="softness", gt=0)

    def probabilities(self, importance, rate, maskable):
        return water_fill(importance.double(), rate, maskable)


@component
class FirstsFirst:
    """Prefers early tokens and does not say so."""

    name, summary, refs = "firsts_first", "prefers early tokens", ()

    def probabilities(self, importance, rate, maskable):
        place = torch.arange(importance.shape[-1]) / 1e3
        return water_fill(importance.double() - place, rate, maskable)


@component
class Crowd:
    """Looks at the other rows of the batch."""

    name, summary, refs = "crowd", "reads the whole batch", ()

    def probabilities(self, importance, rate, maskable):
        return water_fill(importance.double() * importance.float().mean().double() * 9, rate, maskable)


def of_highest(scores, count, maskable):
    """The mask of the `count` highest scores of the maskable tokens."""
    rank = scores.masked_fill(~maskable, -1.0).argsort(1, descending=True).argsort(1)
    return (rank < count[:, None]) & maskable


@component
class Clairvoyant:
    """Masks what is hard by the scores of the clean text."""

    name, summary, refs = "clairvoyant", "scores the clean text", ()

    def reveal(self, scores, rate, maskable, keys):
        count = count_hidden(rate, maskable, to_unit(keys, torch.float64))
        return of_highest(scores(torch.zeros_like(maskable)), count, maskable)


@component
class Fickle:
    """Scores under one mask, then masks others."""

    name, summary, refs = "fickle", "masks what was visible when it looked", ()

    def reveal(self, scores, rate, maskable, keys):
        count = count_hidden(rate, maskable, to_unit(keys, torch.float64))
        hidden = (uniform_order(maskable, keys) < count[:, None]) & maskable
        return of_highest(torch.where(hidden, 0.0, scores(hidden)), count, maskable)


@component
class RoundingDown:
    """Never masks more than ⌊rn⌋ tokens."""

    name, summary, refs = "rounding_down", "too few on average", ()

    def reveal(self, scores, rate, maskable, keys):
        count = (rate.double() * maskable.sum(-1)).floor()
        return (uniform_order(maskable, keys) < count[:, None]) & maskable


@component
class Leftmost:
    """Masks the first tokens."""

    name, summary, refs = "leftmost", "the first tokens, whatever the scores", ()

    def reveal(self, scores, rate, maskable, keys):
        count = count_hidden(rate, maskable, to_unit(keys, torch.float64))
        return (maskable.cumsum(1) <= count[:, None]) & maskable


@component
class Threshold:
    """A drawing without chance."""

    name, summary, refs = "threshold", "masked where p is above a half", ()

    def __call__(self, p, keys):
        return p > 0.5


@component
class Batchwise:
    """A drawing with the global generator."""

    name, summary, refs = "batchwise", "draws from the global generator", ()

    def __call__(self, p, keys):
        return torch.rand(p.shape) < p


class OverMasked:
    """Weights with mean 1 over the masked tokens instead of the maskable ones."""

    def weights(self, masked, importance, progress):
        raw = importance.float().exp()
        count = masked.masked.sum(-1, keepdim=True)
        mean = (raw * masked.masked).sum(-1, keepdim=True) / count.clamp(min=1)
        return torch.where(count > 0, raw / mean, 1.0)

    def stage(self, progress):
        return "one"


@component
class OverMaskedCurriculum:
    """See above."""

    name, summary, refs = "over_masked", "normalised over the wrong tokens", ()

    def build(self, context):
        return OverMasked()


@component
class Padding:
    """A target that counts padding."""

    name, summary, refs = "padding", "counts what is not maskable", ()

    def __call__(self, masked, loss):
        return torch.zeros_like(loss), torch.ones_like(masked.masked)


@component
class ProbabilityVariance:
    """The variance of the probabilities: the sign of the source documents."""

    name, summary, refs = "probability_variance", "largest when the model is sure", ()

    def __call__(self, logits):
        return logits.float().softmax(-1).var(-1, correction=0)


@component
class WrongWeight:
    """A schedule whose weight is that of another one."""

    name, summary, refs = "wrong_weight", "α = 1 − t² with the weight of 1 − t", ()

    def alpha(self, t):
        return 1 - t**2

    def weight(self, t):
        return 1 / t

    def time_at(self, rate):
        return rate.clamp(0, 1).sqrt()


class Forgetful(torch.nn.Module):
    """A bias whose memory is a plain attribute."""

    total = 0.0

    def values(self, length):
        return torch.full((length,), min(float(self.total), 1.0))

    def statistics(self, masked, loss):
        return masked.masked.double().mean()  # a mean does not add up either

    def update(self, total, progress):
        self.total += float(total)


@component
class ForgetfulBias:
    """See above."""

    name, summary, refs = "forgetful", "forgets on a resume", ()

    def build(self, context):
        return Forgetful()


@component
class UnweightedRates:
    """High rates more often, and weighed as if they were not."""

    name, summary, refs = "unweighted", "weights of another density", ()
    finite_variance = True

    def levels(self, u, noise, progress):
        rate = u.float().sqrt()
        return Levels(t=noise.time_at(rate), rate=rate, weight=1 / rate)


@component
class TimelessRates:
    """The rate for the time, whatever the noise."""

    name, summary, refs = "timeless", "the rate for the time", ()
    finite_variance = True

    def levels(self, u, noise, progress):
        rate = u.float()
        return Levels(t=rate, rate=rate, weight=1 / rate)


@component
class DrawnRates(UniformRates):
    """Rates from the global generator."""

    name, summary, refs = "drawn", "draws from the global generator", ()

    def levels(self, u, noise, progress):
        return super().levels(1 - torch.rand(u.shape), noise, progress)


class Remembered(Forgetful):
    """Rates that are fewer, the more has been masked: in a plain attribute."""

    def levels(self, u, noise, progress):
        power = 1 + float(self.total)
        rate = u.double() ** power
        weight = 1 / (rate * rate ** (1 / power - 1) / power)
        return Levels(t=noise.time_at(rate.float()), rate=rate.float().clamp(min=1e-30), weight=weight.float())

    def statistics(self, masked, loss):
        return masked.masked.double().sum() / 1e4


@component
class ForgetfulRates:
    """See above."""

    name, summary, refs = "forgetful", "forgets on a resume", ()
    finite_variance = True

    def build(self, context):
        return Remembered()


class Undescribed(ThreeStageCurriculum):
    """Inherits its name instead of having one."""
