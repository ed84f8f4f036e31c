"""Estimators of the bound agree with each other, with enumeration, and on a toy with the entropy."""

import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atat_zoo.backbones.dit import DiTBackbone
from atat_zoo.diffusion import bounds
from atat_zoo.diffusion.bounds import continuous_t, discrete_t, enumerate_masks, exact_k, from_denoiser
from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.noise import LinearNoise
from atat_zoo.registry import Context
from atat_zoo.testing.toys import ENTROPY, Hashed, toy
from tests.enumerated import enumerate_discrete

linear = LinearNoise()


def ones(x):
    return torch.ones_like(x, dtype=torch.bool)


def bound_of(denoise, x, masks, mask_id):
    losses = from_denoiser(denoise)
    return bounds.average(lambda *at: {"nelbo": losses(*at)}, x, masks, mask_id)["nelbo"]


def by_k(denoise, x, maskable, draws=1, seed=0, mask_id=None, time_at=linear.time_at, first=0):
    keys = row_keys(seed, "evaluation", torch.arange(first, first + len(x)))
    return bound_of(denoise, x, exact_k(maskable, keys, draws, time_at=time_at), mask_id)


def by_t(denoise, x, maskable, draws=1, seed=0, mask_id=None, weight=linear.weight, noise=linear):
    keys = row_keys(seed, "evaluation", torch.arange(len(x)))
    masks = continuous_t(maskable, keys, draws, time_at=noise.time_at, alpha=noise.alpha, weight=weight)
    return bound_of(denoise, x, masks, mask_id)


def by_steps(denoise, x, maskable, draws=1, seed=0, mask_id=None, steps=8):
    keys = row_keys(seed, "evaluation", torch.arange(len(x)))
    masks = discrete_t(maskable, keys, draws, time_at=linear.time_at, alpha=linear.alpha, steps=steps)
    return bound_of(denoise, x, masks, mask_id)


class Watched:
    """A denoiser that remembers what it was asked."""

    def __init__(self, vocabulary_size, fail_on_visible=True):
        self.vocabulary_size, self.z, self.t, self.where = vocabulary_size, [], [], []

    def __call__(self, z, t, where):
        assert torch.equal(where, z == self.vocabulary_size)
        self.z.append(z)
        self.t.append(t)
        self.where.append(where)
        return torch.full((int(where.sum()), self.vocabulary_size), -math.log(self.vocabulary_size))


# A toy whose entropy is known


def test_enumeration_with_the_exact_denoiser_is_the_entropy():
    joint = toy()
    nelbo = enumerate_masks(from_denoiser(joint.denoiser), joint.states, mask_id=joint.mask_id)
    average = float((joint.p * nelbo).sum())
    assert average == pytest.approx(joint.entropy, abs=1e-12)
    assert average == pytest.approx(ENTROPY, abs=1e-6)
    assert average == pytest.approx(1.910914, abs=1e-6)
    # In every order the exact conditionals multiply to the joint, so the bound is tight for each sequence.
    torch.testing.assert_close(nelbo, -joint.p.log())


def agreement(found, exact, groups):
    """Return how many standard errors apart the mean over sequences is from the exact one.

    `found` holds `groups` independent estimates of every sequence, [groups, B].
    """
    means = found.mean(1)
    error = float(means.std()) / math.sqrt(groups)
    return float((means.mean() - exact.mean()) / error)


def estimates(denoise, x, groups, mask_id, how, **kwargs):
    tiled = x.repeat(groups, 1)
    estimate = {"k": by_k, "t": by_t, "T": by_steps}[how]
    return estimate(denoise, tiled, ones(tiled), mask_id=mask_id, **kwargs).nelbo.view(groups, -1)


def perturbed(joint):
    """A denoiser of the toy that is far from exact, so that sequences and masks differ in their losses."""

    def denoise(z, t, where):
        bias = torch.tensor([[0.2, 0.8], [0.6, 0.4], [0.35, 0.65]], dtype=torch.float64).expand(*z.shape, 2)
        return (0.3 * joint.marginals(z)[where] + 0.7 * bias[where]).log()

    return denoise


@pytest.mark.parametrize("how", ["k", "t"])
def test_every_sequence_by_itself_agrees_with_enumeration(how):
    """Else sequences would be measured in one part of the diffusion by their place in the batch."""
    joint = toy()
    denoise = perturbed(joint)
    exact = enumerate_masks(from_denoiser(denoise), joint.states, mask_id=joint.mask_id)
    found = estimates(denoise, joint.states, 2000, joint.mask_id, how)
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - exact).abs() / error).max() < 4


# A network

# Steps of training: none, or enough to have learned something.
TRAINED = [0, 60]


