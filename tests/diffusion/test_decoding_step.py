"""What a step of a sampler tells its parts, on three rows of which one is nearly done."""

import attrs
import pytest
import torch

from atat_zoo.diffusion.decoding_step import Step
from atat_zoo.diffusion.randomness import fold, stream, uniform
from atat_zoo.testing.toys import Hashed

M = 5
TOKENS = torch.tensor([[M, 1, M, M], [0, M, 2, 3], [M, M, M, M]])
OPEN = (TOKENS == M) & ~torch.tensor([[False, False, True, False]] * 3)
PLACES = [(0, 0), (0, 3), (1, 1), (2, 0), (2, 1), (2, 3)]


def step(**changes):
    denoiser, seeds = Hashed(M), fold(torch.arange(3), 7)
    made = Step(
        number=2,
        final=False,
        batch=9,
        rows=torch.tensor([1, 4, 8]),
        tokens=TOKENS,
        open=OPEN,
        free=TOKENS < 9,
        total=torch.tensor([4, 3, 5]),
        remaining=OPEN.sum(1),
        closed=torch.tensor([1, 0, 2]),
        max_steps=torch.tensor([6, 7, 8]),
        seeds=seeds,
        host_seeds=seeds + 0,
        memory={},
        denoiser=denoiser,
        log_probs=denoiser(TOKENS, None, OPEN),
    )
    return attrs.evolve(made, **changes)


def test_the_open_places_are_numbered_row_by_row():
    at = step()
    assert at.mask_id == M
    assert [tuple(pair) for pair in torch.stack(at.where, 1).tolist()] == PLACES
    assert at.where[0] is at.where[0]
    rows, positions = torch.tensor(PLACES)[[4, 1, 2]].unbind(1)
    assert at.among_open(rows, positions).tolist() == [4, 1, 2]


def test_the_draws_are_of_the_row_the_step_and_the_purpose():
    at = step()
    keys = fold(at.seeds, stream(2, "order"))
    assert torch.equal(at.keys("order"), keys)
    assert torch.equal(at.host_keys("order"), keys)
    assert torch.equal(at.uniform("order"), uniform(keys, 4, torch.float64))
    others = [step(number=3).keys("order"), at.keys("draw"), step(seeds=at.seeds + 1).keys("order")]
    assert not any(torch.equal(keys, each) for each in others)
    assert torch.equal(step(host_seeds=at.seeds + 1).keys("order"), keys)
    assert not torch.equal(step(host_seeds=at.seeds + 1).host_keys("order"), keys)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_values_stand_at_their_places(dtype):
    values = torch.arange(1, 7, dtype=dtype)
    dense = step().spread(values)
    assert dense.dtype == dtype
    assert dense.tolist() == [[1, 0, 0, 2], [0, 3, 0, 0], [4, 5, 0, 6]]
    assert step().spread(values, 9)[0].tolist() == [1, 9, 9, 2]
    assert step().mean_open(dense.double()).tolist() == [1.5, 3, 5]
    assert step(open=torch.zeros_like(OPEN)).mean_open(torch.zeros(3, 4)).tolist() == [0, 0, 0]


def test_a_metric_is_computed_once():
    at, calls = step(), []

    def largest(log_probs):
        calls.append(len(log_probs))
        return log_probs.amax(-1)

    found = at.measure(largest)
    assert torch.equal(found, at.spread(at.log_probs.amax(-1)))
    assert at.measure(largest) is found
    assert calls == [6]
    assert torch.equal(at.measure(lambda log_probs: log_probs.amin(-1)), at.spread(at.log_probs.amin(-1)))
    with pytest.raises(RuntimeError, match="its needs do not list log_probs"):
        step(log_probs=None).measure(largest)


@pytest.mark.parametrize("share", [0.25, torch.tensor([0.1, 0.2, 0.3])], ids=["one", "each"])
def test_some_of_its_rows(share):
    at = step(remask_rate=share)
    some = at.select(torch.tensor([2, 0]))
    for name in ("rows", "tokens", "open", "free", "seeds", "total", "remaining", "closed", "max_steps", "host_seeds"):
        assert torch.equal(getattr(some, name), getattr(at, name)[[2, 0]]), name
    wanted = share if isinstance(share, float) else share[[2, 0]]
    assert torch.equal(torch.as_tensor(some.remask_rate), torch.as_tensor(wanted))
    assert (some.batch, some.number, some.denoiser) == (9, 2, at.denoiser)
    assert [tuple(pair) for pair in torch.stack(some.where, 1).tolist()] == [(0, 0), (0, 1), (0, 3), (1, 0), (1, 3)]
