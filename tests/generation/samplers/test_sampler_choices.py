"""The parts of a sampler do what they say: orders score, paces take, remasks mask, stops fill, draws draw."""

import itertools
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chisquare

from atat_zoo.experiment import from_table
from atat_zoo.generation.samplers import order as orders
from atat_zoo.generation.samplers import remasking as remaskings
from atat_zoo.generation.samplers import stopping_rule as stopping_rules
from atat_zoo.generation.samplers import token_sampling as token_samplings
from atat_zoo.generation.samplers import tokens_per_step as paces
from atat_zoo.generation.samplers.loop import run
from atat_zoo.modeling.noise import CosineNoise, LinearNoise
from atat_zoo.modeling.uncertainty import EntropyUncertainty, MarginUncertainty
from atat_zoo.system.errors import UserError
from atat_zoo.testing.sampler_checks import assemble, example_step, traced
from atat_zoo.testing.toys import Hashed
from tests.examples import at_most


def filled(order, tokens):
    """Return the positions of the one row in the order in which they were filled."""
    _, trace = traced(
        assemble(order=order, tokens_per_step=paces.FixedTokensPerStep(steps=99)), Hashed(7), tokens, torch.arange(1)
    )
    return [position for record in trace for position in record["positions"]]


def test_the_score_is_uncertainty_times_importance():
    step = example_step(frozenset({"importance"}))
    u = step.spread(EntropyUncertainty()(step.log_probs))
    order = orders.UncertaintyOrder(uncertainty=EntropyUncertainty(), first="most_uncertain", importance=True)
    assert torch.equal(order(step), u * step.importance)
    order = orders.UncertaintyOrder(uncertainty=EntropyUncertainty(), first="most_certain")
    assert torch.equal(order(step), -u)
    assert order.needs == {"log_probs"}


@pytest.mark.parametrize("block", [None, 9, 20])
@pytest.mark.parametrize("score", [0.0, -torch.inf])
def test_equal_scores_go_left_first_and_lose_no_position(score, block):
    class Equal:
        name, needs = "equal", frozenset()

        def __call__(self, step):
            return torch.full(step.open.shape, score)

    tokens = torch.full((1, 20), 7)
    tokens[0, 5] = 1
    order = Equal() if block is None else orders.BlockwiseOrder(block_size=block, inner=Equal())
    assert filled(order, tokens) == [i for i in range(20) if i != 5]


def test_blocks_begin_behind_the_prompt_and_come_from_the_left():
    # Positions 2 … 9 are to be filled, in blocks of three; 5 is given.
    tokens = torch.tensor([[1, 2, 7, 7, 7, 3, 7, 7, 7, 7]])
    assert filled(orders.BlockwiseOrder(block_size=3, inner=orders.LeftToRightOrder()), tokens) == [2, 3, 4, 6, 7, 8, 9]
    by_chance = filled(orders.BlockwiseOrder(block_size=3, inner=orders.RandomOrder()), tokens)
    assert [set(by_chance[:3]), set(by_chance[3:6]), set(by_chance[6:])] == [{2, 3, 4}, {6, 7, 8}, {9}]


