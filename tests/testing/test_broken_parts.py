"""The checks of masking, of the parts of a step and of those of a training name the promise that a part breaks."""

from types import SimpleNamespace

import attrs
import pytest
import torch
from broken import Changed, building, parameters
from composer import Algorithm, Callback, Event
from composer.loggers import LoggerDestination
from torch.optim.lr_scheduler import LambdaLR

from atat_zoo import testing
from atat_zoo.data.transforms import RandomLengthTransform
from atat_zoo.diffusion.calibration import count_masked, water_fill
from atat_zoo.diffusion.randomness import to_unit
from atat_zoo.modeling.curricula import NoCurriculum, ThreeStageCurriculum
from atat_zoo.modeling.mask_rates import AdaptiveRates, UniformRates
from atat_zoo.modeling.masking import UniformMasking
from atat_zoo.modeling.masking.mask_drawing import BernoulliMaskDrawing
from atat_zoo.modeling.masking.position_bias import RunningBias
from atat_zoo.modeling.noise import PolynomialNoise
from atat_zoo.modeling.targets import WasMaskedTarget
from atat_zoo.registry import component, param
from atat_zoo.testing.masking_checks import PROMISES, PROMISES_OF_VISIBLE_TEXT


def broken_by(promises, strategy, **examples):
    broken = set()
    for name, check in promises.items():
        try:
            check(strategy, **examples)
        except AssertionError:
            broken.add(name)
    return broken


@component
class ByScores:
    """A masking strategy by scores that a subclass makes of the batch."""

    name, summary, refs = "by_scores", "by scores", ()
    temperature: float = param(1.0, help="softness", gt=0)

    def probabilities(self, importance, rate, maskable):
        return water_fill(self.scores(importance.double(), rate.double()), rate, maskable)


class Textbook(ByScores):
    """softmax · r · L, clamped: misses the rate as soon as a token saturates."""

    def probabilities(self, importance, rate, maskable):
        scores = (importance.float() / self.temperature).masked_fill(~maskable, -torch.inf)
        weights = scores.softmax(-1).nan_to_num(0.0)
        return (weights * rate.unsqueeze(-1) * maskable.sum(-1, keepdim=True)).clamp(max=1)


def by(scores):
    """Return a strategy by scores, a function of importance, rate and temperature."""
    return type("By", (ByScores,), {"scores": lambda self, *at: scores(*at, self.temperature)})


the_wrong_way = by(lambda importance, rate, temperature: -importance / temperature)
others_at_high_rates = by(lambda importance, rate, temperature: importance * (1 - 2 * rate)[:, None] / temperature)
first_first = by(
    lambda importance, rate, temperature: importance / temperature - torch.arange(importance.shape[-1]) / 1e3
)
by_the_batch = by(lambda importance, rate, temperature: importance / temperature * importance.mean() * 9)


@pytest.mark.parametrize(
    ("strategy", "promises"),
    [
        (Textbook, {"rate", "limits"}),
        (the_wrong_way, {"importance", "limits"}),
        pytest.param(others_at_high_rates, {"importance", "nesting", "limits"}, marks=pytest.mark.slow),
        (first_first, {"symmetry", "limits"}),
        pytest.param(by_the_batch, {"symmetry"}, marks=pytest.mark.slow),
    ],
)
def test_a_broken_strategy_breaks_its_promises_and_no_others(strategy, promises):
    examples = {"examples": 200} if "nesting" in promises else {}  # few batches show it
    assert broken_by(PROMISES, strategy(), **examples) == promises


UNIFORM = UniformMasking().probabilities


@pytest.mark.parametrize(
    ("probabilities", "said"),
    [
        (lambda self, importance, *at: UNIFORM(importance.zero_(), *at), "importance must not be changed"),
        (lambda self, *at: UNIFORM(*at).half(), r"p: expected float32 \[\d+, \d+\], not float16"),
        (lambda self, importance, *at: water_fill(torch.rand(importance.shape), *at), "random numbers must not come"),
    ],
)
def test_a_strategy_that_does_more_or_gives_something_else_is_found(probabilities, said):
    with pytest.raises(AssertionError, match=said):
        testing.check_masking(type("Broken", (UniformMasking,), {"probabilities": probabilities})())


