"""The network `dit`: what it starts as, what it sees, and what moves it."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import UserError
from atat_zoo.diffusion.cache import Cache
from atat_zoo.diffusion.dropout import set_keys
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.experiment import from_table
from atat_zoo.modeling.backbones.dit import PRESETS, DiTBackbone
from atat_zoo.modeling.backbones.dit_module import Rotary, local_offset, rotate
from atat_zoo.modeling.objectives.causal_module import one_stream
from atat_zoo.registry import Context
from tests.examples import at_most

V, L, B = 11, 9, 4


def build(seed=0, random=True, context=None, **parameters):
    """A small network; with `random` all its weights are drawn, else it is as it starts."""
    torch.manual_seed(seed)
    spec = DiTBackbone(**{"layers": 2, "width": 32, "heads": 4} | parameters)
    model = spec.build(context or Context(vocabulary_size=V, length=L))
    if random:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "scale" not in name and "norm" not in name:
                    parameter.normal_(std=0.3)
    return model.eval()


@pytest.fixture
def tokens():
    return torch.randint(0, V + 1, (B, L), generator=torch.Generator().manual_seed(0))


def time():
    return torch.linspace(0.1, 1, B)


# How it starts


@pytest.mark.parametrize("conditioned", [False, True])
def test_untrained_logits_are_the_output_bias(tokens, conditioned):
    counts = np.array([0, 5, 100, 3, 2, 1, 7, 9, 0, 1, 50], dtype=np.int64)
    context = Context(vocabulary_size=V, length=L, counts=counts)
    prior = torch.from_numpy((counts + 1) / (counts + 1).sum()).log().float()
    for bias, expected in (("none", torch.zeros(V)), ("zero", torch.zeros(V)), ("unigram", prior)):
        model = build(random=False, context=context, output_bias=bias, time_conditioning=conditioned)
        logits = model.head(model(tokens, time()))
        torch.testing.assert_close(logits, expected.expand(B, L, V))
        assert (model.head.bias is None) == (bias == "none")
        # Every branch starts at zero.
        torch.testing.assert_close(
            model(tokens, time()), torch.nn.functional.layer_norm(model.embedding(tokens), (32,))
        )


# Its size


def parameters(spec, vocabulary_size=50257):
    with torch.device("meta"):
        model = spec.build(Context(vocabulary_size=vocabulary_size, length=1024))
    return sum(p.numel() for p in model.parameters())


@pytest.mark.slow
def test_presets_have_the_published_sizes(monkeypatch):
    monkeypatch.setattr("atat_zoo.modeling.backbones.dit.require", lambda *_: None)  # they are built without data
    V = 50257
    for preset, (layers, width, heads) in PRESETS.items():
        block = 12 * width**2 + 2 * width + 2 * (width // heads)
        expected = (V + 1) * width + layers * block + width + V * width
        assert parameters(DiTBackbone(preset=preset)) == expected == DiTBackbone(preset=preset).weights(V), preset
    assert DiTBackbone(tied=True).weights(V) == 123_553_536  # GPT-2's 124M
    # Of GPT-3's table, whose head is the embedding.
    assert DiTBackbone(preset="6.7b", tied=True).weights(V) == 6_648_582_144


@pytest.mark.parametrize(
    "settings",
    [
        {"tied": True, "output_bias": "zero"},
        {"time_conditioning": True, "local_heads": 1},
        {"mlp_ratio": 2.7, "ngram_prior": 2, "output_bias": "unigram"},
        {"time_conditioning": True, "mlp_ratio": 0.001},
    ],
)
def test_the_number_of_weights_has_a_formula(settings):
    spec = DiTBackbone(layers=3, width=20, heads=2, **settings)
    model = spec.build(Context(vocabulary_size=V, length=L))
    assert spec.weights(V) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("tied", "mlp_ratio", "preset", "vocabulary_size"),
    [(False, 4.0, "tiny", 10), (False, 0.5, "mini", 100_000), (True, 4.0, "mini", 100_000)],
)
def test_the_memory_for_its_weights_is_asked_for_before_they_are_made(tied, mlp_ratio, preset, vocabulary_size):
    spec = DiTBackbone(preset=preset, tied=tied, mlp_ratio=mlp_ratio)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atat_zoo.system.machine.free_memory", lambda: 3.96 * spec.weights(vocabulary_size))
        with pytest.raises(UserError, match=rf"mlp_ratio {mlp_ratio:g} needs about .* for its weights.*; reduce `lay"):
            spec.build(Context(vocabulary_size=vocabulary_size, length=L))
        patch.setattr("atat_zoo.system.machine.free_memory", lambda: 4 * spec.weights(vocabulary_size))
        patch.setattr("atat_zoo.modeling.backbones.dit_module.DiTModule", lambda *_, **__: "built")
        assert spec.build(Context(vocabulary_size=vocabulary_size, length=L)) == "built"


def test_the_flops_of_a_pass_by_hand():
    """Of 3 texts of 5 tokens through 2 layers of width 8, and 4 predictions among 11 tokens."""
    spec = DiTBackbone(layers=2, width=8, heads=2)
    of_token = 12 * 8**2 + 2 * 5 * 8  # of a layer: its matrices, and the scores and sums of attention
    head = 4 * 11 * 8
    assert spec.flops(11, 3, 5, 4) == spec.flops(11, 3, 5, 4, first=5) == 2 * (3 * 5 * 2 * of_token + head)
    asked_for = 3 * 3 * of_token + 3 * 2 * 3 * 8**2  # the last layer reads the other two of each text
    assert spec.flops(11, 3, 5, 4, first=3) == 2 * (3 * 5 * of_token + asked_for + head)


def test_gains_and_biases_are_vectors_and_weights_are_matrices():
    """The optimizer's decay goes by that."""
    model = build(time_conditioning=True, output_bias="zero")
    for name, parameter in model.named_parameters():
        gain = name.endswith(("bias", "scale")) or ("norm" in name and "modulation" not in name)
        assert parameter.ndim == (1 if gain else 2), name