@given(st.integers(1, 12), st.integers(0, 1000))
def test_within_a_block_the_inner_order_decides(block, seed):
    step = example_step(frozenset(), length=11, seed=seed)
    step.free = step.open.clone()
    inner = orders.UncertaintyOrder(uncertainty=MarginUncertainty())
    score, within = orders.BlockwiseOrder(block_size=block, inner=inner)(step), inner(step)
    for row in range(len(score)):
        positions = step.open[row].nonzero()[:, 0]
        found = positions[score[row, positions].sort(descending=True, stable=True).indices].tolist()
        number = {int(place): i // block for i, place in enumerate(positions)}
        assert found == sorted(positions.tolist(), key=lambda i: (number[i], -float(within[row, i]), i))
    assert orders.BlockwiseOrder(block_size=block, inner=inner).needs == {"log_probs"}


@pytest.mark.parametrize(
    ("n", "base", "groups"),
    [
        # Distances 5, 2, 1.
        (10, 2, [{0, 5}, {2, 4, 6, 8}, {1, 3, 7, 9}]),
        (9, 3, [{0, 3, 6}, {1, 2, 4, 5, 7, 8}]),
        (1, 2, [{0}]),
    ],
)
def test_dilated_goes_from_coarse_to_fine(n, base, groups):
    # Behind a prompt, and in a batch with a longer row, nothing changes.
    for length, before in ((n, 0), (n + 4, 2)):
        tokens = torch.full((1, length), 1)
        tokens[0, before : before + n] = 7
        found = [position - before for position in filled(orders.DilatedOrder(base=base), tokens)]
        for group in groups:
            assert set(found[: len(group)]) == group
            found = found[len(group) :]


def test_the_likeliest_draw_comes_first_but_for_noise_that_falls_to_nothing_in_the_last_step():
    step, order = (
        example_step(frozenset({"drawn"}), rows=500, length=40),
        orders.DrawnProbabilityOrder(choice_temperature=4.5),
    )
    plain = orders.DrawnProbabilityOrder()(step)
    assert torch.equal(plain, step.spread(step.drawn_log_probs.double()))
    # Of standard Gumbel noise times 5/6, 4/6, …: the mean of exp(−noise) is 1, that of an exponential.
    noise = ((order(step) - plain) / (4.5 * 3 / 6))[step.open]
    assert (-noise).exp().mean().item() == pytest.approx(1, abs=0.05)
    step.number = 5
    assert torch.equal(order(step), plain)


def step_at(number, *remaining, total=10):
    step = example_step(frozenset(), rows=len(remaining), length=20)
    step.number, step.rates, step.remaining = number, None, torch.tensor(remaining)
    step.total = torch.full_like(step.remaining, total)
    return step


def test_fixed_takes_its_share():
    tokens_per_step = paces.FixedTokensPerStep(steps=4)
    for number, (remaining, left) in enumerate(itertools.pairwise([10, 8, 5, 3, 0])):
        assert remaining - tokens_per_step.num_to_unmask(step_at(number, remaining)).item() == left
    # What remasking gave back is taken again.
    assert tokens_per_step.num_to_unmask(step_at(1, 10)).tolist() == [5]
    assert tokens_per_step.rates(1) == (0.75, 0.5)


def test_the_binomial_rates_are_those_of_the_noise():
    assert paces.BinomialTokensPerStep(steps=4, noise=LinearNoise()).rates(1) == pytest.approx((0.75, 0.5))
    before = 1 - float(CosineNoise().alpha(torch.tensor(0.25)))
    assert paces.BinomialTokensPerStep(steps=4, noise=CosineNoise()).rates(3) == pytest.approx((before, 0), abs=1e-6)


@pytest.mark.parametrize("remask_rate", [0.0, 0.25])
def test_the_binomial_pace_has_the_reverse_probability(remask_rate):
    n, rows = 4, 20_000
    step = step_at(4, n, total=n)
    step.host_seeds, step.remaining, step.remask_rate = torch.arange(rows), torch.full((rows,), n), remask_rate
    taken = paces.BinomialTokensPerStep(steps=10, noise=LinearNoise()).num_to_unmask(step)
    # t = 0.6, s = 0.5: (α_s − (1 − σ) α_t)/(1 − α_t).
    chance = (0.5 - (1 - remask_rate) * 0.4) / 0.6
    expected = binom.pmf(range(n + 1), n, chance) * rows
    assert chisquare(torch.bincount(taken, minlength=n + 1).numpy(), expected).pvalue > 0.001


def test_a_remask_rate_for_each_row():
    tokens_per_step = paces.BinomialTokensPerStep(steps=10, noise=LinearNoise())
    step = step_at(4, 20, 20, total=20)
    step.host_seeds = torch.tensor([7, 7])
    step.remask_rate = torch.tensor([0.0, 1.25], dtype=torch.float64)
    first, second = tokens_per_step.num_to_unmask(step).tolist()
    # σ = (1 − α_s)/α_t unmasks all.
    assert first < second == 20


@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 40), st.floats(0, 1))
def test_adaptive_takes_between_n_over_max_and_n_over_min(low, more, n, uncertainty):
    tokens_per_step = paces.AdaptiveTokensPerStep(min_steps=low, max_steps=low + more, uncertainty=EntropyUncertainty())
    taken = tokens_per_step.num_to_unmask(
        Fake(torch.ones(1, n, dtype=torch.bool), torch.tensor([n]), uncertainty)
    ).item()
    wanted = n / (low + uncertainty * more)
    # ⌈wanted⌉, but for the rounding of a float32 uncertainty.
    assert wanted - 1e-4 <= taken < wanted + 1 + 1e-4
    assert taken >= 1
    assert tokens_per_step.max_steps_for(n) * taken >= n


