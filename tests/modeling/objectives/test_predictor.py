"""A trained module as a denoiser: what it says of a text, at once and block by block."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from small_objectives import BACKBONE, CONTEXT, L, V, build, sets_of

from atat_zoo import UserError
from atat_zoo.testing.sampler_checks import noisy
from tests.examples import at_most
from tests.modeling.objectives.blockwise import SIZE, module

TIMED = {"use": "transformer", "layers": 1, "width": 8, "heads": 2, "time_conditioning": True}
Z = torch.tensor([[1, V, 3, V, 0, 2], [V, V, V, 4, 5, V]])
MASKED = Z == V


def denoiser_of(objective, **parts):
    module = build(objective, **parts).eval()
    return module, module.denoiser()


@pytest.mark.parametrize("timed", [False, True])
def test_it_is_as_its_module_is(timed):
    module, found = denoiser_of("mdlm", backbone=BACKBONE | {"time_conditioning": timed})
    assert (found.mask_id, found.window, found.reads_time) == (V, CONTEXT.length, timed)
    assert (found.estimates_importance, found.importance_reads) == (True, "x")
    rate = torch.tensor([0.1, 0.7])
    assert torch.equal(found.time_at(rate), module.noise.time_at(rate))
    _, reads_z = denoiser_of("mdlm", masking="uniform", estimator=TIMED | {"time_conditioning": False, "reads": "z"})
    assert reads_z.importance_reads == "z"
    _, without = denoiser_of("mlm")
    assert not without.estimates_importance
    assert without.importance(Z, MASKED) is None


@torch.no_grad()
def test_all_it_says_of_a_text_is_of_one_pass():
    module, found = denoiser_of("mdlm", backbone=BACKBONE | {"time_conditioning": True})
    t, visible = torch.tensor([0.4, 0.9]), (torch.tensor([0, 1, 0]), torch.tensor([2, 4, 5]))
    every = module.backbone.head(module.backbone(Z, t)).log_softmax(-1)
    torch.testing.assert_close(found(Z, t, MASKED), every[MASKED])
    log_probs, own = found.score_visible(Z, t, MASKED, visible)
    torch.testing.assert_close(log_probs, every[MASKED])
    torch.testing.assert_close(own, torch.stack([every[0, 2, 3], every[1, 4, 5], every[0, 5, 2]]))
    # Without a time it is that of the share of masked tokens.
    share = module.noise.time_at(torch.tensor([2 / 6, 4 / 6]))
    torch.testing.assert_close(found(Z, None, MASKED), found(Z, share, MASKED))


@torch.no_grad()
def test_the_price_of_masked_tokens_is_what_it_says_of_them():
    module, found = denoiser_of("mdlm", backbone=BACKBONE | {"time_conditioning": True})
    x, t = torch.where(MASKED, 6 - torch.arange(L), Z), torch.tensor([0.4, 0.9])
    wanted = -found(Z, t, MASKED).gather(1, x[MASKED][:, None])[:, 0]
    torch.testing.assert_close(module.cross_entropy(Z, t, MASKED, x), wanted)


def test_a_block_has_as_many_tokens_as_its_objective_says():
    sizes = {"autoregressive": 1, "mlm": None}
    assert {name: denoiser_of(name)[1].block_size for name in sizes} == sizes
    assert [denoiser_of({"use": "block", "block_size": size})[1].block_size for size in (1, 2, 3)] == [1, 2, 3]


@torch.no_grad()
def test_importance_is_of_all_tokens_at_the_time_of_so_many_masks():
    module, found = denoiser_of("mdlm", estimator=TIMED)
    text, share = Z.clamp(max=V - 1), module.noise.time_at(torch.tensor([2 / 6, 4 / 6]))
    of_text = found.importance(text, MASKED)
    torch.testing.assert_close(of_text, module.importance(text, torch.ones_like(MASKED), share))
    assert not torch.equal(of_text, found.importance(text, ~MASKED))
    assert of_text.shape == (2, L)


def test_logits_that_are_no_numbers_are_refused():
    module, found = denoiser_of("mdlm")
    with torch.no_grad():
        module.backbone.embedding.weight[4] = torch.nan  # of a token of the second row
        found(Z[:1], None, MASKED[:1])
        with pytest.raises(UserError, match="logits are not finite"):
            found(Z, None, MASKED)


def banded(built, z, window, size):
    """Log-probabilities [B, L, V] of the whole text read at once, each position seeing its block and a window."""
    inputs = torch.cat([torch.full_like(z[:, :1], V), z[:, :-1]], 1) if size == 1 else z
    place = torch.arange(z.shape[1])
    end = (place[:, None] // size + 1) * size
    hidden = built.backbone(inputs, positions=place, attention=(place < end) & (place >= end - window))
    return built.backbone.head(hidden).log_softmax(-1)


@pytest.mark.parametrize("takes_cache", [True, False])
@pytest.mark.parametrize("use", ["block", "autoregressive"])
@at_most(12)
@given(data=st.data())
def test_logits_with_the_cache_are_those_without(use, takes_cache, data):
    """Whatever is read in how many pieces, with a window as long as the text or shorter, for some rows or all."""
    built, size = module(use), SIZE if use == "block" else 1
    built.backbone.takes_cache = takes_cache
    blocks = data.draw(st.integers(1, 6))
    window = size * data.draw(st.integers(1, blocks + 1)) if use == "block" else data.draw(st.integers(1, 6))
    rows, length = 3, blocks * size
    z = noisy(rows, length, V, data.draw(st.integers(0, 99))).clamp(max=V - 1)
    last = length - size
    z[:, last:] = V
    if size > 1:
        z[1, last] = 2
    cuts = sorted(data.draw(st.sets(st.integers(0, blocks - 1))) | {0, blocks - 1})
    some = torch.tensor(data.draw(st.sampled_from([[0, 1, 2], [0, 2], [1]])))
    with torch.no_grad():
        reading = built.denoiser().begin(rows, window)
        for a, b in itertools.pairwise(cuts):
            reading.read(z[:, a * size : b * size])
        where = (z[some, last:] == V).nonzero().unbind(1)
        found = reading.select(some)(z[some, last:], None, where)
        if window >= length:
            whole = torch.zeros(len(some), length, dtype=torch.bool)
            whole[:, last:] = z[some, last:] == V
            anew = built.denoiser()(z[some], None, whole)
            torch.testing.assert_close(found, anew, rtol=1e-11, atol=1e-11)
        at_once = banded(built, z, window, size)[some][:, last:][where]
        torch.testing.assert_close(found, at_once, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("counts", [False, True])
@at_most(15)
@given(st.data(), st.integers(0, 99), st.integers(0, 2))
def test_next_tokens_with_cached_keys_are_those_of_one_pass(counts, data, seed, padding):
    """Rows begin with prompts of any lengths, take part in any steps, and may end with given tokens and padding."""
    built, length = sets_of(8, counts=counts, use="autoregressive"), 8
    x = torch.randint(0, V, (3, length), generator=torch.Generator().manual_seed(seed))
    z = x.clone()
    for row in z:
        begin = data.draw(st.integers(0, length - 1))
        row[begin : data.draw(st.integers(begin + 1, length))] = V
    z = F.pad(z, (0, padding), value=V + 1)
    with torch.no_grad():
        whole = built.denoiser().with_padding()
        growing = whole.begin_generation(z)
        while (z == V).any():
            rows = data.draw(st.sets(st.sampled_from((z == V).any(1).nonzero()[:, 0].tolist()), min_size=1))
            rows = torch.tensor(sorted(rows))
            where = torch.arange(len(rows)), (z[rows] == V).int().argmax(1)
            found = growing.select(rows).select(torch.arange(len(rows)))(z[rows], None, where)
            torch.testing.assert_close(found, whole(z[rows], None, where), rtol=1e-9, atol=1e-9)
            z[rows, where[1]] = x[rows, where[1]]


def test_each_token_is_read_once_unless_another_position_is_asked_for(monkeypatch):
    built, z, read = module("autoregressive"), torch.tensor([[1, 2, V, V, 5], [3, V, V, V, V]]), []
    forward = built.read
    monkeypatch.setattr(built, "read", lambda tokens, **more: read.append(tokens.tolist()) or forward(tokens, **more))
    with torch.no_grad():
        growing, rows = built.denoiser().begin_generation(z), torch.arange(2)
        growing(z, None, (rows, torch.tensor([2, 1])))
        z[:, 2], z[1, 1] = 4, 6
        growing(z, None, (rows, torch.tensor([3, 3])))
        assert [[len(row) for row in call] for call in read] == [[3, 3], [2, 2]]
        assert (read[0][0], read[0][1][:2], read[1][1]) == ([V, 1, 2], [V, 3], [6, 4])
        other = growing(z, None, (torch.tensor([0, 1]), torch.tensor([3, 2])))
        assert len(read[2][0]) == z.shape[1]
        torch.testing.assert_close(other, built.denoiser()(z, None, (torch.tensor([0, 1]), torch.tensor([3, 2]))))
        built.backbone.takes_cache = False
        assert type(built.denoiser().begin_generation(z)) is type(built.denoiser())
