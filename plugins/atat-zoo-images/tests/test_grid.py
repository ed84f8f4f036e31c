"""The orders of pixels, and the backbone that knows rows and columns."""

from types import SimpleNamespace

import pytest
import torch
from atat_zoo_images.grid_backbone import GridDiTBackbone
from atat_zoo_images.grid_networks import NEIGHBOURS, GridRotary, local_offset
from atat_zoo_images.grid_orders import SpreadOrder, SpreadPositionSets, TilesPositionSets, grid_of, spread_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import untrained

from atat_zoo.experiment import conflicts_with
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.modeling.backbones.dit_module import rotate
from atat_zoo.registry import Context
from atat_zoo.testing import cases
from atat_zoo.testing.backbone_checks import randomised

CONTEXT = Context(vocabulary_size=5, length=17)


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-images"), ids=str)
def test_conformance(case):
    case.run()


def steps(sets, free):
    return sets.step_indices(free, torch.zeros(len(free), dtype=torch.int64), torch.zeros_like)


@settings(deadline=None)
@given(st.integers(0, 200))
def test_the_pixels_are_the_largest_square_at_the_end(length):
    first, side = grid_of(length)
    assert first + side**2 == length
    assert (side + 1) ** 2 > length


@settings(deadline=None)
@given(st.integers(1, 20))
def test_the_spread_order_visits_each_pixel_once(side):
    assert sorted(spread_ranks(side)) == list(range(side * side))


def test_the_spread_order_fills_the_picture_evenly():
    # Halton's points in bases 2 and 3: (1/2, 1/3), (1/4, 2/3), (3/4, 1/9), (1/8, 4/9), …
    assert [spread_ranks(8)[row * 8 + column] for row, column in ((2, 4), (5, 2), (0, 6), (3, 1))] == [0, 1, 2, 3]
    rank = torch.tensor(spread_ranks(8)).view(8, 8)
    for n in range(1, 65):
        quarters = (rank < n).view(2, 4, 2, 4).sum((1, 3))
        assert int(quarters.max() - quarters.min()) <= 3
    early = (rank < 5).nonzero()
    apart = (early[:, None] - early).abs().amax(-1) + 99 * torch.eye(5, dtype=torch.int64)
    assert int(apart.min()) == 2  # none touches another


@pytest.mark.parametrize("sets", [1, 3, 16, 64, 100])
def test_the_label_comes_first_and_sets_have_about_equal_sizes(sets):
    found = steps(SpreadPositionSets(sets=sets), torch.ones(1, 65, dtype=torch.bool))[0]
    assert found[0] == 0
    sizes = found[1:].bincount()[1:]
    assert len(sizes) == min(sets, 64)
    assert int(sizes.max() - sizes.min()) <= 1
    order = torch.tensor(spread_ranks(8)).argsort()
    assert (found[1:][order].diff() >= 0).all()


def test_tiles_by_hand():
    found = steps(TilesPositionSets(size=2), torch.ones(1, 10, dtype=torch.bool))[0]
    assert found.tolist() == [0, 1, 1, 2, 1, 1, 2, 3, 3, 4]
    free = torch.tensor([[False, True, False, True, False, False, True, False, False, True]])
    assert steps(TilesPositionSets(size=2), free)[0].tolist() == [-1, 0, -1, 1, -1, -1, 1, -1, -1, 2]


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(0, 3), st.integers(0, 2**20))
def test_a_gap_keeps_the_order_of_the_whole_picture(side, first, seed):
    L = side * side + min(first, 2 * side)
    free = torch.rand(3, L, generator=torch.Generator().manual_seed(seed)) < 0.4
    for sets in (SpreadPositionSets(sets=7), TilesPositionSets(size=2)):
        whole, gap = steps(sets, torch.ones_like(free)), steps(sets, free)
        for row in range(3):
            a, b = whole[row][free[row]], gap[row][free[row]]
            assert torch.equal(a[:, None] < a, b[:, None] < b)