class Fake:
    """A step whose uncertainty is given."""

    def __init__(self, open_, total, uncertainty):
        self.open, self.total, self.remaining, self.uncertainty = open_, total, total, uncertainty
        self.number, self.batch, self.rows, self.tokens = 0, len(open_), torch.arange(len(open_)), open_.long()
        self.memory = {}

    def measure(self, metric):
        return torch.where(self.open, self.uncertainty, 0.0).float()

    def mean_open(self, dense):
        return dense.sum(1) / self.open.sum(1)


def extended(low, most, added, rounding="up"):
    return paces.ExtendedTokensPerStep(
        min_steps=low, max_steps=most, added_steps=added, threshold=0.5, rounding=rounding
    )


@pytest.mark.parametrize("rounding", ["up", "down"])
@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 12), st.integers(0, 5), st.data())
def test_extended_ends_in_as_many_steps_as_it_planned_and_never_in_more_than_its_maximum(
    rounding, n, low, more, added, data
):
    tokens_per_step = extended(low, low + more, added, rounding)
    step = Fake(torch.ones(1, n, dtype=torch.bool), torch.tensor([n]), 0.0)
    planned, left, number = low, n, 0
    while left:
        unsure = data.draw(st.booleans())
        step.number, step.uncertainty, step.remaining = number, 0.75 if unsure else 0.25, torch.tensor([left])
        step.open = torch.arange(n)[None] < left
        taken = tokens_per_step.num_to_unmask(step).item()
        planned = min(planned + added * unsure, low + more)
        share = left / (planned - number)
        assert taken == (math.ceil(share) if rounding == "up" else max(1, math.floor(share)))
        left, number = left - taken, number + 1
    assert number <= min(n, planned) <= tokens_per_step.max_steps_for(n)


def test_the_plan_of_a_row_is_its_own():
    tokens_per_step = extended(2, 8, 2)
    step = Fake(torch.ones(2, 8, dtype=torch.bool), torch.tensor([8, 8]), torch.tensor([[0.75], [0.25]]))
    assert tokens_per_step.num_to_unmask(step).tolist() == [2, 4]
    step.rows, step.number = torch.tensor([1]), 1
    step.open, step.remaining, step.uncertainty = step.open[:1], torch.tensor([4]), 0.25
    assert tokens_per_step.num_to_unmask(step).tolist() == [4]


def test_the_cosine_leaves_its_share():
    tokens_per_step, left = paces.CosineTokensPerStep(steps=4), [10]
    for number in range(4):
        left.append(left[-1] - int(tokens_per_step.num_to_unmask(step_at(number, left[-1]))))
    # ⌊10 cos(π/8)⌋, ⌊10 cos(π/4)⌋, ⌊10 cos(3π/8)⌋, 0.
    assert left == [10, 9, 7, 3, 0]
    # At least one, where the cosine is still flat.
    assert int(paces.CosineTokensPerStep(steps=50).num_to_unmask(step_at(0, 10))) == 1
    assert tokens_per_step.rates(0)[0] == 1
    assert tokens_per_step.rates(3)[1] == 0


class Told(Hashed):
    """Keeps the times that it was told."""

    def __init__(self, v):
        super().__init__(v)
        self.reads_time, self.times = True, []

    def __call__(self, tokens, t, where):
        self.times.append(t.clone())
        return super().__call__(tokens, t, where)


@at_most(15)
@given(st.integers(0, 2**40), st.integers(1, 12), st.integers(1, 12) | st.none())
def test_the_times_fall_and_are_never_zero(seed, n, steps):
    sampler, told = assemble(tokens_per_step=paces.FirstHittingTokensPerStep(steps=steps)), Told(3)
    made = sampler.sample(told, torch.full((2, n), 3), torch.tensor([seed, seed + 1]))
    assert made.nfe.tolist() == [n if steps is None else min(n, steps)] * 2
    times = torch.stack(told.times)
    assert ((times > 0) & (times <= 1)).all()
    assert (times.diff(dim=0) <= 0).all()


