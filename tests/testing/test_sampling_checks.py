"""The checks of a sampler's parts catch parts that are broken."""

import attrs
import pytest
import torch
from hypothesis.errors import Flaky

from atat_zoo.samplers import Sampler
from atat_zoo.samplers.draw import CategoricalDraw
from atat_zoo.samplers.order import RandomOrder
from atat_zoo.samplers.pace import FixedPace
from atat_zoo.samplers.published import AncestralSampler
from atat_zoo.samplers.remask import NoRemask
from atat_zoo.samplers.stop import StepsStop
from atat_zoo.testing import (
    check_draw,
    check_order,
    check_pace,
    check_policy,
    check_remask,
    check_sampler,
    check_stop,
)
from atat_zoo.testing.sampling import assemble

BROKEN = (AssertionError, Flaky)  # Flaky: broken in another way each time


class Wrapped(Sampler):
    name = "wrapped"

    def __init__(self, change):
        self.change = change

    def sample(self, denoiser, tokens, seeds, **options):
        made = AncestralSampler(steps=4).sample(denoiser, tokens, seeds, **options)
        return self.change(made, tokens, seeds)


def changed(**fields):
    return lambda made, tokens, seeds: attrs.evolve(made, **{k: f(made, tokens) for k, f in fields.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(tokens=lambda made, z: torch.zeros_like(z)), "given token|mask is left|trace"),
        (changed(tokens=lambda made, z: z), "mask is left"),
        (changed(nfe=lambda made, z: made.nfe + 1), "cost something|maximum"),
        (changed(nfe=lambda made, z: made.nfe * 2), "maximum|number of evaluations"),
        (changed(nfe=lambda made, z: made.nfe.sign() * 4), "maximum|number of evaluations"),
        (changed(max_nfe=lambda made, z: made.max_nfe - 1), "maximum"),
    ],
)
def test_broken_samplers(change, message):
    with pytest.raises(AssertionError, match=message):
        check_sampler(Wrapped(change))


def test_a_sampler_that_keeps_a_step_to_itself():
    class Silent(Wrapped):
        def sample(self, denoiser, tokens, seeds, observe=None, **options):
            said = []
            made = super().sample(denoiser, tokens, seeds, observe=said.append, **options)
            for record in said[:-1] if observe else []:
                observe(record)
            return made

    with pytest.raises(AssertionError, match="trace"):
        check_sampler(Silent(lambda made, tokens, seeds: made))


def test_a_sampler_that_writes_to_its_input():
    def change(made, tokens, seeds):
        tokens.copy_(made.tokens)
        return made

    with pytest.raises(AssertionError, match="written to"):
        check_sampler(Wrapped(change))


def test_a_sampler_with_a_generator_of_its_own():
    class Careless(Wrapped):
        def sample(self, denoiser, tokens, seeds, observe=None, **options):
            if observe:  # a batch's first run: hypothesis sees the same each time that it tries the batch
                self.generator = torch.Generator().manual_seed(0)
            own = torch.randint(99, seeds.shape, generator=self.generator)
            return super().sample(denoiser, tokens, own, observe=observe, **options)

    with pytest.raises(AssertionError, match="same seed"):
        check_sampler(Careless(lambda made, *_: made))


def test_a_sampler_whose_rows_share_a_seed():
    class Shared(Wrapped):
        def sample(self, denoiser, tokens, seeds, **options):
            return super().sample(denoiser, tokens, seeds + len(seeds), **options)

    with pytest.raises(AssertionError, match="depends on its batch"):
        check_sampler(Shared(lambda made, *_: made))


class Covered(Wrapped):
    """Says that it is covered, and changes the text that it reveals, or its prices."""

    uncovered = None

    def __init__(self, reveal):
        super().__init__(lambda made, tokens, seeds: made)
        self.along = reveal

    def reveal(self, denoiser, tokens, seeds, revealed, **options):
        made = AncestralSampler(steps=4).reveal(denoiser, tokens, self.along(revealed, seeds), revealed, **options)
        revealed.nats.mul_(getattr(self, "scale", 1))
        return made


def test_a_sampler_that_is_covered_passes():
    check_sampler(Covered(lambda revealed, seeds: seeds))
    check_policy(Covered(lambda revealed, seeds: seeds))
    check_policy(Wrapped(None))  # says nothing, so there is nothing to hold


def test_a_sampler_that_takes_other_steps_along_a_text():
    with pytest.raises(AssertionError, match=r"other steps|more or less"):
        check_sampler(Covered(lambda revealed, seeds: seeds + 1))


