"""The optimal schedule is the shortest path, by brute force and by the KL divergence of exact denoisers."""

import itertools
import json

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.diffusion.likelihood_bounds import all_masks, average, exact_k, from_denoiser
from atat_zoo.diffusion.loss_by_mask_rate import LossByMaskRate, optimal_schedule
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.testing.toys import Joint, toy

# f(0) … f(n); f(0) is never used. Any function, monotone or not.
LOSSES = st.lists(st.floats(-5, 50), min_size=2, max_size=9).map(lambda f: torch.tensor(f, dtype=torch.float64))
JOINTS = st.lists(st.integers(1, 30), min_size=16, max_size=16).map(lambda weights: Joint(weights, 4, 2))


def cost(f, masked):
    """Return Σ (k − k')·f(k) over the steps of a schedule, a list of numbers of masked tokens from n to 0."""
    return sum((k - after) * float(f[k]) for k, after in itertools.pairwise(masked))


def schedule(f, steps):
    """Return the schedule that the table describes, from n to 0."""
    table, masked = optimal_schedule(f, steps), [len(f) - 1]
    for left in range(steps, 0, -1):
        if masked[-1]:
            masked.append(int(table[min(left, masked[-1]), masked[-1]]))
    return masked


def every(n, steps):
    """Return all schedules of exactly `steps` steps."""
    return [[n, *reversed(between), 0] for between in itertools.combinations(range(1, n), steps - 1)]