def test_the_plateau():
    tokens_per_step = paces.PlateauTokensPerStep(steps=20, height=0.9, begin=0.55, end=0.05)
    rates = [tokens_per_step.rates(k)[0] for k in range(20)] + [tokens_per_step.rates(19)[1]]
    assert [rates[i] for i in (0, 4, 9, 19, 20)] == pytest.approx([1, 1 - 0.9 * 0.2 / 0.45, 0.1, 0.1, 0])
    assert rates == sorted(rates, reverse=True)
    # Exactly still, since remasking goes by it.
    assert sum(tokens_per_step.rates(k)[0] == tokens_per_step.rates(k)[1] for k in range(20)) == 10
    assert math.isclose(tokens_per_step.rates(5)[1], tokens_per_step.rates(6)[0])
    falling = paces.PlateauTokensPerStep(steps=20, height=0.9, begin=0.55, end=0.2)
    assert falling.rates(18) == pytest.approx((0.05, 0.025))


@pytest.mark.parametrize("noise", [LinearNoise(), CosineNoise()], ids=lambda noise: noise.name)
def test_a_model_is_told_the_time_at_which_as_much_is_masked(noise):
    """Sixteen of 64 tokens are masked, of which eight are to be filled: not the times of a text that is all masks."""
    told, position = Told(3), torch.arange(64).expand(400, 64)
    z = torch.where((position >= 10) & (position < 26), 3, 1)
    parts = assemble(tokens_per_step=paces.FirstHittingTokensPerStep(noise=noise)).parts()
    run(parts, told, z, torch.arange(400), fill=(position >= 10) & (position < 18))
    first, *_, last = (float((1 - noise.alpha(t)).mean()) for t in told.times)
    # The first of eight is hit at 8/9 of its rate on average, the last at 1/9; the other eight masks stay.
    assert first == pytest.approx((8 + 8 * 8 / 9) / 64, abs=0.003)
    assert last == pytest.approx((8 + 8 / 9) / 64, abs=0.003)


def test_a_model_with_another_noise_is_refused():
    table = {"name": "x", "backbone": {"use": "dit", "time_conditioning": True}, "noise": "cosine"}
    said = re.escape("the noise schedule { use = 'linear' }, but the model was trained with { use = 'cosine' }; set")
    with pytest.raises(UserError, match=said):
        from_table(table | {"sampler": "first_hitting"})
    from_table(table | {"sampler": {"use": "first_hitting", "noise": "cosine"}})


def step_of(probabilities, ranking=None, number=0):
    """Return a step of one row, all open, with these predictions [L, V]."""
    p = torch.tensor(probabilities, dtype=torch.float64)
    step = example_step(frozenset(), rows=1, length=len(p), vocabulary_size=p.shape[1])
    step.number = number
    step.open = step.free = torch.ones(1, len(p), dtype=torch.bool)
    step.total = step.remaining = torch.tensor([len(p)])
    step.log_probs = p.log()
    step.ranking = torch.tensor([ranking or list(range(len(p)))])
    return step


def binary(*confidences):
    return [[c, 1 - c] for c in confidences]


def taken(tokens_per_step, step):
    return tokens_per_step.num_to_unmask(step)[0].nonzero()[:, 0].tolist()


def test_all_above_the_threshold_or_the_first_of_the_order():
    step = step_of(binary(0.95, 0.6, 0.92, 0.9), ranking=[3, 2, 1, 0])
    assert taken(paces.ConfidenceThresholdTokensPerStep(threshold=0.9), step) == [0, 2]
    assert taken(paces.ConfidenceThresholdTokensPerStep(threshold=0.99), step) == [3]
    # Four positions in the two steps that are left: two each.
    assert taken(paces.ConfidenceThresholdTokensPerStep(threshold=0.99, steps=2), step) == [2, 3]
    # Those that the rule takes count.
    assert taken(paces.ConfidenceThresholdTokensPerStep(threshold=0.94, steps=2), step) == [0, 3]
    assert taken(paces.ConfidenceThresholdTokensPerStep(threshold=0.9, steps=1), step) == [0, 1, 2, 3]


def entropy(c):
    return -c * math.log(c) - (1 - c) * math.log(1 - c)