@functools.cache
def network(steps, conditioned=False):
    torch.manual_seed(0)
    V, L = 5, 7
    spec = DiTBackbone(layers=1, width=16, heads=2, output_bias="zero", time_conditioning=conditioned)
    model = spec.build(Context(vocabulary_size=V, length=L))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        x = (torch.randint(0, V, (64, 1)) + torch.arange(L)) % V
        t = torch.rand(64)
        masked = torch.rand(64, L) < t[:, None]
        hidden = model(torch.where(masked, V, x), t if conditioned else None)
        loss = torch.nn.functional.cross_entropy(model.head(hidden[masked]), x[masked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if not steps:
        with torch.no_grad():  # zero-initialised, it would predict the uniform distribution everywhere
            for parameter in model.parameters():
                parameter.normal_(std=0.5)

    @torch.no_grad()
    def denoise(z, t, where):
        return model.head(model(z, t if conditioned else None)[where]).double().log_softmax(-1)

    x = torch.cat([(torch.arange(4)[:, None] + torch.arange(L)) % V, torch.randint(0, V, (4, L))])
    return denoise, x, V


@pytest.mark.parametrize("conditioned", [False, True], ids=["", "conditioned"])
@pytest.mark.parametrize("steps", TRAINED)
def test_estimates_agree_on_a_network(steps, conditioned):
    denoise, x, V = network(steps, conditioned)
    exact = enumerate_masks(from_denoiser(denoise), x, mask_id=V, time_at=linear.time_at)
    by_counts = estimates(denoise, x, 400, V, "k")
    by_times = estimates(denoise, x, 400, V, "t")
    assert abs(agreement(by_counts, exact, 400)) < 3
    assert abs(agreement(by_times, exact, 400)) < 3
    assert by_counts.mean() == pytest.approx(float(exact.mean()), rel=0.05)
    if steps == 60:  # it has learned something: the rule costs less than noise
        assert exact[:4].mean() < 0.5 * exact[4:].mean()


def test_other_schedules_have_the_same_bound():
    from atat_zoo.noise import CosineNoise

    denoise, x, V = network(0)
    exact = enumerate_masks(from_denoiser(denoise), x, mask_id=V)
    cosine = CosineNoise()
    found = estimates(denoise, x, 400, V, "t", noise=cosine, weight=cosine.weight)
    assert abs(agreement(found, exact, 400)) < 3


# The masks


@given(n=st.integers(1, 12), padding=st.integers(0, 4), draws=st.integers(1, 15), seed=st.integers(0, 2**62))
def test_exactly_k_of_the_maskable_tokens_are_masked(n, padding, draws, seed):
    x = torch.zeros(3, n + padding, dtype=torch.int64)
    maskable = ones(x)
    maskable[:, n:] = False
    watched = Watched(2)
    estimate = by_k(watched, x, maskable, draws, seed, mask_id=2)
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
    # A denoiser that reads t gets the share that is masked, so that it is a function of z.
    for where, t in zip(watched.where, watched.t, strict=True):
        torch.testing.assert_close(t, where.sum(1) / n)
    assert torch.equal(estimate.loss_count, torch.stack(watched.where).sum(0))


@pytest.mark.parametrize("how", [by_k, by_t, by_steps])
def test_the_time_is_that_of_the_share_of_text_that_is_masked(how):
    """Padding and given tokens do not count, so a text has the same times however long its row is."""
    x, watched = torch.zeros(4, 9, dtype=torch.int64), Watched(2)
    maskable = torch.arange(9) < torch.tensor([[3], [5], [9], [0]])
    how(watched, x, maskable, 6, mask_id=2)
    for where, t in zip(watched.where, watched.t, strict=True):
        torch.testing.assert_close(t, where.sum(1) / torch.tensor([3, 5, 9, 1]))


def test_k_and_the_masks_are_uniform():
    watched = Watched(2)
    x = torch.zeros(30_000, 4, dtype=torch.int64)
    by_k(watched, x, ones(x), mask_id=2)
    where = watched.where[0]
    counts = torch.bincount((where * torch.tensor([1, 2, 4, 8])).sum(1), minlength=16)[1:]
    expected = [30_000 / 4 / math.comb(4, bits.bit_count()) for bits in range(1, 16)]
    assert stats.chisquare(counts.double().numpy(), expected).pvalue > 1e-3


def test_masks_of_the_draws_are_independent():
    watched = Watched(2)
    x = torch.zeros(20_000, 3, dtype=torch.int64)
    by_k(watched, x, ones(x), draws=3, mask_id=2)  # k = 1, 2, 3 in turn
    single = watched.where[0].int().argmax(1)
    pair = watched.where[1].int().argmin(1)
    counts = torch.bincount(single * 3 + pair, minlength=9)
    assert stats.chisquare(counts.double().numpy()).pvalue > 1e-3


@given(seed=st.integers(0, 2**62), batch=st.integers(1, 6))
def test_neither_masks_nor_losses_depend_on_the_batch(seed, batch):
    hashed = Hashed(3)
    x = torch.arange(30).view(6, 5) % 3
    maskable = ones(x)
    maskable[2, 3:] = False
    whole = by_k(hashed, x, maskable, 3, seed, mask_id=3)
    for first in range(0, 6, batch):
        rows = slice(first, first + batch)
        piece = by_k(hashed, x[rows], maskable[rows], 3, seed, mask_id=3, first=first)
        assert torch.equal(piece.contribution, whole.contribution[rows])
        assert torch.equal(piece.loss_count, whole.loss_count[rows])


def place_costs(z, t, where):
    """A denoiser that knows the position only."""
    table = torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]], dtype=torch.float64).log()
    return table[: z.shape[1]].expand(len(z), -1, -1)[where]


