"""Keys and values of finished blocks: with them the logits are those of the whole text, read anew."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.modeling.backbones.cache import Cache
from atat_zoo.modeling.objectives.causal_module import one_stream
from tests.examples import at_most
from tests.modeling.backbones.test_dit import V, build

L, SIZE = 12, 3


def text(rows=3, length=L):
    return torch.randint(0, V + 1, (rows, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def in_pieces(model, tokens, sizes):
    """Hidden states when the pieces are read one after the other, each kept."""
    cache, found, start = Cache(grows=True), [], 0
    for size in sizes:
        positions = torch.arange(start, start + size)
        seen = one_stream(start + size, SIZE, tokens.device)[start:]
        found.append(model(tokens[:, start : start + size], positions=positions, attention=seen, cache=cache))
        start += size
    assert len(cache) == start
    return torch.cat(found, dim=1)


@at_most(15)
@given(st.lists(st.integers(1, 3).map(lambda blocks: blocks * SIZE), min_size=1, max_size=4), st.booleans())
def test_reading_in_pieces_is_reading_at_once(sizes, local):
    model = build(layers=3, local_heads=2 if local else 0, max_length=64).double()
    tokens = text(length=sum(sizes))
    with torch.no_grad():
        whole = model(tokens, attention=one_stream(sum(sizes), SIZE, tokens.device))
    torch.testing.assert_close(in_pieces(model, tokens, sizes), whole, rtol=1e-12, atol=1e-12)


def test_rows_and_the_last_tokens():
    cache = Cache(grows=True)
    keys = torch.arange(24.0).view(3, 1, 4, 2)
    cache.join(0, keys, -keys)
    some = cache.of(torch.tensor([2, 0]))
    some.trim(3)
    assert len(some) == 3
    assert len(cache) == 4
    assert torch.equal(some.layers[0][0], keys[[2, 0], :, 1:])
    assert torch.equal(some.layers[0][1], -keys[[2, 0], :, 1:])
    some.trim(5)
    assert len(some) == 3
    some.trim(0)
    assert len(some) == 0