def test_a_sampler_whose_steps_depend_on_the_text_itself():
    with pytest.raises(AssertionError, match="sum to 1"):
        check_policy(Covered(lambda revealed, seeds: seeds + revealed.tokens.sum(1)))


def test_a_sampler_with_other_prices():
    sampler = Covered(lambda revealed, seeds: seeds)
    sampler.scale = 0.9
    with pytest.raises(AssertionError, match="sum to 1"):
        check_policy(sampler)


def test_a_random_order_that_says_that_it_is_not():
    order = Part(RandomOrder(), deterministic=True)
    with pytest.raises(AssertionError, match="depends on the seed"):
        check_policy(assemble(order=order, pace=FixedPace(steps=2)))


def test_a_draw_from_another_distribution_than_it_says():
    warm = CategoricalDraw(temperature=3.0)
    with pytest.raises(AssertionError, match="not from what it says"):
        check_draw(Part(CategoricalDraw(), call=warm))
    with pytest.raises(AssertionError, match="does not sum to 1"):
        check_draw(Part(CategoricalDraw(), log_prob=lambda tokens, *_: -torch.ones(len(tokens)).double()))


class Part:
    """A part with one method replaced."""

    def __init__(self, good, **changes):
        self.good, self.changes = good, changes

    def __getattr__(self, name):
        return self.changes.get(name, getattr(self.good, name))

    def __call__(self, *args):
        return self.changes.get("call", self.good)(*args)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda step: step.open.long(), "floating"),
        (lambda step: step.rows.double(), "per position"),
        (lambda step: torch.full(step.open.shape, torch.nan), "not a number"),
        (lambda step: torch.rand(step.open.shape), "other scores"),
        (lambda step: torch.rand(step.open.shape, generator=torch.Generator().manual_seed(len(step.rows))), "batch"),
    ],
)
def test_broken_orders(change, message):
    with pytest.raises(AssertionError, match=message):
        check_order(Part(RandomOrder(), call=change))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"most": lambda n: 0}, "at least one step"),
        ({"most": lambda n: 200 - n}, "fall with"),
        ({"rates": lambda number: (0.2, 0.4)}, "rates"),
        ({"take": lambda step: step.remaining.double()}, "int64"),
        ({"take": lambda step: step.remaining[:1]}, "one number a row"),
        ({"take": lambda step: step.open[:1]}, "bool"),
        ({"take": lambda step: torch.full_like(step.remaining, len(step.remaining))}, "batch"),
        ({"needs": frozenset({"drawn"})}, "unknown needs: drawn"),
    ],
)
def test_broken_paces(changes, message):
    with pytest.raises(AssertionError, match=message):
        check_pace(Part(FixedPace(steps=5), **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": lambda step: 1.5}, "share"),
        ({"call": lambda step: step.open.float()}, "bool"),
        ({"call": lambda step: step.open[:, :1]}, "hidden"),
    ],
)
def test_broken_remasks(changes, message):
    with pytest.raises(AssertionError, match=message):
        check_remask(Part(NoRemask(), **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"call": lambda step: step.rows}, "bool"),
        ({"call": lambda step: step.open}, "finished"),
        ({"call": lambda step: step.rows >= 0}, "has stopped"),
        ({"active": True, "call": lambda step: step.rows > 0}, "batch"),
    ],
)
def test_broken_stops(changes, message):
    with pytest.raises(AssertionError, match=message):
        check_stop(Part(StepsStop(), **changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda log_probs, keys, step, rows: log_probs.argmin(-1), "without probability"),
        (lambda log_probs, keys, step, rows: keys.remainder(log_probs.shape[-1]), "without probability"),
        (lambda log_probs, keys, step, rows: log_probs.argmax(-1).int(), "int64"),
        (lambda log_probs, keys, step, rows: log_probs.argmax(-1, keepdim=True), "one token"),
    ],
)
def test_broken_draws(change, message):
    with pytest.raises(AssertionError, match=message):
        check_draw(Part(CategoricalDraw(), call=change))


@pytest.mark.parametrize(
    "check",
    [
        lambda: check_remask(Part(NoRemask(), active=True, call=lambda step: torch.rand(step.open.shape) < 0.5)),
        lambda: check_draw(
            Part(CategoricalDraw(), call=lambda log_probs, *_: log_probs.exp().multinomial(1).squeeze(1))
        ),
    ],
    ids=["remask", "draw"],
)
def test_parts_that_use_the_global_generator(check):
    with pytest.raises(BROKEN):
        check()