def test_padding_neither_costs_nor_counts():
    x = torch.tensor([[0, 1, 1], [1, 0, 0]])
    padded = torch.nn.functional.pad(x, (0, 2))
    maskable = torch.nn.functional.pad(ones(x), (0, 2))
    plain = by_k(place_costs, x, ones(x), 5, mask_id=2)
    wide = by_k(place_costs, padded, maskable, 5, mask_id=2)
    assert torch.equal(wide.nelbo, plain.nelbo)
    assert wide.contribution[:, 3:].abs().sum() == 0
    assert wide.loss_count[:, 3:].sum() == 0
    times = by_t(place_costs, padded, maskable, 5, mask_id=2)
    assert times.contribution[:, 3:].abs().sum() == 0
    assert torch.equal(times.nelbo, by_t(place_costs, x, ones(x), 5, mask_id=2).nelbo)


@pytest.mark.parametrize("how", [by_k, by_t])
def test_a_row_with_nothing_maskable_costs_nothing(how):
    x = torch.tensor([[0, 1, 1], [1, 0, 0]])
    maskable = torch.tensor([[False] * 3, [True] * 3])
    estimate = how(place_costs, x, maskable, 4, mask_id=2)
    assert not estimate.loss_count[0].any()
    assert not estimate.weight[0].any()
    assert estimate.nelbo[0] == 0
    assert estimate.nelbo[1] > 0
    nothing = how(place_costs, x, torch.zeros_like(maskable), 4, mask_id=2)
    assert torch.equal(nothing.nelbo, torch.zeros(2, dtype=torch.float64))


def test_one_token_costs_its_loss_exactly():
    x = torch.tensor([[1], [0]])
    estimate = by_k(place_costs, x, ones(x), 3, mask_id=2)
    torch.testing.assert_close(estimate.nelbo, -torch.tensor([0.9, 0.1], dtype=torch.float64).log())
    assert estimate.loss_count.tolist() == [[3], [3]]
    torch.testing.assert_close(estimate.loss_sum, 3 * estimate.contribution)


def test_enumeration_tells_a_denoiser_its_time():
    watched = Watched(2)
    enumerate_masks(from_denoiser(watched), torch.zeros(1, 3, dtype=torch.int64), mask_id=2, time_at=linear.time_at)
    assert len(watched.t) == 7
    for where, t in zip(watched.where, watched.t, strict=True):
        torch.testing.assert_close(t, where.sum(1) / 3)


# T discrete steps: another bound at each T


@pytest.mark.parametrize(("steps", "figure"), [(1, 2.030427), (8, 1.927359), (1000, 1.911048)])
def test_discrete_steps_on_the_toy_give_the_known_figures(steps, figure):
    joint = toy()
    losses = from_denoiser(joint.denoiser)
    found = enumerate_discrete(losses, joint.states, mask_id=joint.mask_id, alpha=linear.alpha, steps=steps)
    assert float((joint.p * found).sum()) == pytest.approx(figure, abs=1e-6)
    assert float((joint.p * found).sum()) > ENTROPY


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_drawn_discrete_steps_agree_with_enumeration_at_the_same_number_of_steps(steps):
    joint = toy()
    denoise = perturbed(joint)
    exact = enumerate_discrete(
        from_denoiser(denoise), joint.states, mask_id=joint.mask_id, alpha=linear.alpha, steps=steps
    )
    found = estimates(denoise, joint.states, 3000, joint.mask_id, "T", steps=steps)
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - exact).abs() <= 4 * error + 1e-12).all()
    if steps > 1:
        assert abs(agreement(found, exact, 3000)) < 3
