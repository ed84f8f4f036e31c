"""The adaptive bound by enumeration: its figures, and that it is a bound, whatever the weights and the model."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.testing.toys import Joint, toy
from tests.adaptive_exact import (
    calibrated,
    log_last,
    log_shares,
    optimum,
    order_form,
    order_likelihood,
    own_time,
    subsets,
    timed_form,
)
from tests.examples import at_most

ROOT = Path(__file__).parents[2]
UNIFORM = torch.zeros(8, 3, dtype=torch.float64)


def by_token(joint):
    """The forward weights of the toy of docs/explanation/mathematics.md: 1 for token 0, 2 for token 1."""
    return torch.where(joint.states == 1, 2.0, 1.0).double().log()


def best_order(joint, log_w):
    return optimum(joint.p, joint.states, log_last(log_w), log_shares(log_w.unsqueeze(-2)))


def best_timed(joint, path):
    return optimum(joint.p, joint.states, path.log_probability, path.log_rate.unsqueeze(-2))


def mean(joint, nelbo):
    return float((joint.p * nelbo).sum())


# The figures


def test_the_figures_of_the_toy():
    joint, by_token_path, uniform_path = toy(), own_time(by_token(toy())), own_time(UNIFORM)
    log_w, calibrated_path = by_token(joint), calibrated(by_token(joint))
    best = best_timed(joint, by_token_path)
    figures = {
        "entropy": joint.entropy,
        "order form, uniform weights": mean(joint, order_form(UNIFORM, *best_order(joint, UNIFORM))),
        "timed form, uniform weights": mean(joint, timed_form(uniform_path, *best_timed(joint, uniform_path))),
        "timed form": mean(joint, timed_form(by_token_path, *best)),
        "timed form without its bracket": mean(joint, timed_form(by_token_path, *best, bracket=False)),
        "order form": mean(joint, order_form(log_w, *best_order(joint, log_w))),
        "order form without its bracket": mean(joint, order_form(log_w, *best_order(joint, log_w), bracket=False)),
        "calibrated": mean(joint, timed_form(calibrated_path, *best_timed(joint, calibrated_path))),
    }
    published = [1.910914, 1.910914, 1.910914, 1.910914, 1.761266, 1.911039, 1.860657, 1.914606]
    assert figures == pytest.approx(dict(zip(figures, published, strict=True)), abs=1e-6)
    page = (ROOT / "docs/explanation/adaptive-masks.md").read_text(encoding="utf-8")
    shown = ("entropy", "order form", "order form without its bracket")
    assert all(f" {figures[name]:.6f}" in page for name in shown)
    # Weights of the token itself: tight for each sequence, not only on average.
    torch.testing.assert_close(timed_form(by_token_path, *best), -joint.p.log(), atol=1e-7, rtol=0)


# It is a bound


class Noise:
    """Changes a model by a function of z, so that what was a distribution given z is another one. V = 2."""

    def __init__(self, joint, seed, size):
        generator = torch.Generator().manual_seed(seed)
        L = joint.length
        table = size * torch.randn(2, 3**L, L, generator=generator, dtype=torch.float64)
        z = torch.where(subsets(L), joint.mask_id, joint.states[:, None])  # [B, S, L]
        number = (z * 3 ** torch.arange(L)).sum(-1)
        self.logit, self.log_weight = table[:, number]
        self.sign = torch.where(joint.states == 1, 1.0, -1.0)[:, None].double()
        self.here = subsets(L)

    def changed(self, ce, log_reverse):
        # In logits: log p − log(1 − p), and back.
        p = (-ce).exp().clamp(1e-12, 1 - 1e-12)
        logit = self.sign * (p / (1 - p)).log() + self.logit
        ce = torch.nn.functional.softplus(-self.sign * logit)
        return torch.where(self.here, ce, 0.0), torch.where(self.here, log_reverse + self.log_weight, 0.0)


@at_most(20)
@given(
    seed=st.integers(0, 2**32 - 1),
    sharpness=st.sampled_from([0.3, 1.0, 3.0]),
    forward=st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    model=st.sampled_from(["best", "near", "far", "any"]),
)
def test_it_is_never_below_the_entropy(seed, sharpness, forward, model):
    """Random joints, forward weights that read all of x, and models from the best one to none at all."""
    generator = torch.Generator().manual_seed(seed)
    joint = Joint((sharpness * torch.randn(8, generator=generator)).exp(), 3, 2)
    log_w = (forward * torch.randn(8, 3, generator=generator, dtype=torch.float64)).clamp(-3, 3)
    noise = Noise(joint, seed, {"best": 0.0, "near": 0.2, "far": 1.0, "any": 2.0}[model])
    path = own_time(log_w, 80)

    def changed(ce, log_reverse):
        if model == "any":
            ce, log_reverse = torch.full_like(ce, math.log(2)), 0 * log_reverse
        return noise.changed(ce, log_reverse)

    free = changed(*best_order(joint, log_w))
    order, timed = order_form(log_w, *free), timed_form(path, *free)
    seeing_t = timed_form(path, *changed(*best_timed(joint, path)))
    assert min(mean(joint, bound) for bound in (order, timed, seeing_t)) >= joint.entropy - 1e-7
    # The timed form pays for the times as well, which the order form does not look at.
    assert bool((timed >= order - 1e-7).all())
    # More than asked: for each sequence it bounds the likelihood of the reverse process, which is normalised.
    likelihood = order_likelihood(*free)
    assert float(likelihood.exp().sum()) == pytest.approx(1, abs=1e-9)
    assert bool((order >= -likelihood - 1e-9).all())


def test_the_order_form_is_tight_for_weights_of_the_position():
    """The model knows them, so ŵ = w, and any order reaches the entropy with the exact conditionals."""
    joint = toy()
    log_w = torch.tensor([1.5, -0.5, 0.2], dtype=torch.float64).expand(8, 3)
    ce, log_reverse = best_order(joint, log_w)
    torch.testing.assert_close(order_form(log_w, ce, log_reverse), -joint.p.log())
    torch.testing.assert_close(order_likelihood(ce, log_reverse), joint.p.log())