# What it sees


@torch.no_grad()
def test_a_gated_layer_adds_its_two_branches():
    """With one token, attention returns its value."""
    layer, rotary = build(time_conditioning=True, layers=1).blocks[0], Rotary(8)
    h, c = torch.randn(2, B, 1, 32, generator=torch.Generator().manual_seed(0))
    c = c[:, 0]
    layer.gates.weight.zero_()
    layer.gates.bias.copy_(torch.cat([torch.full((32,), 2.0), torch.full((32,), 3.0)]))
    value = layer.qkv(layer.norm_attention(h, c))[..., 64:]
    attended = h + 2 * layer.out(value)
    expected = attended + 3 * layer.mlp(attended, c)
    torch.testing.assert_close(layer(h, c, rotary(torch.zeros(1), h.dtype), None, None, 0, None), expected)


@torch.no_grad()
def test_causal_attention_reads_no_later_token(tokens):
    model = build()
    other = tokens.clone()
    other[:, 5:] = (tokens[:, 5:] + 1) % V
    a, b = (model(each, attention="causal") for each in (tokens, other))
    assert torch.equal(a[:, :5], b[:, :5])
    assert not torch.equal(a[:, 5:], b[:, 5:])
    assert not torch.equal(a, model(tokens))


def test_only_relative_positions_matter(tokens):
    model = build()
    with torch.no_grad():
        usual = model(tokens)
        torch.testing.assert_close(model(tokens, positions=torch.arange(L) + 700), usual, atol=2e-4, rtol=0)
        torch.testing.assert_close(model(tokens, positions=torch.arange(L)), usual)
        # Positions do matter, and so does their direction.
        assert (model(tokens, positions=torch.arange(L) * 2) - usual).abs().max() > 0.01
        assert (model(tokens, positions=-torch.arange(L)) - usual).abs().max() > 0.01
        assert (model(tokens.flip(1)).flip(1) - usual).abs().max() > 0.01


def test_time_and_cache_are_refused_or_asked_for(tokens):
    with pytest.raises(ValueError, match="a time-conditioned backbone needs t"):
        build(time_conditioning=True)(tokens)
    for options in ({}, {"positions": torch.arange(tokens.shape[1]), "attention": "causal"}):
        with pytest.raises(ValueError, match="with a cache, pass positions, and attention as a mask or None"):
            build()(tokens, cache=Cache(), **options)
    model = build(max_length=L)
    assert torch.equal(model(tokens, time()), model(tokens))
    with pytest.raises(ValueError, match="10 tokens are more than this backbone's maximum, 9"):
        model(torch.zeros(1, L + 1, dtype=torch.int64))


def test_what_the_network_cannot_be_is_refused():
    for backbone, data, said in (
        (
            {"ngram_prior": 1},
            {"on_corrupt": "skip"},
            r'data\.on_corrupt: "skip" drops damaged shards, .*; set backbone\.ngram_prior = 0',
        ),
        (
            {"max_length": 48},
            {"length": 49},
            r"data\.length: 49 is longer than backbone\.max_length = 48; lower data",
        ),
        ({"width": 48, "heads": 5}, {}, r"backbone\.width: 48 must be a multiple of 2 × heads = 10"),
        ({"width": 48, "heads": 16}, {}, r"backbone\.width: 48 must be a multiple of 2 × heads = 32"),
        ({"preset": "nano", "local_heads": 5}, {}, r"backbone.local_heads: 5 is more than the 4 heads of a layer"),
    ):
        with pytest.raises(UserError, match=said):
            from_table({"name": "x", "backbone": backbone, "data": data})
    from_table({"name": "x", "backbone": {"max_length": 48, "width": 48, "heads": 6}, "data": {"length": 48}})


