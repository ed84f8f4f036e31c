import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from atat_zoo.diffusion.contracts import NoisedBatch, StatefulPart
from atat_zoo.registry import Context
from atat_zoo.targets import DifficultyTarget

CONTEXT = Context(vocabulary_size=8, length=8)


def step(masked, rate=None):
    masked = torch.as_tensor(masked)
    rows = masked.shape[0]
    rate = torch.full((rows,), 0.5) if rate is None else torch.as_tensor(rate)
    x = torch.zeros_like(masked, dtype=torch.int64)
    return NoisedBatch(
        x=x,
        z=x + 8 * masked,
        masked=masked,
        maskable=torch.ones_like(masked),
        t=rate,
        rate=rate,
        p=rate.unsqueeze(-1).expand(masked.shape),
    )


def test_rank_of_a_small_row_by_hand():
    loss = torch.tensor([[3.0, 0.0, 1.0, 3.0, 9.0]])
    target, counted = DifficultyTarget()(step([[True, False, True, True, True]]), loss)
    torch.testing.assert_close(target, torch.tensor([[0.5, 0.0, 0.125, 0.5, 0.875]]))
    assert counted.tolist() == [[True, False, True, True, True]]


@given(st.integers(0, 2**31), st.integers(1, 40), st.sampled_from([3, 10**6]))
def test_rank_agrees_with_scipy(seed, length, levels):
    draw = torch.Generator().manual_seed(seed)
    loss = torch.randint(levels, (4, length), generator=draw).float()
    masked = torch.rand(4, length, generator=draw) < 0.6
    target, counted = DifficultyTarget()(step(masked), loss * masked)
    for row in range(4):
        inside = masked[row]
        if inside.sum() < 2:
            assert not counted[row].any()
            continue
        assert torch.equal(counted[row], inside)
        expected = (rankdata(loss[row][inside].numpy()) - 0.5) / int(inside.sum())
        torch.testing.assert_close(target[row][inside].double(), torch.from_numpy(expected), atol=1e-6, rtol=0)


def test_rank_survives_an_infinite_loss():
    target, _ = DifficultyTarget()(step([[True, True, False]]), torch.tensor([[torch.inf, 1.0, 0.0]]))
    torch.testing.assert_close(target, torch.tensor([[0.75, 0.25, 0.0]]))


def test_a_lone_masked_token_has_no_rank():
    _, counted = DifficultyTarget()(step([[False, True, False], [True, True, False]]), torch.ones(2, 3))
    assert counted.any(-1).tolist() == [False, True]


def test_the_running_scale_learns_one_scale_per_rate():
    module = DifficultyTarget(scale="running", decay=0.5, bins=2).build(CONTEXT)
    assert isinstance(module, StatefulPart)
    batch = step(torch.ones(2, 4, dtype=torch.bool), [0.2, 0.9])
    loss = torch.tensor([[1.0, 1.0, 3.0, 3.0], [5.0, 5.0, 9.0, 9.0]])
    _, counted = module(batch, loss)
    assert not counted.any(), "nothing is known before the first update"
    for _ in range(3):
        module.update(module.statistics(batch, loss), 0.0)
    target, counted = module(batch, loss)
    assert counted.all()
    one = torch.sigmoid(torch.tensor(1.0))  # every loss is one deviation from its mean
    torch.testing.assert_close(target, torch.tensor([[1 - one, 1 - one, one, one]] * 2))


def test_running_statistics_add_up_over_micro_batches():
    module = DifficultyTarget(scale="running").build(CONTEXT)
    draw = torch.Generator().manual_seed(0)
    masked, loss = torch.rand(6, 5, generator=draw) < 0.5, torch.rand(6, 5, generator=draw)
    rate = torch.rand(6, generator=draw)
    parts = [module.statistics(step(masked[i : i + 2], rate[i : i + 2]), loss[i : i + 2]) for i in (0, 2, 4)]
    torch.testing.assert_close(sum(parts), module.statistics(step(masked, rate), loss))


def test_a_rate_never_seen_borrows_the_scale_of_all():
    module = DifficultyTarget(scale="running", bins=4).build(CONTEXT)
    seen = step(torch.ones(1, 2, dtype=torch.bool), [0.9])
    module.update(module.statistics(seen, torch.tensor([[1.0, 3.0]])), 0.0)
    target, _ = module(step(torch.ones(1, 2, dtype=torch.bool), [0.1]), torch.tensor([[2.0, 2.0]]))
    torch.testing.assert_close(target, torch.full((1, 2), 0.5))


def test_the_running_state_is_all_in_buffers():
    module = DifficultyTarget(scale="running").build(CONTEXT)
    batch = step(torch.ones(1, 3, dtype=torch.bool))
    module.update(module.statistics(batch, torch.tensor([[1.0, 2.0, 4.0]])), 0.0)
    other = DifficultyTarget(scale="running").build(CONTEXT)
    other.load_state_dict(module.state_dict())
    loss = torch.tensor([[0.0, 1.0, 2.0]])
    assert torch.equal(other(batch, loss)[0], module(batch, loss)[0])


def test_the_running_scale_without_its_memory_is_refused():
    with pytest.raises(TypeError, match="build"):
        DifficultyTarget(scale="running")(step([[True]]), torch.ones(1, 1))
