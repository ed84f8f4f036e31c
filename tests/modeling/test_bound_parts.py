"""The parts of the kind bound: they hand on what they are given, and refuse schedules that bound nothing."""

import pytest
import torch

from atat_zoo import UserError, Zoo
from atat_zoo.diffusion import likelihood_bounds
from atat_zoo.diffusion.likelihood_bounds import average, from_denoiser
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.experiment import from_table
from atat_zoo.modeling.noise import CosineNoise, LinearNoise, LogLinearNoise
from atat_zoo.testing.toys import Hashed

V, L = 3, 6
X = torch.arange(30).view(5, L) % V
KEEP = torch.ones_like(X) > 0
KEYS = sequence_keys(0, "evaluation", torch.arange(5))
LOSSES = from_denoiser(Hashed(V))


def estimate(masks):
    return average(lambda *at: {"nelbo": LOSSES(*at)}, X, masks, V)["nelbo"]


def masks_of(bound, noise):
    return Zoo.load().spec("bound", bound).masks(KEEP, KEYS, 3, noise)


@pytest.mark.parametrize("noise", [LinearNoise(), CosineNoise()])
def test_each_is_its_function(noise):
    same = {"time_at": noise.time_at}
    for bound, masks in (
        ("exact_k", likelihood_bounds.exact_k(KEEP, KEYS, 3, **same)),
        ("continuous_t", likelihood_bounds.continuous_t(KEEP, KEYS, 3, alpha=noise.alpha, weight=noise.weight, **same)),
        (
            {"use": "clipped_t", "least": 0.1, "most": 0.9, "batch": 5},
            likelihood_bounds.clipped_t(KEEP, KEYS, 3, least=0.1, most=0.9, batch=5, **same),
        ),
        (
            {"use": "discrete_t", "steps": 4},
            likelihood_bounds.discrete_t(KEEP, KEYS, 3, alpha=noise.alpha, steps=4, **same),
        ),
    ):
        found, wanted = estimate(masks_of(bound, noise)), estimate(masks)
        assert torch.equal(found.contribution, wanted.contribution)
        assert torch.equal(found.loss_count, wanted.loss_count)


@pytest.mark.parametrize("name", ["continuous_t", "discrete_t"])
@pytest.mark.parametrize("noise", [LogLinearNoise(), Zoo.load().spec("noise", "geometric")], ids=lambda n: n.name)
def test_a_schedule_with_open_ends_bounds_nothing(name, noise):
    message = f"{name} needs a noise schedule from α = 1 to α = 0, but '{noise.name}' does not reach both"
    with pytest.raises(UserError, match=message):
        masks_of(name, noise)
    assert estimate(masks_of("exact_k", noise)).nelbo.isfinite().all()


def test_a_schedule_with_open_ends_is_refused_before_a_training():
    table = {"name": "x", "noise": "geometric", "evaluation": {"bound": "continuous_t"}}
    with pytest.raises(UserError, match="but 'geometric' does not reach both"):
        from_table(table)
    assert from_table(table | {"noise": "cosine"}).evaluation.bound.name == "continuous_t"
    assert from_table(table | {"noise": {"use": "log_linear", "eps": 0.0}}).parts["noise"].complete


def test_a_batch_that_cuts_the_strata_is_refused_with_one_that_does_not():
    table = {"name": "x", "evaluation": {"bound": {"use": "clipped_t", "batch": 24}, "batch_size": 64}}
    with pytest.raises(UserError) as error:
        from_table(table)
    said = "64 is not a multiple of the 24 sequences over which clipped_t stratifies t; set it to 72"
    assert str(error.value) == f"experiment: evaluation.batch_size: {said}"
    table["evaluation"]["batch_size"] = 72
    assert from_table(table).evaluation.bound.quantity == "t from 0.001"