# What moves it


@pytest.mark.parametrize("conditioned", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_after_two_steps_every_parameter_has_a_gradient(tokens, conditioned, tied):
    model = build(random=False, time_conditioning=conditioned, tied=tied, output_bias="zero")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        logits = model.head(model(tokens, time()))
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.remainder(V).flatten()).backward()
        if step < 2:
            optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_the_tied_head_is_the_embedding(tokens):
    model = build(tied=True)
    names = [name for name, _ in model.named_parameters()]
    assert "head.weight" not in names
    assert "head.weight" not in model.state_dict()
    assert build(tied=True, random=False).embedding.weight.std() < 0.03  # as a head it is small
    hidden = model(tokens)
    torch.testing.assert_close(model.head(hidden), hidden @ model.embedding.weight[:V].T)
    with torch.no_grad():
        model.embedding.weight.mul_(2)
    torch.testing.assert_close(model.head(hidden), hidden @ model.embedding.weight[:V].T)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.embedding.weight.zero_()
    assert twin.head(hidden).abs().max() == 0
    assert model.head(hidden).abs().max() > 0
    # The head cannot say the mask, but the mask's row is read and trained.
    model.head(model(torch.full((1, L), V))).sum().backward()
    assert model.embedding.weight.grad[V].abs().max() > 0


def test_dropout_is_a_function_of_its_keys(tokens):
    model = build(dropout=0.5).train()

    def run(rows, seed=0):
        set_keys(model, sequence_keys(seed, "dropout", rows))
        return model(tokens[rows])

    every = torch.arange(B)
    first = run(every)
    assert torch.equal(run(every), first)
    torch.testing.assert_close(run(every[2:3]), first[2:3])
    assert not torch.allclose(run(every, seed=1), first, atol=0.01)
    assert not torch.allclose(model.eval()(tokens), first, atol=0.01)


@pytest.mark.parametrize(
    ("dropout", "conditioned", "precision"), [(0.3, True, torch.float32), (0.3, False, torch.bfloat16)]
)
def test_layers_computed_again_have_the_same_gradients(tokens, dropout, conditioned, precision):
    """To the bit, in two passes under the same keys, and less is kept for them."""

    def run(checkpointed):
        model = build(dropout=dropout, time_conditioning=conditioned, checkpoint_activations=checkpointed).train()
        set_keys(model, sequence_keys(0, "dropout", torch.arange(B)))
        kept = 0

        def keep(saved):
            nonlocal kept
            kept += saved.nbytes
            return saved

        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
                hidden = model(tokens, time()) + model(tokens.flip(0), time())
            loss = model.head(hidden).float().square().sum()
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters())], kept

    (plain, all_of_them), (again, inputs) = run(False), run(True)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert inputs < all_of_them / 4


# Heads that begin by looking at their neighbours


@pytest.mark.parametrize(("width", "head"), [(32, 0), (64, 1), (128, 2), (32, 3)])
def test_local_heads_look_at_one_neighbour_each(width, head):
    length = 256
    constant = local_offset(4, width, 4).view(1, 1, 2, 4, width).expand(1, length, -1, -1, -1)
    rotation = Rotary(width)(torch.arange(length), torch.float32)
    q, k = rotate(constant, rotation)[0].permute(1, 2, 0, 3)
    attention = (q[head] @ k[head].T / width**0.5).softmax(-1)
    distance = [-1, 1, -2, 2][head]
    for place in (10, 100, 200):
        assert int(attention[place].argmax()) == place + distance
        assert attention[place].max() > 0.9


SIZE = 3


def text(length):
    return torch.randint(0, V + 1, (3, length), generator=torch.Generator().manual_seed(1))


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
    tokens = text(sum(sizes))
    with torch.no_grad():
        whole = model(tokens, attention=one_stream(sum(sizes), SIZE, tokens.device))
    torch.testing.assert_close(in_pieces(model, tokens, sizes), whole, rtol=1e-12, atol=1e-12)


def test_rows_and_the_last_tokens():
    cache = Cache(grows=True)
    keys = torch.arange(24.0).view(3, 1, 4, 2)
    cache.join(0, keys, -keys)
    some = cache.select(torch.tensor([2, 0]))
    some.trim(3)
    assert len(some) == 3
    assert len(cache) == 4
    assert torch.equal(some.layers[0][0], keys[[2, 0], :, 1:])
    assert torch.equal(some.layers[0][1], -keys[[2, 0], :, 1:])
    some.trim(5)
    assert len(some) == 3
    some.trim(0)
    assert len(some) == 0
