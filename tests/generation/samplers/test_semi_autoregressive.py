"""Block by block: exact with a model that reads so, in a window with one that does not."""

import pytest
import torch
from exactness import fit, masks
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import UserError
from atat_zoo.diffusion.positions import pairs
from atat_zoo.experiment import from_table
from atat_zoo.generation.samplers.published_samplers import AncestralSampler, CombinationSampler, LeftToRightSampler
from atat_zoo.generation.samplers.semi_autoregressive import SemiAutoregressiveSampler, blocks_of
from atat_zoo.generation.samplers.teacher_forcing import TeacherForcing
from atat_zoo.testing.sampler_checks import check_sampler, noisy
from atat_zoo.testing.toys import FunctionDenoiser, Hashed, toy
from tests.modeling.objectives.blockwise import SIZE, L, V, module

GREEDY = CombinationSampler(
    order="left_to_right", tokens_per_step="one_at_a_time", token_sampling={"use": "categorical", "temperature": 0}
)


@pytest.mark.parametrize("use", ["block", "autoregressive"])
def test_the_text_is_that_of_a_loop_without_a_cache(use):
    """Greedy, so that no draw hides a difference: left_to_right reads the whole text anew for every token."""
    built, z = module(use), noisy(5, L, V, 3)
    plain = GREEDY.sample(built.denoiser(), z, torch.arange(5))
    cached = SemiAutoregressiveSampler(block_sampler=GREEDY).sample(built.denoiser(), z, torch.arange(5))
    assert torch.equal(cached.tokens, plain.tokens)
    assert torch.equal(cached.nfe, plain.nfe)


class Windows(Hashed):
    """Keeps what it was shown."""

    def __init__(self, window, **facts):
        super().__init__(9, window=window, **facts)
        self.shown = []

    def __call__(self, tokens, t, where):
        self.shown.append((tokens.clone(), pairs(where)[1]))
        return super().__call__(tokens, t, where)


@pytest.mark.slow
@pytest.mark.parametrize("within", ["uncertainty_guided", "remdm_cap", "confidence_history"])
def test_it_is_a_sampler_whatever_is_within(within):
    check_sampler(SemiAutoregressiveSampler(block_size=3, block_sampler=within), 4)


@pytest.mark.parametrize(
    ("frame", "low"), [(((), ()), [0, 0, 0, 2, 4, 5]), (((1,), (2,)), [0, 0, 2, 4, 6, 7])], ids=["bare", "framed"]
)
def test_the_window_slides_to_end_with_the_block_between_its_ends(frame, low):
    denoiser, begin = Windows(6, frame=frame), len(frame[0])
    z = torch.full((1, 11), 9)
    sampler = SemiAutoregressiveSampler(block_size=2, block_sampler=AncestralSampler(steps=1))
    made = sampler.sample(denoiser, z, torch.tensor([4]))
    assert made.nfe.tolist() == [6]
    for number, (tokens, asked) in enumerate(denoiser.shown):
        start, stop = 2 * number, min(2 * number + 2, 11)
        assert tokens.shape[1] == 6
        assert (asked - begin + low[number]).tolist() == list(range(start, stop))
        # Nothing but finished text before the block.
        finished = made.tokens[0, low[number] : start].tolist()
        assert tokens[0].tolist() == [*frame[0], *finished, *[9] * (6 - 2 * begin - len(finished)), *frame[1]]
    # The policy NLL of each token is that under the window that was shown.
    forced, steps = TeacherForcing(made.tokens), []
    sampler.score_text(Hashed(9, window=6, frame=frame), z, torch.tensor([4]), forced, observe=steps.append)
    assert [i for step in steps for i in step["positions"]] == list(range(11))
    assert [step["step"] for step in steps] == list(range(6))
    for first, (tokens, asked) in zip(low, denoiser.shown, strict=True):
        where, text = (torch.zeros_like(asked), asked), asked - begin + first
        nll = -Hashed(9)(tokens, None, where).gather(1, made.tokens[0, text, None])[:, 0]
        torch.testing.assert_close(forced.nats[0, text], nll)
    # Within the training length it sees the whole text, and the ends are the text's own.
    denoiser, z = Windows(8, frame=frame), torch.full((1, 6), 9)
    z[0, 5] = 3
    sampler.sample(denoiser, z, torch.tensor([4]))
    assert all(tokens.shape[1] == 6 and tokens[0, 5] == 3 for tokens, _ in denoiser.shown)


@pytest.mark.parametrize("size", [L - 1, L + 1])
def test_a_block_that_is_larger_than_the_framed_window_is_as_large_as_that(size):
    z = torch.full((2, 2 * L), 9)
    denoiser = Hashed(9, window=L, frame=((1,), (2,)))
    made, as_it_fits = (
        SemiAutoregressiveSampler(block_size=s, block_sampler=GREEDY).sample(denoiser, z, torch.arange(2))
        for s in (size, L - 2)
    )
    assert torch.equal(made.tokens, as_it_fits.tokens)


