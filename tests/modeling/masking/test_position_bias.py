import pytest
import torch

from atat_zoo.modeling.masking.position_bias import FlatBias, GradientBias, LeftToRightBias, RunningBias, UShapeBias
from atat_zoo.registry import Context
from tests.modeling.diffusion.noised import noised

CONTEXT = Context(vocabulary_size=5, length=4)


def test_u_shape_by_hand():
    torch.testing.assert_close(UShapeBias().build(CONTEXT).values(5), torch.tensor([1.0, 0.25, 0.0, 0.25, 1.0]))
    assert UShapeBias(exponent=3.0).build(CONTEXT).values(1).tolist() == [1.0]


@pytest.mark.parametrize("length", [2, 3, 100, 1023])
def test_u_shape_is_exactly_symmetric(length):
    values = UShapeBias(exponent=1.7).build(CONTEXT).values(length)
    assert torch.equal(values, values.flip(0))
    assert values[0] == 1


def test_left_to_right_rises_evenly_and_flat_does_not():
    torch.testing.assert_close(LeftToRightBias().build(CONTEXT).values(5), torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    assert LeftToRightBias().build(CONTEXT).values(1).tolist() == [0.0]
    assert FlatBias().build(CONTEXT).values(3).tolist() == [0.0, 0.0, 0.0]


def test_running_brings_the_means_to_the_unit_interval():
    bias = RunningBias().build(CONTEXT)
    assert bias.values(4).tolist() == [0, 0, 0, 0]
    batch = noised([[True, True, True, False], [True, False, True, False]])
    loss = torch.tensor([[1.0, 4.0, 3.0, 0.0], [3.0, 0.0, 3.0, 0.0]]) / 100
    bias.update(bias.statistics(batch, loss), 0.0)
    # Means 2, 4, 3 in hundredths; the position never masked takes the mean over all draws, 14/5.
    torch.testing.assert_close(bias.values(4), torch.tensor([0.0, 1.0, 0.5, 0.4]))


def test_running_does_not_blow_up_noise_between_equals():
    bias = RunningBias(floor=0.1).build(CONTEXT)
    bias.update(bias.statistics(noised([[True] * 4]), torch.tensor([[2.0, 2.002, 2.0, 2.0]])), 0.0)
    assert bias.values(4).max() < 0.02


def test_running_forgets_and_keeps_what_is_seldom_seen():
    bias = RunningBias(decay=0.5).build(CONTEXT)
    bias.update(bias.statistics(noised([[True] * 4]), torch.tensor([[8.0, 0.0, 4.0, 4.0]])), 0.0)
    assert bias.values(4)[0] == 1
    for _ in range(30):
        bias.update(bias.statistics(noised([[True, True, False, False]]), torch.tensor([[0.0, 8.0, 0.0, 0.0]])), 0.0)
    torch.testing.assert_close(bias.values(4), torch.tensor([0.0, 1.0, 0.5, 0.5]))


def test_running_serves_shorter_sequences_and_refuses_longer_ones():
    bias = RunningBias().build(CONTEXT)
    short = noised([[True, True]])
    bias.update(bias.statistics(short, torch.tensor([[1.0, 2.0]])), 0.0)
    assert bias.values(2).tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="4 positions, not 5"):
        bias.values(5)


def test_a_step_of_gradient_is_that_of_autograd():
    """Of Σ p_i ℓ_i over softmax weights of σ(θ), where all p are alike."""
    losses = torch.tensor([8.0, 1.0, 4.0, 3.0], dtype=torch.float64)
    theta = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    (theta.sigmoid().softmax(0) @ losses).backward()
    bias = GradientBias(learning_rate=1.0).build(CONTEXT)
    assert bias.values(4).tolist() == [0.5] * 4
    bias.update(bias.statistics(noised([[True] * 4]), losses.float()[None]), 0.0)
    torch.testing.assert_close(bias.theta, theta.grad * 4 / losses.mean())


def test_gradient_rises_where_it_is_hard_and_stays_where_nothing_is_masked():
    bias = GradientBias().build(CONTEXT)
    for _ in range(500):
        bias.update(bias.statistics(noised([[True, True, True, False]]), torch.tensor([[3.0, 2.0, 1.0, 0.0]])), 0.0)
    hard, middle, easy, unseen = bias.values(4).tolist()
    assert hard > 0.9
    assert easy < 0.1
    assert middle == unseen == 0.5
    bias.update(torch.zeros(2, 4, dtype=torch.float64), 0.0)
    assert bias.values(4).tolist() == [hard, middle, easy, unseen]
    with pytest.raises(ValueError, match="4 positions, not 5"):
        bias.values(5)
