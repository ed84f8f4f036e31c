"""The targets by themselves."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from atat_zoo.diffusion.contracts import StatefulComponent
from atat_zoo.diffusion.randomness import sequence_keys, stratified
from atat_zoo.modeling.masking import ImportanceMasking
from atat_zoo.modeling.masking.mask_drawing import BernoulliMaskDrawing
from atat_zoo.modeling.targets import DifficultyTarget, WasMaskedTarget
from atat_zoo.registry import Context
from atat_zoo.testing import check_target
from tests.diffusion.noised import noised

CONTEXT = Context(vocabulary_size=8, length=8)


@given(st.integers(0, 2**31), st.integers(1, 40), st.sampled_from([3, 10**6]))
def test_rank_agrees_with_scipy(seed, length, levels):
    draw = torch.Generator().manual_seed(seed)
    loss = torch.randint(levels, (4, length), generator=draw).float()
    masked = torch.rand(4, length, generator=draw) < 0.6
    target, counted = DifficultyTarget()(noised(masked), loss * masked)
    for row in range(4):
        inside = masked[row]
        if inside.sum() < 2:
            assert not counted[row].any()
            continue
        assert torch.equal(counted[row], inside)
        expected = (rankdata(loss[row][inside].numpy()) - 0.5) / int(inside.sum())
        torch.testing.assert_close(target[row][inside].double(), torch.from_numpy(expected), atol=1e-6, rtol=0)


def test_rank_survives_an_infinite_loss():
    target, _ = DifficultyTarget()(noised([[True, True, False]]), torch.tensor([[torch.inf, 1.0, 0.0]]))
    torch.testing.assert_close(target, torch.tensor([[0.75, 0.25, 0.0]]))


def test_the_running_scale_learns_one_scale_per_rate():
    module = DifficultyTarget(scale="running", decay=0.5, bins=2).build(CONTEXT)
    assert isinstance(module, StatefulComponent)
    batch = noised(torch.ones(2, 4, dtype=torch.bool), [0.2, 0.9])
    loss = torch.tensor([[1.0, 1.0, 3.0, 3.0], [5.0, 5.0, 9.0, 9.0]])
    _, counted = module(batch, loss)
    assert not counted.any(), "nothing is known before the first update"
    for _ in range(3):
        module.update(module.statistics(batch, loss), 0.0)
    target, counted = module(batch, loss)
    assert counted.all()
    one = torch.sigmoid(torch.tensor(1.0))  # every loss is one deviation from its mean
    torch.testing.assert_close(target, torch.tensor([[1 - one, 1 - one, one, one]] * 2))


def test_the_running_scale_keeps_what_targets_and_states_promise():
    check_target(DifficultyTarget(scale="running"), 20)


def test_a_rate_never_seen_borrows_the_scale_of_all():
    module = DifficultyTarget(scale="running", bins=4).build(CONTEXT)
    seen = noised(torch.ones(1, 2, dtype=torch.bool), [0.9])
    module.update(module.statistics(seen, torch.tensor([[1.0, 3.0]])), 0.0)
    target, _ = module(noised(torch.ones(1, 2, dtype=torch.bool), [0.1]), torch.tensor([[2.0, 2.0]]))
    torch.testing.assert_close(target, torch.full((1, 2), 0.5))


def test_a_rate_seen_long_ago_keeps_its_own_scale():
    module = DifficultyTarget(scale="running", decay=0.1, bins=2).build(CONTEXT)
    low, high = (noised(torch.ones(1, 2, dtype=torch.bool), [rate]) for rate in (0.2, 0.9))
    first = torch.tensor([[1.0, 3.0]])
    module.update(module.statistics(low, first), 0.0)
    for _ in range(3):
        module.update(module.statistics(high, torch.tensor([[5.0, 9.0]])), 0.0)
    target, _ = module(low, first)
    torch.testing.assert_close(target, torch.tensor([[-1.0, 1.0]]).sigmoid())


def test_the_running_scale_without_its_memory_is_refused():
    with pytest.raises(TypeError, match="build"):
        DifficultyTarget(scale="running")(noised([[True]]), torch.ones(1, 1))


ROWS = 20_000


def mean_target(strategy, importance):
    """The minimiser of the squared error per token: the mean target over rates and masks."""
    rows = torch.arange(ROWS)
    rate = stratified(3, rows, ROWS)
    maskable = torch.ones(ROWS, 4, dtype=torch.bool)
    p = strategy.probabilities(importance.expand(ROWS, 4), rate, maskable)
    masked = BernoulliMaskDrawing()(p, sequence_keys(0, "mask", rows))
    # Whatever the loss: here the first token is the hardest by far.
    target, counted = WasMaskedTarget()(noised(masked, rate), masked * torch.tensor([9.0, 1.0, 1.0, 1.0]))
    assert counted.all()
    return target.mean(0), p.mean(0)


def test_with_importance_masking_it_tends_to_the_mean_of_p():
    optimum, expected = mean_target(ImportanceMasking(temperature=0.3), torch.tensor([0.0, 0.2, 0.6, 1.0]))
    torch.testing.assert_close(optimum, expected, atol=0.02, rtol=0)
    assert bool((optimum.diff() > 0.05).all()), "it echoes the importance that went in"