def test_the_sampler_order_is_that_of_the_sets():
    open_ = torch.ones(2, 65, dtype=torch.bool)
    score = SpreadOrder()(SimpleNamespace(open=open_))
    assert torch.equal((-score[1]).argsort(), steps(SpreadPositionSets(sets=64), open_)[1].argsort())


def test_rotary_attention_depends_on_the_distances_in_rows_and_columns():
    rotary, q, k = GridRotary(16, first=1, side=8), *torch.randn(2, 16, generator=torch.Generator().manual_seed(0))

    def logit(i, j):
        a, b = (rotate(x.view(1, 1, 1, 1, -1), rotary(torch.tensor([p]), torch.float32)) for x, p in ((q, i), (k, j)))
        return float((a * b).sum())

    def pixel(row, column):
        return 1 + 8 * row + column

    wanted = logit(pixel(2, 3), pixel(1, 5))
    assert logit(pixel(6, 1), pixel(5, 3)) == pytest.approx(wanted, abs=1e-4)
    assert logit(pixel(2, 7), pixel(1, 5)) == pytest.approx(logit(pixel(2, 6), pixel(1, 4)), abs=1e-4)
    # The distance along the text is the same, but not that in the picture.
    assert pixel(2, 0) - pixel(1, 2) == pixel(2, 6) - pixel(2, 0)
    assert abs(logit(pixel(2, 3), pixel(1, 5)) - logit(pixel(2, 6), pixel(2, 0))) > 0.1
    assert pixel(2, 7) + 1 == pixel(3, 0)
    assert abs(logit(pixel(2, 6), pixel(2, 7)) - logit(pixel(2, 7), pixel(3, 0))) > 0.1


def test_local_heads_attend_to_the_neighbours_of_a_pixel():
    rotary, width = GridRotary(24, first=1, side=5), 24
    q, k = local_offset(6, width, 5).view(2, 6, width)
    rotation = rotary(torch.arange(26), torch.float32)
    for head, (row, column) in enumerate([*NEIGHBOURS, (0, -2)]):
        turned = [rotate(x[head].expand(1, 26, 1, 1, -1), rotation)[0, :, 0, 0] for x in (q, k)]
        logits = turned[0] @ turned[1].T
        centre = 1 + 5 * 2 + 2
        assert int(logits[centre].argmax()) == centre + 5 * row + column
    assert not q[5].any()
    assert not k[5].any()


def test_the_network_does_not_change_when_the_picture_moves_by_a_row():
    spec = GridDiTBackbone(layers=2, width=32, heads=2, local_heads=1, max_length=17)
    torch.manual_seed(0)
    module = randomised(spec.build(CONTEXT)).eval()
    tokens, positions = torch.randint(0, 6, (2, 16)), torch.arange(1, 17)
    with torch.no_grad():
        hidden, down, right = (module(tokens, positions=positions + by) for by in (0, 4, 1))
    torch.testing.assert_close(hidden, down, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(hidden, right, atol=1e-2)


def test_the_weights_are_those_of_dit():
    settings = {"layers": 1, "width": 16, "heads": 2, "local_heads": 1}
    ours, dit = (spec(**settings).build(CONTEXT).state_dict() for spec in (GridDiTBackbone, DiTBackbone))
    assert {name: each.shape for name, each in ours.items()} == {name: each.shape for name, each in dit.items()}
    assert GridDiTBackbone(**settings).weights(5) == sum(each.numel() for each in ours.values())
    assert not torch.equal(ours["blocks.0.offset"], dit["blocks.0.offset"])
    without = GridDiTBackbone(**settings | {"local_heads": 0}).build(CONTEXT)
    assert without.blocks[0].offset is None


def test_heads_must_divide_into_rows_and_columns():
    experiment = untrained().experiment
    said = conflicts_with(experiment, {"backbone": GridDiTBackbone(layers=1, width=20, heads=2)})
    assert "must be a multiple of 4 × heads = 8" in " ".join(map(str, said))
    assert not conflicts_with(experiment, {"backbone": GridDiTBackbone(layers=1, width=16, heads=2)})
    said = conflicts_with(experiment, {"backbone": GridDiTBackbone(layers=1, width=16, heads=2, max_length=64)})
    assert "data.length" in " ".join(map(str, said))