@given(LOSSES, st.integers(1, 12))
def test_the_schedule_is_the_cheapest_of_all(f, steps):
    n = len(f) - 1
    found, taken = schedule(f, steps), min(steps, n)
    assert found in every(n, taken)
    assert cost(f, found) == pytest.approx(min(cost(f, other) for other in every(n, taken)), abs=1e-9)
    assert cost(f, found) <= cost(f, [n - n * k // taken for k in range(taken + 1)]) + 1e-9  # `fixed`
    assert schedule(f, n) == list(range(n, -1, -1))
    assert schedule(f, 1) == [n, 0]


def test_the_table_by_hand():
    # f(4) = 9 is the only difference, so the first step unmasks one token, and the second all others.
    assert optimal_schedule(torch.tensor([0.0, 1, 1, 1, 9]), 2).tolist() == [[0] * 5, [0] * 5, [0, 0, 1, 1, 3]]
    assert optimal_schedule(torch.ones(5, dtype=torch.float64), 9).shape == (5, 5)


@given(LOSSES, LOSSES, st.integers(1, 6))
def test_shorter_rows_have_the_table_of_longer_ones(f, more, steps):
    short, long = optimal_schedule(f, steps), optimal_schedule(torch.cat([f, more]), steps)
    assert torch.equal(short, long[: len(short), : len(f)])


def exact(joint):
    """Return f(0) … f(n) of the exact denoiser of a joint, by enumeration."""
    nats, number = torch.zeros(joint.length + 1, dtype=torch.float64), torch.zeros(joint.length + 1)
    for mask in all_masks(joint.states):
        where = mask.masked
        z = torch.where(where, joint.mask_id, joint.states)
        losses = from_denoiser(joint.denoiser)(z, None, where, joint.states)
        k = int(where[0].sum())
        nats[k] += (losses.view(len(joint.p), k).mean(1) * joint.p).sum()
        number[k] += 1
    return nats / number.clamp(min=1)


def kl(joint, masked):
    """Return E KL(P ‖ P with the tokens of a step drawn independently), averaged over all orders."""
    each = []
    for order in itertools.permutations(range(joint.length)):
        log_q = torch.zeros_like(joint.p)
        for k, after in itertools.pairwise(masked):
            open_ = torch.zeros(joint.length, dtype=torch.bool)
            open_[list(order[joint.length - k :])] = True
            z = joint.states.masked_fill(open_, joint.mask_id)
            now = list(order[joint.length - k : joint.length - after])
            log_q += joint.marginals(z).gather(2, joint.states[..., None])[:, now, 0].log().sum(1)
        each.append(float((joint.p * (joint.p.log() - log_q)).sum()))
    return sum(each) / len(each)


@given(JOINTS, st.integers(1, 4))
def test_the_kl_divergence_of_an_exact_denoiser_is_the_excess(joint, steps):
    f = exact(joint)
    masked, one_by_one = schedule(f, steps), list(range(joint.length, -1, -1))
    assert cost(f, one_by_one) == pytest.approx(joint.entropy)
    found = kl(joint, masked)
    assert found == pytest.approx(cost(f, masked) - cost(f, one_by_one), abs=1e-9)
    assert found == pytest.approx(min(kl(joint, other) for other in every(joint.length, steps)), abs=1e-9)


def test_the_fit_is_the_exact_loss_of_the_toy():
    joint = toy()
    x = joint.states.repeat_interleave((joint.p * 24).round().long() * 400, 0)
    keys, maskable = sequence_keys(3, "evaluation", torch.arange(len(x))), torch.ones_like(x, dtype=torch.bool)
    losses = from_denoiser(joint.denoiser)
    masks = exact_k(maskable, keys, 3, time_at=lambda rate: rate)
    sizes, sums = average(lambda *at: {"nelbo": losses(*at)}, x, masks, joint.mask_id)["nelbo"].of_masks
    assert sizes.sort(1).values.tolist() == [[1, 2, 3]] * len(x)  # stratified
    curve = LossByMaskRate.fit(sizes, sums, 3)
    assert curve.mask_rates == pytest.approx([1 / 3, 2 / 3, 1])
    assert torch.tensor(curve.nats) == pytest.approx(exact(joint)[1:].float(), abs=0.01)
    assert curve.losses(3, 3)[1:].tolist() == pytest.approx(list(curve.nats))
    assert curve.losses(1, 3, closed=2).tolist() == pytest.approx(curve.nats[1:])


def test_a_fit_of_few_mask_rates_averages_over_the_tokens_of_each_bin():
    masked, nats = torch.tensor([[0, 3, 4], [127, 127, 128]]), torch.tensor([[7.0, 3, 8], [90, 90, 64]])
    curve = LossByMaskRate.fit(masked, nats.double(), 128, step=3)
    assert curve.mask_rates == pytest.approx([(3**2 + 4**2) / 7 / 128, (2 * 127**2 + 128**2) / 382 / 128])
    assert curve.nats == pytest.approx([11 / 7, 244 / 382])
    assert curve.step == 3
    assert curve.losses(128, 128)[[0, 1, 128]].tolist() == pytest.approx([11 / 7, 11 / 7, 244 / 382])
    last = LossByMaskRate.fit(torch.tensor([126, 128]), torch.tensor([126.0, 256]), 128)
    assert (last.mask_rates, last.nats) == (pytest.approx([126 / 128, 1]), pytest.approx([1, 2]))
    assert LossByMaskRate.fit(torch.tensor([0, 2]), torch.tensor([0.0, torch.nan]), 4) is None


def test_a_fit_of_many_mask_rates_is_smooth_and_its_schedule_near_the_best():
    def f(rate):
        return 2 + 2 * rate + 3 * rate**4

    n, draw = 64, torch.Generator().manual_seed(1)
    k = torch.randint(1, n + 1, (2000,), generator=draw).double()
    noise = torch.randn(2000, generator=draw, dtype=torch.float64) * 2.5 / k.sqrt()
    curve = LossByMaskRate.fit(k, k * (f(k / n) + noise), n)
    true = f(torch.arange(n + 1).double() / n)
    assert (curve.mask_rates[0], curve.mask_rates[-1], len(curve.nats)) == (0, 1, 65)
    assert (curve.losses(n, n) - true)[1:].abs().max() < 0.3
    best, even = cost(true, schedule(true, 8)), cost(true, [n - n * i // 8 for i in range(9)])
    found = cost(true, schedule(curve.losses(n, n), 8))
    assert best <= found < best + 0.2 * (even - best)
    exact = LossByMaskRate.fit(torch.arange(1, n + 1), torch.arange(1, n + 1) * true[1:], n)
    assert torch.allclose(exact.losses(n, n)[1:], true[1:], atol=0.05)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask_rates": (), "nats": ()},
        {"mask_rates": (0.5,), "nats": (1, 2)},
        {"mask_rates": (0.5, 0.5), "nats": (1, 2)},
        {"mask_rates": (0.5, 1), "nats": (1, float("nan"))},
    ],
)
def test_what_is_no_curve(wrong):
    with pytest.raises(ValueError, match="increasing mask rates"):
        LossByMaskRate(**wrong)


def test_json_keeps_a_curve():
    curve = LossByMaskRate(mask_rates=(0.1, 1 / 3), nats=(1, 2), step=4, measured_on={"split": "validation"})
    again = LossByMaskRate(**json.loads(json.dumps(attrs.asdict(curve))))
    assert again == curve
    assert hash(again) == hash(curve)
    assert again.measured_on == {"split": "validation"}
