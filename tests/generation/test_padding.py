"""Texts of different lengths in one batch: each is what it is alone."""

import random

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atat_zoo.generation.layout import SpaceAwareTokenizer
from atat_zoo.generation.samplers.order import BlockwiseOrder, Order
from atat_zoo.generation.samplers.published_samplers import AncestralSampler
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.registry import Zoo
from atat_zoo.testing.sampler_checks import assemble
from atat_zoo.testing.toys import Hashed, hashed_importance
from tests.generation.alphabet import Alphabet
from tests.generation.forms import CAUSAL, FORMS, V, model_of
from tests.generation.making import L

SETS = ("sets", "strided")
PADDED = ("mdlm", "counted", "sedd", CAUSAL, *SETS)
spec = Zoo.load().spec


@pytest.fixture(scope="module")
def exact():
    """In float64: sums of other shapes are rounded otherwise, and differ there by less than a draw can tell."""
    return {
        form: attrs.evolve(made, module=made.module.double()).text_generator("fp32")
        for form in PADDED
        for made in [model_of(form)]
    }


@pytest.mark.parametrize("form", FORMS)
def test_which_models_read_texts_of_several_lengths_at_once(form):
    denoiser = model_of(form).text_generator("fp32").denoiser
    assert denoiser.supports_padding == (form in PADDED)
    # Without the experiment, only a denoiser that never attends to masks knows.
    assert model_of(form).module.denoiser().supports_padding == (form in SETS)


@pytest.mark.parametrize("form", ["mdlm", "sets"])
@pytest.mark.parametrize("fact", ["both_ways_only", "shift"])
def test_a_backbone_that_reads_the_whole_sequence_has_no_padding(form, fact):
    model = model_of(form)
    backbone = type("Whole", (type(model.experiment.parts["backbone"]),), {fact: True})
    parts = model.experiment.parts | {"backbone": backbone(preset="nano")}
    whole = attrs.evolve(model, experiment=attrs.evolve(model.experiment, parts=parts))
    assert not whole.text_generator("fp32").denoiser.supports_padding


def test_a_model_of_blocks_has_no_padding_even_if_it_keeps_documents_apart():
    """Its last block would be longer."""
    model = model_of("block")
    apart = type("Apart", (type(model.experiment.parts["objective"]),), {"separates_documents": True})
    parts = model.experiment.parts | {"objective": apart(block_size=4)}
    model = attrs.evolve(model, experiment=attrs.evolve(model.experiment, parts=parts))
    assert not model.text_generator("fp32").denoiser.supports_padding


