"""Estimators of the bound agree with each other, with enumeration, and on a toy with the entropy."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atat_zoo.diffusion.likelihood_bounds import (
    average,
    clipped_t,
    continuous_t,
    discrete_t,
    enumerate_masks,
    exact_k,
    from_denoiser,
)
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.modeling.noise import CosineNoise, LinearNoise
from atat_zoo.testing.toys import ENTROPY, Hashed, toy
from tests.enumerated import enumerate_discrete
from tests.examples import at_most

linear = LinearNoise()


def bound_of(how, denoise, x, maskable=None, draws=1, seed=0, *, mask_id=2, noise=linear, steps=8, first=0):
    """The bound by exact k, continuous t or T steps; every token is maskable unless told otherwise."""
    maskable = torch.ones_like(x, dtype=torch.bool) if maskable is None else maskable
    keys = sequence_keys(seed, "evaluation", torch.arange(first, first + len(x)))
    at = {"time_at": noise.time_at, "alpha": noise.alpha}
    masks = {
        "k": exact_k(maskable, keys, draws, time_at=noise.time_at),
        "t": continuous_t(maskable, keys, draws, **at, weight=noise.weight),
        "T": discrete_t(maskable, keys, draws, **at, steps=steps),
    }
    losses = from_denoiser(denoise)
    return average(lambda *at: {"nelbo": losses(*at)}, x, masks[how], mask_id)["nelbo"]


class Watched:
    """A denoiser of two tokens that remembers what it was asked."""

    def __init__(self):
        self.t, self.where = [], []

    def __call__(self, z, t, where):
        assert torch.equal(where, z == 2)
        self.t.append(t)
        self.where.append(where)
        return torch.full((int(where.sum()), 2), -math.log(2))


# A toy whose entropy is known


def test_enumeration_with_the_exact_denoiser_is_the_entropy():
    joint = toy()
    nelbo = enumerate_masks(from_denoiser(joint.denoiser), joint.states, mask_id=joint.mask_id)
    mean = float((joint.p * nelbo).sum())
    assert mean == pytest.approx(joint.entropy, abs=1e-12)
    assert mean == pytest.approx(ENTROPY, abs=1e-6)
    assert mean == pytest.approx(1.910914, abs=1e-6)
    # In every order the exact conditionals multiply to the joint, so the bound is tight for each sequence.
    torch.testing.assert_close(nelbo, -joint.p.log())


def perturbed(z, t, where):
    """A denoiser of the toy that is far from exact and reads the time: sequences, masks and times have other losses."""
    bias = torch.tensor([[0.2, 0.8], [0.6, 0.4], [0.35, 0.65]], dtype=torch.float64)
    exact = (0.2 + 0.3 * t.double())[:, None, None]
    return (exact * toy().marginals(z) + (1 - exact) * bias)[where].log()


def agrees(how, exact, groups=1500, **options):
    """Compare independent estimates of the toy with their exact values: every sequence by itself, and their mean."""
    states = toy().states
    found = bound_of(how, perturbed, states.repeat(groups, 1), **options).nelbo.view(groups, -1)
    # By itself, else sequences would be measured in one part of the diffusion by their place in the batch.
    error = found.std(0) / math.sqrt(groups)
    assert ((found.mean(0) - exact).abs() <= 4 * error + 1e-12).all()
    means = found.mean(1)
    assert abs(float(means.mean() - exact.mean())) <= 3 * float(means.std()) / math.sqrt(groups) + 1e-12


@pytest.mark.parametrize(("how", "noise"), [("k", linear), ("t", linear), ("t", CosineNoise())], ids=str)
def test_estimates_agree_with_enumeration(how, noise):
    exact = enumerate_masks(from_denoiser(perturbed), toy().states, mask_id=2, time_at=noise.time_at)
    agrees(how, exact, noise=noise, draws=4)


# The masks


@given(n=st.integers(1, 12), padding=st.integers(0, 4), draws=st.integers(1, 15), seed=st.integers(0, 2**62))
def test_exactly_k_of_the_maskable_tokens_are_masked(n, padding, draws, seed):
    x, watched = torch.zeros(3, n + padding, dtype=torch.int64), Watched()
    maskable = (torch.arange(n + padding) < n).expand(x.shape)
    estimate = bound_of("k", watched, x, maskable, draws, seed)
    ks = torch.stack([where.sum(1) for where in watched.where], 1)
    assert ks.shape == (3, draws)
    assert ks.min() >= 1
    assert ks.max() <= n
    # k is stratified over the draws: draw j takes it from its part of 1 … n; with n draws every k comes once.
    for j in range(draws):
        assert ks[:, j].min() > j * n // draws
        assert ks[:, j].max() <= math.ceil((j + 1) * n / draws)
    if draws == n:
        assert (ks.sort(1).values == torch.arange(1, n + 1)).all()
    assert not torch.stack(watched.where).any(0)[:, n:].any()
    assert torch.equal(estimate.loss_count, torch.stack(watched.where).sum(0))


@pytest.mark.parametrize("how", ["k", "t", "T"])
def test_the_time_is_that_of_the_share_of_text_that_is_masked(how):
    """Padding and given tokens do not count, so a text has the same times however long its row is."""
    x, watched = torch.zeros(4, 9, dtype=torch.int64), Watched()
    maskable = torch.arange(9) < torch.tensor([[3], [5], [9], [0]])
    bound_of(how, watched, x, maskable, 6)
    for where, t in zip(watched.where, watched.t, strict=True):
        torch.testing.assert_close(t, where.sum(1) / torch.tensor([3, 5, 9, 1]))


def test_k_and_the_masks_are_uniform_and_those_of_the_draws_independent():
    watched = Watched()
    bound_of("k", watched, torch.zeros(30_000, 4, dtype=torch.int64))
    counts = torch.bincount((watched.where[0] * torch.tensor([1, 2, 4, 8])).sum(1), minlength=16)[1:]
    expected = [30_000 / 4 / math.comb(4, bits.bit_count()) for bits in range(1, 16)]
    assert stats.chisquare(counts.double().numpy(), expected).pvalue > 1e-3
    watched = Watched()
    bound_of("k", watched, torch.zeros(20_000, 3, dtype=torch.int64), draws=3)  # k = 1, 2, 3 in turn
    single, pair = watched.where[0].int().argmax(1), watched.where[1].int().argmin(1)
    counts = torch.bincount(single * 3 + pair, minlength=9)
    assert stats.chisquare(counts.double().numpy()).pvalue > 1e-3


@at_most(10)
@given(seed=st.integers(0, 2**62), batch=st.integers(1, 6))
def test_neither_masks_nor_losses_depend_on_the_batch(seed, batch):
    hashed, x = Hashed(3), torch.arange(30).view(6, 5) % 3
    maskable = torch.arange(5) < torch.tensor([5, 5, 3, 5, 5, 5])[:, None]
    whole = bound_of("k", hashed, x, maskable, 3, seed, mask_id=3)
    for first in range(0, 6, batch):
        rows = slice(first, first + batch)
        piece = bound_of("k", hashed, x[rows], maskable[rows], 3, seed, mask_id=3, first=first)
        assert torch.equal(piece.contribution, whole.contribution[rows])
        assert torch.equal(piece.loss_count, whole.loss_count[rows])


def place_costs(z, t, where):
    """A denoiser that knows the position only."""
    table = torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]], dtype=torch.float64).log()
    return table[: z.shape[1]].expand(len(z), -1, -1)[where]


@pytest.mark.parametrize("how", ["k", "t"])
def test_what_is_not_maskable_neither_costs_nor_counts(how):
    x = torch.tensor([[0, 1, 1], [1, 0, 0], [0, 0, 1]])
    maskable = torch.arange(5) < torch.tensor([[3], [3], [0]])
    plain = bound_of(how, place_costs, x, maskable[:, :3], 5)
    wide = bound_of(how, place_costs, torch.nn.functional.pad(x, (0, 2)), maskable, 5)
    assert torch.equal(wide.nelbo, plain.nelbo)
    assert (plain.nelbo > 0).tolist() == [True, True, False]
    for part in (wide.contribution, wide.loss_count, wide.weight):
        assert not part[~maskable].any()


# T discrete steps: another bound at each T


@pytest.mark.parametrize(("steps", "figure"), [(1, 2.030427), (8, 1.927359), (1000, 1.911048)])
def test_discrete_steps_on_the_toy_give_the_known_figures(steps, figure):
    joint = toy()
    losses = from_denoiser(joint.denoiser)
    found = enumerate_discrete(losses, joint.states, mask_id=joint.mask_id, alpha=linear.alpha, steps=steps)
    assert float((joint.p * found).sum()) == pytest.approx(figure, abs=1e-6)
    assert float((joint.p * found).sum()) > ENTROPY
    page = (Path(__file__).parents[2] / "docs/explanation/mathematics.md").read_text(encoding="utf-8")
    assert f"{figure:.6f} " in page.replace("\n", " ")


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_drawn_discrete_steps_agree_with_enumeration_at_the_same_number_of_steps(steps):
    options = {"mask_id": 2, "alpha": linear.alpha, "steps": steps, "time_at": linear.time_at}
    agrees("T", enumerate_discrete(from_denoiser(perturbed), toy().states, **options), steps=steps)


# Times as published code draws them


@given(st.integers(1, 7), st.integers(1, 40), st.integers(0, 99), st.floats(1e-4, 0.2))
def test_a_row_has_its_time_in_the_stratum_of_its_place(batch, rows, seed, least):
    keys, maskable = sequence_keys(seed, "evaluation", torch.arange(rows)), torch.ones(rows, 5, dtype=torch.bool)
    how = {"time_at": linear.time_at, "least": least, "most": 0.9, "batch": batch}
    (mask,) = clipped_t(maskable, keys, 1, **how)
    torch.testing.assert_close(mask.t, linear.time_at((0.9 / mask.weight).float()))
    for i, t in enumerate((1 / mask.weight).tolist()):
        group = min(batch, rows - i // batch * batch)
        low = least + (1 - least) * (i % batch) / group
        assert low - 1e-9 <= t <= low + (1 - least) / group + 1e-9
    alone = list(clipped_t(maskable[:1], keys[:1], 1, **{**how, "batch": 1}))
    if batch == 1:
        assert torch.equal(alone[0].masked[0], mask.masked[0])


def test_clipped_times_leave_out_what_lies_below_them():
    """Against the integral over [ε, 1] of all masks of a sequence, by quadrature."""
    least, most, x = 0.1, 0.9, toy().states[3:4]
    nats = {
        bits: float(from_denoiser(toy().denoiser)(z, None, m, x).sum())
        for bits in range(1, 2 ** x.shape[1])
        for m in [torch.tensor([[bool(bits >> i & 1) for i in range(x.shape[1])]])]
        for z in [x.masked_fill(m, 2)]
    }

    def at(t):
        k = {bits: bits.bit_count() for bits in nats}
        p = {bits: (most * t) ** k[bits] * (1 - most * t) ** (x.shape[1] - k[bits]) for bits in nats}
        return sum(p[bits] * nats[bits] for bits in nats) / t / (1 - least)

    from scipy import integrate

    exact, groups = integrate.quad(at, least, 1)[0], 20_000
    rows, keys = x.expand(groups, -1), sequence_keys(1, "evaluation", torch.arange(groups))
    how = {"time_at": linear.time_at, "least": least, "most": most, "batch": 1}
    masks = clipped_t(torch.ones_like(rows, dtype=torch.bool), keys, 1, **how)
    found = average(lambda *at: {"t": from_denoiser(toy().denoiser)(*at)}, rows, masks, 2)["t"].nelbo
    assert abs(float(found.mean()) - exact) <= 4 * float(found.std()) / math.sqrt(groups)
    whole = float(-toy().p[3].log())
    assert exact < whole


def test_times_are_as_fine_as_float64():
    keys = sequence_keys(0, "evaluation", torch.arange(100))
    masks = continuous_t(
        torch.ones(100, 1, dtype=torch.bool), keys, 1, time_at=lambda t: t, alpha=lambda t: 1 - t, weight=lambda t: t
    )
    weight = next(masks).weight
    assert (weight.float().double() != weight).any()