def test_the_entropies_but_the_largest_stay_within_the_bound():
    # The order decides: the two least certain first, of which the smaller counts.
    step = step_of(binary(0.99, 0.9, 0.7, 0.5), ranking=[3, 2, 1, 0])
    assert paces.EntropyBoundedTokensPerStep(gamma=entropy(0.7) + 1e-9).num_to_unmask(step).tolist() == [2]
    # What is certain costs nothing; tokens without any probability are no trouble.
    assert paces.EntropyBoundedTokensPerStep(gamma=0.0).num_to_unmask(step_of(binary(1.0, 1.0, 1.0))).tolist() == [3]
    assert paces.EntropyBoundedTokensPerStep(gamma=0.0, steps=2).num_to_unmask(
        step_of(binary(0.5, 0.5, 0.5))
    ).tolist() == [2]


@given(st.lists(st.floats(0.5, 1.0), min_size=1, max_size=8), st.floats(0, 3))
def test_no_more_and_no_fewer_than_the_bound_allows(confidences, gamma):
    step = step_of(binary(*confidences))
    k = paces.EntropyBoundedTokensPerStep(gamma=gamma).num_to_unmask(step).item()
    h = [float(torch.special.entr(torch.tensor(p, dtype=torch.float64)).sum()) for p in binary(*confidences)]
    assert k == 1 or sum(h[:k]) - max(h[:k]) <= gamma + 1e-12
    assert k == len(h) or sum(h[: k + 1]) - max(h[: k + 1]) >= gamma - 1e-12


@pytest.mark.parametrize(
    ("history", "seen", "found"),
    [
        # Where nothing is stable, the first of the order goes. Position 0 is twice still and confident; 1 moved in the
        # step before; 2 is still, but not confident.
        (2, [(0, (0.95, 0.95, 0.55)), *((k, (0.951, 0.8, 0.551)) for k in (1, 2, 3))], [[2], [2], [0], [0, 1]]),
        # A row that sat out step 2, and a position that was hidden again, begin anew.
        (1, [(0, (0.9, 0.9)), (1, (0.9, 0.9)), (3, (0.9, 0.9)), (4, (0.9, 0.9))], [[1], [0, 1], [1], [0, 1]]),
        (1, [(0, (0.9, 0.9)), (1, (0.9,)), (2, (0.9, 0.9)), (3, (0.9, 0.9))], [[1], [0], [0], [0, 1]]),
    ],
)
def test_a_prediction_must_keep_still_for_the_whole_history(history, seen, found):
    tokens_per_step, memory, length = (
        paces.KLStableTokensPerStep(confidence_threshold=0.6, kl_threshold=0.01, history_length=history),
        {},
        len(seen[0][1]),
    )
    for (number, confidences), expected in zip(seen, found, strict=True):
        step = step_of(binary(*confidences, *[0.5] * (length - len(confidences))), [*range(length)][::-1], number)
        step.open = torch.arange(length)[None] < len(confidences)
        step.remaining, step.log_probs = step.open.sum(1), step.log_probs[: len(confidences)]
        step.memory = memory
        assert taken(tokens_per_step, step) == expected


@given(st.integers(1, 60), st.integers(1, 20), st.randoms(use_true_random=False))
def test_the_quota_is_enough_and_no_more_than_enough(n, steps, random):
    step, left = example_step(frozenset(), rows=1), n
    for number in range(steps):
        step.number, step.remaining = number, torch.tensor([left])
        least = int(paces.quota(step, steps))
        assert (least == 0) == (left == 0)
        # One fewer a step from here on would not do.
        assert left == 0 or (least - 1) * (steps - number) < left <= least * (steps - number)
        left -= min(left, least + random.randint(0, 2))
    assert left == 0


