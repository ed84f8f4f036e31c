import torch

from atat_zoo.diffusion.positions import pairs, positions, to_host


def test_positions_are_those_of_nonzero():
    generator = torch.Generator().manual_seed(0)
    for share in (0.0, 0.3, 1.0):
        which = torch.rand(6, 11, generator=generator) < share
        row, position = positions(which, which.sum(1))
        assert torch.equal(torch.stack([row, position], 1), which.nonzero())
        assert torch.equal(torch.stack(pairs(which)), torch.stack(pairs((row, position))))


def test_on_the_host_it_is_the_tensor():
    assert to_host(torch.arange(3)).tolist() == [0, 1, 2]
