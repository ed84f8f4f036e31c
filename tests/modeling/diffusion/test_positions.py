import torch

from atat_zoo.modeling.diffusion.positions import begins, pairs, positions, to_host, within_documents


def test_positions_are_those_of_nonzero():
    generator = torch.Generator().manual_seed(0)
    for share in (0.0, 0.3, 1.0):
        which = torch.rand(6, 11, generator=generator) < share
        row, position = positions(which, which.sum(1))
        assert torch.equal(torch.stack([row, position], 1), which.nonzero())
        assert torch.equal(torch.stack(pairs(which)), torch.stack(pairs((row, position))))


def test_on_the_host_it_is_the_tensor():
    assert to_host(torch.arange(3)).tolist() == [0, 1, 2]


def test_documents_begin_where_their_numbers_change():
    documents = torch.tensor([[0, 0, 1, 1, 1, 1], [7, 4, 4, 4, 7, 7], [1, 1, 1, 1, 1, 1]])
    first = [[1, 0, 1, 0, 0, 0], [1, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0]]
    assert torch.equal(begins(documents), torch.tensor(first).bool())
    assert within_documents(documents).tolist() == [[0, 1, 0, 1, 2, 3], [0, 0, 1, 2, 0, 1], [0, 1, 2, 3, 4, 5]]