@given(st.integers(0, 1000), st.integers(1, 9))
def test_topping_up_takes_the_first_others_of_the_order(seed, steps):
    step = example_step(frozenset(), length=9, seed=seed)
    step.number = 0
    score = torch.randn(step.open.shape, generator=torch.Generator().manual_seed(seed))
    step.ranking = score.masked_fill(~step.open, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    rule = (score > 0.5) & step.open
    full = paces.topped_up(step, rule, steps)
    assert not (full & ~step.open).any()
    assert not (rule & ~full).any()
    need = paces.quota(step, steps)
    assert torch.equal(full.sum(1), rule.sum(1).maximum(need))
    for row in range(len(score)):
        added, left = score[row][full[row] & ~rule[row]], score[row][step.open[row] & ~full[row]]
        assert not len(added) or not len(left) or added.min() > left.max()


def step_with(rates, rows=3000, length=10):
    """Return a step of many rows in which the first half is masked, and position 9 new."""
    step = example_step(frozenset({"confidence"}), rows=rows, length=length)
    step.rates = rates
    step.open = (torch.arange(length) < length // 2).expand(rows, length)
    step.fresh = (torch.arange(length) == length - 1).expand(rows, length)
    step.free = torch.ones_like(step.open)
    step.confidence = torch.full((rows, length), 0.5)
    return step


def test_sigma_is_that_of_the_paper():
    # α_t = 0.4, α_s = 0.5: σ_max = 0.5/0.4, more than 1. α_t = 0.8, α_s = 0.9: 0.1/0.8.
    assert remaskings.greatest(step_with((0.6, 0.5))) == 1
    assert remaskings.greatest(step_with((0.2, 0.1))) == pytest.approx(0.125)
    assert remaskings.greatest(step_with((1.0, 0.9))) == 1
    assert remaskings.greatest(step_with((0.1, 0.0))) == 0
    early, late = step_with((0.6, 0.5), rows=2), step_with((0.2, 0.1), rows=2)
    assert [remaskings.ReMDMCapRemasking(eta=0.3).rate(step) for step in (early, late)] == pytest.approx([0.3, 0.125])
    assert [remaskings.ReMDMRescaleRemasking(eta=0.3).rate(step) for step in (early, late)] == pytest.approx(
        [0.3, 0.0375]
    )
    assert [remaskings.ReMDMLoopRemasking(eta=0.3).rate(step) for step in (early, late)] == [0, 0]
    assert remaskings.ReMDMLoopRemasking(eta=0.3).rate(step_with((0.1, 0.1), rows=2)) == pytest.approx(0.1 / 0.9)
    assert remaskings.ReMDMLoopRemasking(eta=0.02).rate(step_with((0.1, 0.1), rows=2)) == pytest.approx(0.02)


@pytest.mark.parametrize("remasking", [remaskings.ReMDMCapRemasking, remaskings.ReMDMRescaleRemasking])
def test_it_is_switched_on_and_off(remasking):
    switched = remasking(switch_on=0.5, switch_off=0.2)
    rates = [switched.rate(step_with((before, before - 0.1), rows=2)) > 0 for before in (0.9, 0.5, 0.3, 0.2)]
    assert rates == [False, True, True, False]
    assert not remaskings.ReMDMConfRemasking(switch_on=0.5)(step_with((0.9, 0.8))).any()


@pytest.mark.parametrize(
    "remasking",
    [
        remaskings.ReMDMCapRemasking(eta=0.3),
        remaskings.ReMDMRescaleRemasking(eta=0.3),
        remaskings.ReMDMLoopRemasking(eta=0.3),
    ],
)
def test_settled_tokens_go_by_chance_and_no_others(remasking):
    step = step_with((0.5, 0.5))
    step.remask_rate = remasking.rate(step)
    share = remasking(step).double().mean(0)
    assert share[:5].max() == 0
    assert share[9] == 0
    assert share[5:9].tolist() == pytest.approx([0.3] * 4, abs=0.04)
    step.remask_rate = torch.tensor([0.0, 1.0]).repeat(1500)  # one for each row
    assert torch.equal(remasking(step)[:, 5:9].double().mean(1), step.remask_rate.double())
    step.free = torch.arange(10).expand_as(step.open) != 6  # what is given is not touched
    assert not remasking(step)[:, 6].any()


def test_a_token_that_was_drawn_with_little_confidence_goes_sooner():
    step = step_with((0.5, 0.5), rows=20_000)
    step.confidence = torch.tensor([1.0] * 5 + [0.1, 0.1, 0.9, 0.9, 0.0]).expand(20_000, 10)
    share = remaskings.ReMDMConfRemasking(eta=0.8)(step).double().mean(0)
    weight = (-torch.tensor([0.1, 0.1, 0.9, 0.9])).softmax(0) * 0.8
    assert share[5:9].tolist() == pytest.approx(weight.tolist(), abs=0.02)
    assert share[:5].max() == share[9] == 0
    assert remaskings.ReMDMConfRemasking().rate(step) == 0
    assert not remaskings.NoRemasking()(step).any()


def test_the_planner_keeps_the_best_down_to_the_share():
    step = step_with((0.9, 0.6), rows=1)
    step.open, step.total = torch.zeros_like(step.open), torch.tensor([10])
    step.confidence = torch.tensor([[0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4, 0.5, 0.05]])
    step.fresh = torch.arange(10)[None] >= 8
    # ⌊10 · 0.6⌋ go: 9, 1, 3, 5, 7, 8.
    assert remaskings.PlannerRemasking()(step).nonzero()[:, 1].tolist() == [1, 3, 5, 7, 8, 9]
    # Old tokens weigh nothing, so the new ones go first; then from the right, as equals go left first into the text.
    assert remaskings.PlannerRemasking(eta=0.0)(step).nonzero()[:, 1].tolist() == [4, 5, 6, 7, 8, 9]
    # Old ones weigh much: only the new ones and the best stay.
    assert remaskings.PlannerRemasking(eta=100.0)(step).nonzero()[:, 1].tolist() == [1, 3, 4, 5, 6, 7]
    # What is given takes no part in the share.
    step.free, step.total = torch.arange(10)[None] != 9, torch.tensor([9])
    assert remaskings.PlannerRemasking()(step).nonzero()[:, 1].tolist() == [1, 3, 5, 7, 8]


def test_the_planner_keeps_the_left_of_equals():
    step = step_with((0.9, 0.5), rows=2, length=40)
    step.open, step.total = torch.zeros_like(step.open), torch.full((2,), 40)
    step.confidence = torch.full((2, 40), 0.5)
    assert remaskings.PlannerRemasking()(step).nonzero()[:, 1].tolist() == [*range(20, 40)] * 2


def test_the_share_of_the_grid_is_not_rounded_below():
    # 10 · (1 − 0.9) is 0.9999999999999998; and 180 · 0.65 is less than 117 in float32.
    for length, share, masked in ((10, 1 - 0.9, 1), (180, 1 - (1 - 13 / 20), 117)):
        step = step_with((0.9, share), rows=2, length=length)
        step.open, step.total = torch.zeros_like(step.open), torch.full((2,), length)
        assert remaskings.PlannerRemasking()(step).sum(1).tolist() == [masked, masked]


def test_the_mean_uncertainty_is_over_what_is_masked():
    step = example_step(frozenset(), rows=4)
    means = [EntropyUncertainty()(logits).mean() for logits in step.log_probs.split(step.open.sum(1).tolist())]
    threshold = float(sorted(means)[1]) + 1e-6
    stopped = stopping_rules.UncertaintyStoppingRule(threshold=threshold)(step)
    assert stopped.tolist() == [bool(mean < threshold) for mean in means]
    assert stopped.sum() == 2
    # What is as uncertain as the threshold goes on, so 0 never stops.
    step = example_step(frozenset(), rows=1, length=2)
    step.log_probs = torch.tensor([0.0, -torch.inf]).expand(len(step.log_probs), 2)
    assert not stopping_rules.UncertaintyStoppingRule(threshold=0.0)(step).any()


@pytest.mark.parametrize(
    ("stop", "sharpness", "filled"),
    [
        # A text that is certain is filled in one evaluation.
        (stopping_rules.UncertaintyStoppingRule(threshold=0.3), 1e4, [16]),
        (stopping_rules.UncertaintyStoppingRule(threshold=0.3), 0.1, [2] * 8),
        (stopping_rules.UncertaintyStoppingRule(threshold=0.0), 1e4, [2] * 8),
        # The history must be full.
        (stopping_rules.ConfidenceHistoryStoppingRule(window=3, threshold=0.9), 1e6, [2, 2, 12]),
        (stopping_rules.ConfidenceHistoryStoppingRule(window=3, threshold=1.0), 1e6, [2] * 8),
    ],
)
def test_a_stop_fills_the_rest(stop, sharpness, filled):
    denoiser, sampler = (
        Hashed(50, sharpness=sharpness),
        assemble(tokens_per_step=paces.FixedTokensPerStep(steps=8), stopping_rule=stop),
    )
    made, trace = traced(sampler, denoiser, torch.full((3, 16), 50), torch.arange(3))
    assert [len(record["rows"]) // 3 for record in trace] == filled
    assert made.nfe.tolist() == [denoiser.calls] * 3 == [len(filled)] * 3


def test_the_running_confidence_is_a_mean_over_the_window():
    step = example_step(frozenset(), rows=3)
    nan = torch.nan
    step.history = torch.tensor([[0.1, 0.8, 0.9], [nan, 0.9, 0.9], [nan, nan, 0.9]], dtype=torch.float64)
    assert stopping_rules.ConfidenceHistoryStoppingRule(window=2, threshold=0.84)(step).tolist() == [True, True, False]
    assert stopping_rules.ConfidenceHistoryStoppingRule(window=3, threshold=0.59)(step).tolist() == [True, False, False]
    assert stopping_rules.ConfidenceHistoryStoppingRule(window=3, threshold=0.61)(step).tolist() == [
        False,
        False,
        False,
    ]
    assert stopping_rules.ConfidenceHistoryStoppingRule(window=4, threshold=0.0)(step).tolist() == [False, False, False]


STEP = example_step(frozenset({"history"}), rows=2)  # its third
STEP.history = torch.tensor([[torch.nan, 0.2, 0.4], [torch.nan, torch.nan, 1.0]], dtype=torch.float64)
STEP.max_steps = torch.tensor([3, 4])
P = torch.tensor([0.5, 0.3, 0.1, 0.1], dtype=torch.float64)


def said(draw, row=0):
    """Return the probabilities of the four tokens in a row of the step."""
    rows = torch.full((4,), row)
    return draw.log_prob(torch.arange(4), P.log().expand(4, 4), STEP, rows).exp()


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (token_samplings.CategoricalTokenSampling(), [0.5, 0.3, 0.1, 0.1]),
        (token_samplings.CategoricalTokenSampling(temperature=0.5), [25 / 36, 9 / 36, 1 / 36, 1 / 36]),
        (token_samplings.TopKTokenSampling(k=2), [5 / 8, 3 / 8, 0, 0]),
        (token_samplings.TopKTokenSampling(k=2, temperature=0.5), [25 / 34, 9 / 34, 0, 0]),
        (token_samplings.NucleusTokenSampling(top_p=0.75), [5 / 8, 3 / 8, 0, 0]),
        (token_samplings.NucleusTokenSampling(top_p=0.85), [0.5, 0.3, 0.1, 0.1]),
        # 25/36 + 9/36 reach 0.9 when tempered.
        (token_samplings.NucleusTokenSampling(top_p=0.9, temperature=0.5), [25 / 34, 9 / 34, 0, 0]),
        (token_samplings.NucleusTokenSampling(temperature=0.0), [1, 0, 0, 0]),
        (token_samplings.MinPTokenSampling(p=0.5), [5 / 8, 3 / 8, 0, 0]),
        # 0.3 stays: (3/5)² = 0.36 when tempered; (1/5)² does not reach 0.05.
        (token_samplings.MinPTokenSampling(p=0.05, temperature=0.5), [25 / 34, 9 / 34, 0, 0]),
        (token_samplings.MinPTokenSampling(temperature=0.0), [1, 0, 0, 0]),
        # The last of three steps is that of the first row alone.
        (token_samplings.GreedyLastTokenSampling(token_sampling=token_samplings.TopKTokenSampling(k=2)), [1, 0, 0, 0]),
    ],
    ids=str,
)
def test_probabilities(draw, expected):
    assert said(draw).tolist() == pytest.approx(expected, abs=1e-9)


def test_a_row_before_its_last_step_is_not_greedy():
    assert torch.equal(
        said(token_samplings.GreedyLastTokenSampling(token_sampling=token_samplings.TopKTokenSampling(k=2)), row=1),
        said(token_samplings.TopKTokenSampling(k=2)),
    )


def test_the_temperature_follows_the_running_confidence():
    # Running confidences 0.3 (the NaN is out of the window) and 1.
    for row, temperature in enumerate([1.5 - 0.3, 0.5]):
        tempered = said(
            token_samplings.ConfidenceTemperedTokenSampling(
                confident_temperature=0.5, uncertain_temperature=1.5, window=2
            ),
            row,
        )
        torch.testing.assert_close(tempered, (P.log() / temperature).softmax(0))


def test_the_draw_before_the_last_step_knows_the_step():
    draw = token_samplings.ConfidenceTemperedTokenSampling(
        confident_temperature=0.5, uncertain_temperature=1.5, window=2
    )
    assert torch.equal(said(token_samplings.GreedyLastTokenSampling(token_sampling=draw), row=1), said(draw, row=1))