def of_highest(scores, count, maskable):
    """The mask of the `count` highest scores of the maskable tokens."""
    rank = scores.masked_fill(~maskable, -1.0).argsort(1, descending=True).argsort(1)
    return (rank < count[:, None]) & maskable


def too_few(scores, count, maskable, keys):
    return of_highest(to_unit(keys)[:, None].expand(maskable.shape), (count - 1).clamp(min=0), maskable)


def of_the_clean_text(scores, count, maskable, keys):
    return of_highest(scores(torch.zeros_like(maskable)), count, maskable)


def leftmost(scores, count, maskable, keys):
    return (maskable.cumsum(1) <= count[:, None]) & maskable


@pytest.mark.parametrize(
    ("mask", "promises"),
    [
        (of_the_clean_text, {"visible", "symmetry"}),
        (too_few, {"rate", "symmetry"}),
        (leftmost, {"symmetry"}),
    ],
)
def test_a_strategy_that_draws_masks_wrongly_breaks_its_promises_and_no_others(mask, promises):
    def draw_mask(scores, rate, maskable, keys):
        return mask(scores, count_masked(rate, maskable, to_unit(keys, torch.float64)), maskable, keys)

    strategy = SimpleNamespace(draw_mask=draw_mask)
    assert broken_by(PROMISES_OF_VISIBLE_TEXT, strategy, examples=10) == promises


def weighing(weights):
    return Changed(
        NoCurriculum(), build=lambda good, at: Changed(good(at), weights=lambda _, step, *rest: weights(step))
    )


def rates(levels):
    return Changed(UniformRates(), levels=levels)


DRAWINGS = {
    "probability p|p = 1": Changed(BernoulliMaskDrawing(), call=lambda good, p, keys: p > 0.5),
    "must not depend|random numbers": Changed(
        BernoulliMaskDrawing(), call=lambda good, p, keys: torch.rand(p.shape) < p
    ),
}
RATES = {
    "weights must be 1/": rates(lambda good, u, *rest: good(u.sqrt(), *rest)),
    "must be the rate": rates(lambda good, *at: attrs.evolve(known := good(*at), t=known.rate)),
    "random numbers must not come": rates(lambda good, u, *rest: good(1 - torch.rand(u.shape), *rest)),
    "state_dict\\(\\) must contain the whole state": building(AdaptiveRates(bins=3), load_state_dict=lambda *_: None),
}
everywhere = Changed(WasMaskedTarget(), call=lambda good, step, loss: (loss * 0, step.masked | True))
by_the_rows = building(RunningBias(), statistics=lambda good, *at: good(*at) / at[1].shape[0])


def staging(apply):
    return Changed(RandomLengthTransform(probability=0.5), apply=lambda good, tokens, key, context: apply(tokens, key))


OTHERS = [
    (
        testing.check_transform,
        staging(lambda tokens, key: tokens[: torch.randint(len(tokens), ()) + 1]),
        "tokens, key and context must give",
    ),
    (
        testing.check_transform,
        staging(lambda tokens, key: None if torch.rand(()) < 0.5 else tokens),
        "tokens, key and context must give",
    ),
    (testing.check_transform, staging(lambda tokens, key: None), "let at least one sequence pass"),
    (testing.check_transform, staging(lambda tokens, key: tokens[:0]), r"'random_length' returned int64 \[0\]"),
    (testing.check_transform, staging(lambda tokens, key: tokens + 258), "outside 0 … 257"),
    (testing.check_curriculum, weighing(lambda step: 1.0 + step.masked), "mean 1 over each row's maskable"),
    (testing.check_target, everywhere, "only maskable tokens may be counted"),
    (testing.check_uncertainty, lambda logits: logits.float().softmax(-1).var(-1, correction=0), "uncertainty must be"),
    (testing.check_noise, Changed(PolynomialNoise(exponent=2.0), weight=lambda good, t: 1 / t), "the weight must be"),
    (testing.check_position_bias, by_the_rows, "add up"),
]


@pytest.mark.parametrize(
    ("check", "part", "said"),
    [*parameters(testing.check_mask_drawing, DRAWINGS), *parameters(testing.check_mask_rates, RATES), *OTHERS],
)
def test_a_broken_part_of_a_step_is_found_and_named(check, part, said):
    with pytest.raises(AssertionError, match=said):
        check(part)


