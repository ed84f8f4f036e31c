"""Orders score as they say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.samplers.order import (
    BlockwiseOrder,
    DilatedOrder,
    DrawnProbabilityOrder,
    LeftToRightOrder,
    RandomOrder,
    UncertaintyOrder,
)
from atat_zoo.samplers.pace import FixedPace
from atat_zoo.testing import check_order
from atat_zoo.testing.sampling import assemble, example_step, traced
from atat_zoo.testing.toys import Hashed, hashed_importance
from atat_zoo.uncertainty import (
    CombinedUncertainty,
    ConfidenceUncertainty,
    EntropyUncertainty,
    MarginUncertainty,
    VarianceUncertainty,
)


@pytest.mark.parametrize(
    "metric",
    [EntropyUncertainty(), VarianceUncertainty(), ConfidenceUncertainty(), MarginUncertainty(), CombinedUncertainty()],
    ids=lambda m: m.name,
)
@pytest.mark.parametrize("first", ["most_certain", "most_uncertain"])
def test_any_metric_in_either_direction(metric, first):
    check_order(UncertaintyOrder(uncertainty=metric, first=first, importance=first == "most_uncertain"))


def filled(order, tokens, importance=None, steps=99):
    """Return the positions of the one row in the order in which they were filled."""
    sampler = assemble(order=order, pace=FixedPace(steps=steps))
    _, trace = traced(sampler, Hashed(7, importance=importance), tokens, torch.arange(1))
    return [position for record in trace for position in record["positions"]]


def test_left_to_right_goes_from_left_to_right():
    tokens = torch.tensor([[7, 1, 7, 7, 2, 7]])
    assert filled(LeftToRightOrder(), tokens) == [0, 2, 3, 5]


def test_every_random_order_is_as_likely():
    rows = 6000
    sampler = assemble(order=RandomOrder(), pace=FixedPace(steps=3))
    _, trace = traced(sampler, Hashed(2), torch.full((rows, 3), 2), torch.arange(rows))
    orders = torch.tensor([record["positions"] for record in trace]).T @ torch.tensor([9, 3, 1])
    counts = orders.unique(return_counts=True)[1]
    assert len(counts) == 6
    # Six standard errors.
    assert ((counts - rows / 6).abs() < 6 * (rows * 5 / 36) ** 0.5).all()


def test_the_score_is_uncertainty_times_importance():
    step = example_step(frozenset({"importance"}))
    u = step.spread(EntropyUncertainty()(step.log_probs))
    order = UncertaintyOrder(uncertainty=EntropyUncertainty(), first="most_uncertain", importance=True)
    assert torch.equal(order(step), u * step.importance)
    order = UncertaintyOrder(uncertainty=EntropyUncertainty(), first="most_certain")
    assert torch.equal(order(step), -u)
    assert order.needs == {"log_probs"}


def test_without_an_estimator_importance_is_one():
    tokens = torch.full((1, 6), 7)
    with_factor = UncertaintyOrder(uncertainty=EntropyUncertainty(), importance=True)
    assert filled(with_factor, tokens) == filled(UncertaintyOrder(uncertainty=EntropyUncertainty()), tokens)
    assert filled(with_factor, tokens, hashed_importance) != filled(with_factor, tokens)


def test_directions_are_opposite_in_one_step():
    tokens = torch.full((1, 6), 7)
    firsts = [
        filled(UncertaintyOrder(uncertainty=EntropyUncertainty(), first=first), tokens, steps=2)[:3]
        for first in ("most_certain", "most_uncertain")
    ]
    assert sorted(firsts[0] + firsts[1]) == list(range(6))


def test_equal_scores_go_left_first():
    class Equal:
        name, needs = "equal", frozenset()

        def __call__(self, step):
            return torch.zeros(step.open.shape)

    assert filled(Equal(), torch.full((1, 40), 7)) == list(range(40))


def test_an_infinite_score_does_not_lose_a_position():
    class Never:
        name, needs = "never", frozenset()

        def __call__(self, step):
            return torch.full(step.open.shape, -torch.inf)

    assert filled(Never(), torch.tensor([[1, 7, 1, 7, 7]])) == [1, 3, 4]


def test_blocks_begin_behind_the_prompt_and_come_from_the_left():
    # Positions 2 … 9 are to be filled, in blocks of three; 5 is given.
    tokens = torch.tensor([[1, 2, 7, 7, 7, 3, 7, 7, 7, 7]])
    assert filled(BlockwiseOrder(block=3, inner=LeftToRightOrder()), tokens) == [2, 3, 4, 6, 7, 8, 9]
    by_chance = filled(BlockwiseOrder(block=3, inner=RandomOrder()), tokens)
    assert [set(by_chance[:3]), set(by_chance[3:6]), set(by_chance[6:])] == [{2, 3, 4}, {6, 7, 8}, {9}]


@given(st.integers(1, 12), st.integers(0, 1000))
def test_within_a_block_the_inner_order_decides(block, seed):
    step = example_step(frozenset(), length=11, seed=seed)
    step.free = step.open.clone()
    inner = UncertaintyOrder(uncertainty=MarginUncertainty())
    score, within = BlockwiseOrder(block=block, inner=inner)(step), inner(step)
    for row in range(len(score)):
        places = step.open[row].nonzero()[:, 0]
        found = places[score[row, places].sort(descending=True, stable=True).indices].tolist()
        number = {int(place): i // block for i, place in enumerate(places)}
        assert found == sorted(places.tolist(), key=lambda i: (number[i], -float(within[row, i]), i))
    assert BlockwiseOrder(block=block, inner=inner).needs == {"log_probs"}


def test_a_block_order_passes_on_what_its_inner_order_finds_wrong():
    class Wrong:
        needs = frozenset()

        def check(self, experiment):
            yield "wrong"

    assert list(BlockwiseOrder(inner=Wrong()).check(None)) == ["wrong"]
    assert list(BlockwiseOrder(inner=RandomOrder()).check(None)) == []


@pytest.mark.parametrize(
    ("n", "base", "groups"),
    [
        (8, 2, [{0, 4}, {2, 6}, {1, 3, 5, 7}]),
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
        found = [position - before for position in filled(DilatedOrder(base=base), tokens)]
        for group in groups:
            assert set(found[: len(group)]) == group
            found = found[len(group) :]


def test_the_likeliest_draw_comes_first():
    step = example_step(frozenset({"drawn"}))
    assert torch.equal(DrawnProbabilityOrder()(step), step.spread(step.drawn_log_probs.double()))


def test_the_choice_noise_falls_to_nothing_in_the_last_step():
    step, order = example_step(frozenset({"drawn"})), DrawnProbabilityOrder(choice_temperature=4.5)
    plain = DrawnProbabilityOrder()(step)
    sizes = []
    for number in range(6):
        step.number, step.most = number, torch.full_like(step.most, 6)
        sizes.append(((order(step) - plain) / 4.5)[step.open])
    assert sizes[-1].abs().max() == 0
    # Of standard Gumbel noise times 5/6, 4/6, …: the mean of exp(−noise) is 1, that of an exponential.
    step.number, step.most = 2, torch.full_like(step.most, 6)
    step = example_step(frozenset({"drawn"}), rows=500, length=40)
    step.most = torch.full_like(step.most, 6)
    noise = ((order(step) - DrawnProbabilityOrder()(step)) / (4.5 * 3 / 6))[step.open]
    assert (-noise).exp().mean().item() == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_conformance_of_other_parameters():
    for order in (
        BlockwiseOrder(block=1, inner=DrawnProbabilityOrder()),
        BlockwiseOrder(block=4, inner=BlockwiseOrder(block=2, inner=UncertaintyOrder(importance=True))),
        DilatedOrder(base=3),
        DrawnProbabilityOrder(choice_temperature=4.5),
    ):
        check_order(order, examples=20)


def test_an_order_that_was_given_no_draws_says_so():
    with pytest.raises(RuntimeError, match="without the tokens that were drawn"):
        DrawnProbabilityOrder()(example_step(frozenset()))
