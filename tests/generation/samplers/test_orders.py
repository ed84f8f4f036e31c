"""Orders score as they say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.generation.samplers.order import (
    BlockwiseOrder,
    DilatedOrder,
    DrawnProbabilityOrder,
    LeftToRightOrder,
    RandomOrder,
    UncertaintyOrder,
)
from atat_zoo.generation.samplers.pace import FixedPace
from atat_zoo.modeling.uncertainty import EntropyUncertainty, MarginUncertainty
from atat_zoo.testing.sampling import assemble, example_step, traced
from atat_zoo.testing.toys import Hashed


def filled(order, tokens):
    """Return the positions of the one row in the order in which they were filled."""
    _, trace = traced(assemble(order=order, pace=FixedPace(steps=99)), Hashed(7), tokens, torch.arange(1))
    return [position for record in trace for position in record["positions"]]


def test_the_score_is_uncertainty_times_importance():
    step = example_step(frozenset({"importance"}))
    u = step.spread(EntropyUncertainty()(step.log_probs))
    order = UncertaintyOrder(uncertainty=EntropyUncertainty(), first="most_uncertain", importance=True)
    assert torch.equal(order(step), u * step.importance)
    order = UncertaintyOrder(uncertainty=EntropyUncertainty(), first="most_certain")
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
    order = Equal() if block is None else BlockwiseOrder(block=block, inner=Equal())
    assert filled(order, tokens) == [i for i in range(20) if i != 5]


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
        positions = step.open[row].nonzero()[:, 0]
        found = positions[score[row, positions].sort(descending=True, stable=True).indices].tolist()
        number = {int(place): i // block for i, place in enumerate(positions)}
        assert found == sorted(positions.tolist(), key=lambda i: (number[i], -float(within[row, i]), i))
    assert BlockwiseOrder(block=block, inner=inner).needs == {"log_probs"}


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
        found = [position - before for position in filled(DilatedOrder(base=base), tokens)]
        for group in groups:
            assert set(found[: len(group)]) == group
            found = found[len(group) :]


def test_the_likeliest_draw_comes_first_but_for_noise_that_falls_to_nothing_in_the_last_step():
    step, order = example_step(frozenset({"drawn"}), rows=500, length=40), DrawnProbabilityOrder(choice_temperature=4.5)
    plain = DrawnProbabilityOrder()(step)
    assert torch.equal(plain, step.spread(step.drawn_log_probs.double()))
    # Of standard Gumbel noise times 5/6, 4/6, …: the mean of exp(−noise) is 1, that of an exponential.
    noise = ((order(step) - plain) / (4.5 * 3 / 6))[step.open]
    assert (-noise).exp().mean().item() == pytest.approx(1, abs=0.05)
    step.number = 5
    assert torch.equal(order(step), plain)