@pytest.mark.parametrize("form", [form for form in PADDED if form != CAUSAL])
@settings(deadline=None, max_examples=20)
@given(lengths=st.lists(st.integers(1, L), min_size=1, max_size=4), seed=st.integers(0, 99))
@torch.no_grad()
def test_a_prediction_does_not_read_padding(exact, form, lengths, seed):
    denoiser, draw = exact[form].denoiser, torch.Generator().manual_seed(seed)
    z = torch.full((len(lengths), max(lengths)), V + 1)
    for row, length in enumerate(lengths):
        z[row, :length] = torch.randint(0, V, (length,), generator=draw)
        z[row, torch.randint(0, length, (length // 2 + 1,), generator=draw)] = V
    padded = denoiser.with_padding()
    found, where = padded(z, None, z == V), (z == V).nonzero()[:, 0]
    visible = denoiser.scores_visible_tokens
    scores = padded.score_visible(z, None, z == V, z < V)[1] if visible else None
    for row, length in enumerate(lengths):
        text = z[row : row + 1, :length]
        assert torch.allclose(found[where == row], denoiser(text, None, text == V), atol=1e-9)
        if visible:
            own = denoiser.score_visible(text, None, text == V, text < V)[1]
            assert torch.allclose(scores[(z < V).nonzero()[:, 0] == row], own, atol=1e-9)
    assert not denoiser.padded


STRIDED = {"use": "strided", "stride": 4}
SAMPLERS = [
    ("counted", {"use": "ancestral", "steps": 5}),
    ("counted", {"use": "left_to_right"}),
    ("counted", {"use": "entropy"}),
    ("counted", {"use": "remdm_cap", "steps": 7}),
    ("counted", {"use": "semi_autoregressive", "block_size": 5, "block_sampler": {"use": "first_hitting"}}),
    ("sets", STRIDED),
    ("sets", STRIDED | {"offset": "random"}),
    ("sets", {"use": "left_to_right"}),
    ("sets", {"use": "ancestral", "steps": 5}),
    ("sets", {"use": "remdm_cap", "steps": 7}),
    ("sets", {"use": "semi_autoregressive", "block_size": 5, "block_sampler": "entropy"}),
    ("strided", STRIDED),
    (CAUSAL, {"use": "left_to_right"}),
    (CAUSAL, {"use": "semi_autoregressive"}),
]


@pytest.mark.parametrize(("form", "table"), SAMPLERS, ids=str)
@settings(deadline=None, max_examples=10)
@given(lengths=st.lists(st.integers(2, L), min_size=2, max_size=5), seed=st.integers(0, 99), share=st.floats(0, 1))
def test_a_text_and_its_nfe_are_those_alone(exact, form, table, lengths, seed, share):
    sampler, made = spec("sampler", table), exact[form]
    assert made.accepts_padding(sampler)
    known = random.Random(seed)
    rows = [
        [1, *(known.randrange(V) if known.random() < share else V for _ in range(length - 2)), 2] for length in lengths
    ]
    padded, tokens = made.padded(rows, [()] * len(rows), made.words)
    numbers, seeds = torch.arange(len(rows)), [seed, *range(len(rows) - 1)]
    together = padded.fill(sampler, tokens, rows=numbers, seed=seeds)
    for row, length in enumerate(lengths):
        alone = made.fill(sampler, torch.tensor(rows[row : row + 1]), rows=numbers[row : row + 1], seed=seeds[row])
        assert torch.equal(together.tokens[row, :length], alone.tokens[0])
        assert together.nfe[row] == alone.nfe[0]


WORDS = Alphabet([*"abcde", " a", " b", " cd"])
SPACED = TextGenerator(denoiser=Hashed(8, window=12), tokenizer=WORDS, length=12)


@given(
    texts=st.lists(st.tuples(st.integers(1, 12), st.sets(st.integers(0, 11), max_size=3)), min_size=1, max_size=5),
    which=st.data(),
)
def test_each_text_has_its_own_places_that_begin_with_a_space(texts, which):
    words = SpaceAwareTokenizer(WORDS)
    assert words.openers == [5, 6, 7]
    rows = [[8] * length for length, _ in texts]
    openings = [tuple(sorted(i for i in places if i < length)) for length, places in texts]
    made, z = SPACED.padded(rows, openings, words)
    some = which.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, unique=True).map(sorted))
    chosen = torch.tensor(some)
    found = made.denoiser.select(chosen)(z[chosen], None, z[chosen] == 8)
    alone = []
    for row in some:
        (text,) = torch.tensor([rows[row]]).split(1)
        alone.append(SPACED.opening(openings[row], words).denoiser(text, None, text == 8))
    assert torch.equal(found, torch.cat(alone))


def test_rows_of_one_length_have_no_padding():
    words = SpaceAwareTokenizer(WORDS)
    made, z = SPACED.padded([[8, 1], [2, 8]], [(), ()], words)
    assert made is SPACED
    assert z.tolist() == [[8, 1], [2, 8]]
    made, z = SPACED.padded([[8, 1], [8]], [(), ()], words)
    assert z.tolist() == [[8, 1], [8, 9]]
    assert made.denoiser is SPACED.denoiser.with_padding()


def test_a_sampler_or_importance_that_reads_padding_is_refused():
    weighed = TextGenerator(denoiser=Hashed(8, importance=hashed_importance), tokenizer=WORDS, length=12)
    bare = TextGenerator(denoiser=Hashed(8, supports_padding=False), tokenizer=WORDS, length=12)
    ancestral, guided = AncestralSampler(steps=5), spec("sampler", "uncertainty_guided")
    blocks = {"use": "semi_autoregressive", "block_sampler": {"use": "ancestral", "steps": 2}}
    assert [made.accepts_padding(ancestral) for made in (SPACED, weighed, bare)] == [True, True, False]
    assert [made.accepts_padding(guided) for made in (SPACED, weighed)] == [True, False]
    assert SPACED.accepts_padding(spec("sampler", blocks))
    assert not SPACED.accepts_padding(spec("sampler", blocks | {"steps": 9}))
    assert not SPACED.accepts_padding(spec("sampler", "speculative"))


def test_a_sampler_reads_padding_if_one_of_its_parts_does():
    class FromTheEnd(Order):
        """One of a package, which says nothing of padding."""

    assert not assemble(order=FromTheEnd()).accepts_padding
    assert not assemble(order=BlockwiseOrder(inner=FromTheEnd())).accepts_padding
    for kind in ("order", "tokens_per_step", "remasking", "stopping_rule", "token_sampling"):
        for name in Zoo.load().names(kind):
            # `optimal` reads the masked fraction of the sequence, which padding lowers.
            assert spec(kind, name).accepts_padding == (name != "optimal"), name