def test_a_part_without_a_name_of_its_own_is_found():
    class Undescribed(ThreeStageCurriculum):
        """Inherits its name instead of having one."""

    with pytest.raises(AssertionError, match="name must be a string"):
        testing.check_description("curriculum", Undescribed)


class Forgetful(torch.optim.Adam):
    """Has a state that it does not save."""

    def state_dict(self):
        return super().state_dict() | {"state": {}}


class Ordered(torch.optim.SGD):
    """Steps its first parameter further than the others."""

    def step(self, closure=None):
        loss = super().step(closure)
        with torch.no_grad():
            self.param_groups[0]["params"][0].mul_(0.99)
        return loss


def adam(parameters, **options):
    return torch.optim.Adam(parameters, **{"lr": 1e-2} | options)


OPTIMIZERS = {
    "every trained parameter must be in a group": lambda model: adam(list(model.linear.parameters())[:1]),
    "a frozen parameter must not be in a group": lambda model: adam(list(model.parameters())),
    "must lower a convex loss": lambda model: adam(model.linear.parameters(), maximize=True),
    "every trained parameter must change within": lambda model: adam(
        [{"params": [model.linear.weight]}, {"params": [model.linear.bias], "lr": 1e-30}]
    ),
    "must restore the optimizer bit for bit": lambda model: Forgetful(model.linear.parameters(), lr=1e-2),
    "must not depend on the order of the parameters": lambda model: Ordered(model.linear.parameters(), lr=1e-2),
}


def schedule(share):
    """Return what builds a schedule of this share of the peak, a function of the progress."""
    return lambda optimizer, steps: LambdaLR(optimizer, lambda step: share(min(1.0, step / steps)))


def unsaved(optimizer, steps):
    seen = []
    return LambdaLR(optimizer, lambda step: seen.append(step) or 1 / len(seen))


SCHEDULES = {
    "the learning rate must be finite": schedule(lambda done: float("nan")),
    "the learning rate must not be negative": schedule(lambda done: 0.5 - done),
    "the learning rate must be at most its peak": schedule(lambda done: 1 + done),
    "at least one training step must have a learning rate above 0": schedule(lambda done: 0.0),
    "restore the schedule exactly|same fraction of its peak": unsaved,
}


class Over(LoggerDestination):
    """Writes over its file."""

    def __init__(self, folder):
        self.path = folder / "log"

    def fit_end(self, state, logger):
        self.path.write_text("b" if self.path.exists() else "a")


class Meddles(Callback):
    def batch_end(self, state, logger):
        next(state.model.parameters()).data.mul_(0.5)


class Noisy(Algorithm):
    elsewhere = torch.Generator()

    def match(self, event, state):
        return event == Event.BATCH_END

    def apply(self, event, state, logger):
        next(state.model.parameters()).data.add_(torch.randn(1, generator=self.elsewhere))


@pytest.mark.parametrize(
    ("check", "build", "said"),
    [
        *parameters(testing.check_optimizer, OPTIMIZERS),
        *parameters(testing.check_schedule, SCHEDULES),
        (testing.check_logger, Over, "must keep the earlier log"),
        (testing.check_callback, Meddles, "must not change the trained weights"),
        (testing.check_algorithm, Noisy, "two training runs with the same seed"),
    ],
)
def test_a_broken_part_of_a_training_is_named(check, build, said):
    with pytest.raises(AssertionError, match=said):
        check(SimpleNamespace(build=build))


@pytest.mark.parametrize(
    ("scores", "promise", "attribute"),
    [
        (
            lambda importance, rate, t: importance / t + torch.arange(importance.shape[-1]),
            "symmetry",
            "positional = True",
        ),
        (lambda importance, rate, t: -importance / t, "importance", "direction = -1"),
    ],
)
def test_a_broken_promise_names_the_attribute_that_excepts_from_it(scores, promise, attribute):
    class Raised(ByScores):
        def probabilities(self, importance, rate, maskable):
            return water_fill(scores(importance.double(), rate, self.temperature).exp(), rate, maskable)

    with pytest.raises(AssertionError, match=f"set .*{attribute}"):
        PROMISES[promise](Raised())
