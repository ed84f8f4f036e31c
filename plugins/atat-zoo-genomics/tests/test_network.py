"""The network on both strands, under masks and in pieces; the estimator's table, and masks of whole k-mers."""

import pytest
import torch
from atat_zoo_genomics.alphabet import COMPLEMENT
from atat_zoo_genomics.convolution_backbone import ConvolutionBackbone
from atat_zoo_genomics.genomic_networks import KmerModule
from atat_zoo_genomics.kmers import KmerEstimator, KmerMaskDrawing
from hypothesis import given, settings
from hypothesis import strategies as st

from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.registry import Context
from atat_zoo.system.errors import UserError
from atat_zoo.testing.backbone_checks import randomised

V = 7


def test_a_table_for_which_there_is_no_memory_is_refused():
    words = rf"^estimator\.reach = 8 needs about {4e-9 * 7**16:,.1f} GB just for its table, .*; lower reach$"
    with pytest.raises(UserError, match=words):
        KmerEstimator(reach=8).build(Context(vocabulary_size=6, length=8))


@torch.no_grad()
def test_every_neighbourhood_has_an_entry_of_its_own():
    module = KmerModule(vocabulary_size=4, reach=1)
    module.table.weight.copy_(torch.arange(25.0)[:, None] / 25)
    tokens = torch.tensor([[a, 4, b] for a in range(5) for b in range(5)])
    found = module(tokens, tokens[..., None].float(), None, tokens > 0)[:, 1]
    assert len(found.unique()) == 25


def network(**parameters):
    spec = ConvolutionBackbone(**{"layers": 3, "width": 12, **parameters})
    return randomised(spec.build(Context(vocabulary_size=V, length=32))).double().eval()


def other_strand(tokens):
    return torch.tensor([*COMPLEMENT, V])[tokens].flip(1)


@settings(max_examples=30, deadline=None)
@given(
    length=st.integers(1, 40),
    kernel=st.sampled_from([1, 3, 5, 9]),
    cycle=st.integers(1, 4),
    width=st.sampled_from([2, 6, 12]),
    seed=st.integers(0, 2**31),
)
def test_the_other_strand_s_distribution_is_that_of_this_one_on_the_other_strand(length, kernel, cycle, width, seed):
    module = network(reverse_complement=True, kernel=kernel, cycle=cycle, width=width)
    z = torch.randint(0, V + 1, (2, length), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        here, there = (module.head(module(tokens)).log_softmax(-1) for tokens in (z, other_strand(z)))
    torch.testing.assert_close(there, here.flip(1)[..., list(COMPLEMENT)], rtol=0, atol=1e-10)


def test_without_it_the_strands_differ():
    module, z = network(), torch.arange(V)[None]
    here, there = (module.head(module(tokens)) for tokens in (z, other_strand(z)))
    assert not torch.allclose(there, here.flip(1)[..., list(COMPLEMENT)], atol=0.1)


def test_both_strands_take_half_the_weights():
    weights = [
        sum(p.numel() for p in network(reverse_complement=both, width=64).parameters()) for both in (True, False)
    ]
    assert weights[0] / weights[1] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("both", [False, True])
def test_a_mask_of_all_tokens_is_none(both):
    module = network(reverse_complement=both)
    z = torch.randint(0, V + 1, (3, 20), generator=torch.Generator().manual_seed(0))
    everything = torch.ones(3, 1, 20, 20, dtype=torch.bool)
    torch.testing.assert_close(module(z, attention=everything), module(z), rtol=0, atol=1e-10)
    torch.testing.assert_close(module(z, positions=torch.arange(100, 120)), module(z), rtol=0, atol=1e-10)


def test_a_token_is_read_where_it_stands_and_not_where_it_comes():
    module = network()
    z = torch.randint(0, V + 1, (3, 20), generator=torch.Generator().manual_seed(0))
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(module(z[:, order], positions=order), module(z)[:, order], rtol=0, atol=1e-10)


def test_what_cannot_be_built_is_refused():
    with pytest.raises(ValueError, match="kernel = 4 is even"):
        ConvolutionBackbone(kernel=4)
    with pytest.raises(ValueError, match="width = 7 cannot be halved"):
        ConvolutionBackbone(width=7, reverse_complement=True)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.sampled_from([1, 3, 5]), st.integers(1, 4), st.booleans(), st.integers(0, 59))
def test_a_position_reads_as_far_as_the_backbone_says(layers, kernel, cycle, both, position):
    spec = ConvolutionBackbone(layers=layers, kernel=kernel, cycle=cycle)
    module = network(layers=layers, kernel=kernel, cycle=cycle, reverse_complement=both)
    z = torch.arange(60)[None] % (V + 1)
    before, z[0, position] = module(z), (z[0, position] + 1) % (V + 1)
    changed = (module(z) != before).any(-1)[0].nonzero().flatten().tolist()
    assert (changed[0], changed[-1]) == (max(0, position - spec.reach), min(59, position + spec.reach))


@pytest.mark.parametrize("layers", [4, 9, 15])
def test_dilations_that_double_read_a_whole_sequence(layers):
    assert ConvolutionBackbone(layers=layers, kernel=3, cycle=layers).reach == 2**layers - 1
    assert ConvolutionBackbone().reach == 36  # as README.md says


def test_flops_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    spec = ConvolutionBackbone(layers=2, width=16)
    module = spec.build(Context(vocabulary_size=V, length=32))
    with FlopCounterMode(display=False) as counter:
        module.head(module(torch.zeros(3, 32, dtype=torch.int64))[:, :5])
    assert counter.get_total_flops() == spec.flops(V, 3, 32, 15)


@given(st.integers(0, 2**31), st.integers(1, 2))
def test_importance_is_a_function_of_what_is_visible_around_a_place(seed, reach):
    draw = torch.Generator().manual_seed(seed)
    module = KmerModule(V, reach)
    module.table.weight.data = torch.randn(module.table.weight.shape, generator=draw)
    z = torch.randint(0, V + 1, (1, 12), generator=draw)
    maskable = torch.ones_like(z, dtype=torch.bool)
    before = module(z, z, None, maskable)
    position = int(torch.randint(0, 12, (), generator=draw))
    z[0, position] = (z[0, position] + 1) % (V + 1)
    changed = (module(z, z, None, maskable) != before)[0]
    # The table has different numbers, so it changes wherever the token is read, and not at the position itself.
    assert changed.tolist() == [0 < abs(i - position) <= reach for i in range(12)]


@given(st.integers(1, 9), st.floats(0, 1), st.integers(1, 40), st.integers(0, 2**31))
def test_whole_kmers_are_hidden_and_more_at_a_higher_rate(k, rate, length, seed):
    keys = sequence_keys(seed, "mask", torch.arange(5))
    p = torch.full((5, length), rate)
    mask = KmerMaskDrawing(k=k)(p, keys)
    assert bool((mask <= KmerMaskDrawing(k=k)((2 * p).clamp(max=1), keys)).all())
    for row in mask.tolist():
        # A run ends k tokens after the last: all ends have one rest modulo k.
        ends = {i % k for i in range(1, length) if row[i] != row[i - 1]}
        assert len(ends) <= 1