@pytest.mark.parametrize("length", [L + 1, 3 * L + 1])
@pytest.mark.parametrize(("use", "size"), [("block", 3), ("autoregressive", 1)])
def test_with_cached_keys_a_full_row_is_followed_by_one_with_half_of_its_text(use, size, length):
    """Greedy, against rows that are read anew for every token: BOS, the text so far, masks, EOS."""
    built = module(use, size=size)
    sampler = SemiAutoregressiveSampler(block_sampler=GREEDY)
    z = torch.full((3, length), V)
    z[:, 0] = torch.tensor([0, 3, 4])
    denoiser = built.denoiser()
    denoiser.frame = (1,), (2,)
    made = sampler.sample(denoiser, z, torch.arange(3))
    text, room = z.clone(), L - 2
    low = 0
    while (text == V).any():
        part = text[:, low : low + room]
        row = torch.nn.functional.pad(part, (1, room - part.shape[1] + 1), value=V)
        row[:, 0], row[:, -1] = 1, 2
        filled = GREEDY.sample(built.denoiser(), row, torch.arange(3)).tokens
        text[:, low : low + room] = filled[:, 1 : 1 + part.shape[1]]
        low += room - room // 2
    assert torch.equal(made.tokens, text)
    assert made.nfe.tolist() == [length - 1] * 3


def test_one_at_a_time_reproduces_the_joint():
    joint = toy()
    sampler = SemiAutoregressiveSampler(block_size=2, block_sampler=CombinationSampler(tokens_per_step="one_at_a_time"))
    assert fit(sampler.sample(joint.denoiser, *masks(joint, 20_000)), joint) > 0.001
    # All of a block at once does not.
    at_once = SemiAutoregressiveSampler(block_size=2, block_sampler=AncestralSampler(steps=1))
    assert fit(at_once.sample(joint.denoiser, *masks(joint, 20_000)), joint) < 1e-6


@pytest.mark.parametrize(("steps", "most"), [(7, 7), (4, 4), (2, 4)])
def test_steps_are_shared_among_the_blocks(steps, most):
    z = torch.full((2, 16), 9)
    made = SemiAutoregressiveSampler(block_size=4, steps=steps).sample(Hashed(9), z, torch.arange(2))
    assert made.max_nfe == most
    assert int(made.nfe.max()) <= most


def test_blocks_of_one_key_do_not_repeat():
    """With a model that knows nothing every block would be the same if their draws were, at the same position of it."""
    flat = FunctionDenoiser(lambda tokens, t, where: torch.zeros(len(where[0]), 9).log_softmax(-1), 9, window=15)
    sampler = SemiAutoregressiveSampler(block_size=10, block_sampler=AncestralSampler(steps=1))
    made = sampler.sample(flat, torch.full((1, 40), 9), torch.tensor([1]))
    assert len(set(map(tuple, made.tokens.view(4, 10).tolist()))) == 4


def test_blocks_that_do_not_fit_the_model_are_refused():
    built, z = module("block"), torch.full((1, L), V)
    with pytest.raises(UserError, match=r"sampler.block_size = 2 does not divide the model's blocks of 3"):
        SemiAutoregressiveSampler(block_size=2).sample(built.denoiser(), z, torch.arange(1))
    with pytest.raises(UserError, match=r"sampler.block_sampler: 'semi_autoregressive' cannot fill a single block"):
        SemiAutoregressiveSampler(block_sampler="semi_autoregressive").sample(Hashed(V), z, torch.arange(1))
    with pytest.raises(
        UserError, match=r"sampler.steps: the block sampler 'left_to_right' does not have a number of steps"
    ):
        SemiAutoregressiveSampler(block_sampler="left_to_right", steps=3).sample(Hashed(V), z, torch.arange(1))


def test_a_sampler_that_jumps_ahead_is_refused_once_before_the_first_evaluation():
    built, z = module("block"), torch.full((1, L), V)
    with pytest.raises(UserError, match=r'block by block.*"semi_autoregressive"'):
        AncestralSampler().sample(built.denoiser(), z, torch.arange(1))
    z[:, :SIZE] = 1
    z[:, 2 * SIZE :] = 1
    # One block alone may be filled in any order.
    assert (AncestralSampler().sample(built.denoiser(), z, torch.arange(1)).tokens < V).all()
    assert (LeftToRightSampler().sample(built.denoiser(), z, torch.arange(1)).tokens < V).all()


def experiment(objective, sampler):
    about = {"name": "x", "backbone": {"use": "dit", "preset": "nano"}, "data": {"length": 32}}
    return from_table(about | {"objective": objective, "sampler": sampler})


def test_objectives_that_write_block_by_block_take_it():
    block = {"use": "block", "block_size": 8}
    experiment(block, {"use": "semi_autoregressive"})
    experiment(block, {"use": "block", "block_size": 4})
    experiment({"use": "autoregressive"}, {"use": "semi_autoregressive"})
    with pytest.raises(UserError, match=r"sampler.block_size: 3 does not divide the block size 8 of 'block'"):
        experiment(block, {"use": "semi_autoregressive", "block_size": 3})
    with pytest.raises(UserError, match=r"sampler.block_size: 4 does not divide the block size 1 of 'autoregressive'"):
        experiment({"use": "autoregressive"}, {"use": "semi_autoregressive", "block_size": 4})
    with pytest.raises(UserError, match="generates from left to right, a block at a time, but 'ancestral'"):
        experiment(block, {"use": "ancestral"})


@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 12), st.integers(0, 4))
def test_blocks_end_where_those_of_the_model_do(length, size, more, begin):
    """Counted from the beginning of the row, which has tokens before the text; or at the end of the row or the text."""
    room = 2 * size + more
    blocks = blocks_of(length, size, room, begin, cached=True)
    assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
    assert blocks[-1].stop == length
    for block in blocks:
        assert block.low <= block.start < block.stop <= block.high == block.low + room
        inside = (begin + block.stop - block.low) % size
        assert inside == 0 or block.stop in (block.high, length)
        assert (begin + block.start - block.low) % size + block.stop - block.start <= size
