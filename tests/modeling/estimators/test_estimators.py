"""Importance in [0, 1], from tokens and the backbone's detached embedding."""

import math

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.tokenizers.components import CharactersTokenizer
from atat_zoo.experiment import from_table, load
from atat_zoo.experiment.effects import require_estimator
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.modeling.backbones.ngram_prior_module import neighbours_of
from atat_zoo.modeling.estimators import (
    FrequencyEstimator,
    HybridEstimator,
    LossPredictionEstimator,
    TermBiasEstimator,
    TransformerEstimator,
    UniformEstimator,
)
from atat_zoo.modeling.estimators.estimator_networks import ConstantModule
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from atat_zoo.system.errors import UserError
from atat_zoo.testing import check_estimator
from tests.examples import at_most

V, L, B, D = 6, 8, 4, 12
COUNTS = np.array([0, 1, 3, 7, 15, 999], dtype=np.int64)
CONTEXT = Context(vocabulary_size=V, length=L, width=D, counts=COUNTS)


def small(**parameters):
    return TransformerEstimator(**{"layers": 1, "width": 8, "heads": 2} | parameters)


EVERY = {
    "uniform": UniformEstimator(),
    "frequency": FrequencyEstimator(),
    "transformer": small(),
    "own embedding": small(own_embedding=True),
    "timed": small(time_conditioning=True),
    "hybrid": HybridEstimator(learned=small()),
    "ngram scores": small(ngram_scores=True),
    "masks": small(reads="z"),
    "predicted loss": LossPredictionEstimator(width=8),
}


def build(spec, seed=0, random=True, context=CONTEXT):
    torch.manual_seed(seed)
    if spec.reads_ngram_scores:  # the last five values of a token are scores
        context = attrs.evolve(context, width=D - 5, width_read=D)
    module = spec.build(context)
    if random:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.normal_()
    return module


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, V, (B, L), generator=generator)
    maskable = torch.arange(L) < torch.tensor([[L], [5], [1], [0]])
    return tokens, torch.randn(B, L, D, generator=generator), torch.rand(B, generator=generator) * 0.9 + 0.1, maskable


@pytest.mark.parametrize("name", ["uniform", "transformer", "own embedding", "timed", "ngram scores", "predicted loss"])
def test_it_starts_at_a_half(name):
    tokens, embedded, t, maskable = batch()
    assert torch.equal(build(EVERY[name], random=False)(tokens, embedded, t, maskable), torch.full((B, L), 0.5))


@pytest.mark.parametrize("name", sorted(EVERY))
def test_padding_has_no_influence(name):
    module = build(EVERY[name])
    tokens, embedded, t, maskable = batch()
    other_tokens = torch.where(maskable, tokens, (tokens + 1) % V)
    other_embedded = torch.where(maskable[..., None], embedded, 7.0)
    with torch.no_grad():
        one, two = module(tokens, embedded, t, maskable), module(other_tokens, other_embedded, t, maskable)
        torch.testing.assert_close(one[maskable], two[maskable])
        assert one.isfinite().all()  # in the row without a token, too
        # A row alone, cut to its length, is the same too.
        alone = module(tokens[1:2, :5], embedded[1:2, :5], t[1:2], maskable[1:2, :5])
        torch.testing.assert_close(alone[0], one[1, :5], atol=1e-5, rtol=1e-4)


def test_time_is_read_when_asked_for_only():
    tokens, embedded, t, maskable = batch()
    for name, spec in EVERY.items():
        module = build(spec)
        assert module.reads_time is (name == "timed")
        with torch.no_grad():
            same = torch.equal(module(tokens, embedded, t, maskable), module(tokens, embedded, t / 2, maskable))
        assert same is (name != "timed")
    assert build(HybridEstimator(learned=small(time_conditioning=True))).reads_time
    with pytest.raises(ValueError, match="a time-conditioned estimator needs t"):
        build(EVERY["timed"])(tokens, embedded, None, maskable)
    assert build(EVERY["transformer"])(tokens, embedded, None, maskable).shape == (B, L)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", ["transformer", "own embedding", "timed", "ngram scores", "hybrid", "predicted loss"])
def test_every_parameter_is_trained(name, bf16):
    tokens, embedded, t, maskable = batch()
    module = build(EVERY[name], random=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(2):  # the last layer starts at zero, and lets nothing through before it has moved
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            importance = module(tokens, embedded, t, maskable)
        (importance - torch.rand(B, L))[maskable].square().sum().backward()
        optimizer.step()
    for parameter_name, parameter in module.named_parameters():
        assert parameter.grad.abs().max() > 0, parameter_name


# What they read


def test_an_estimator_says_whether_it_reads_masks():
    for name, spec in EVERY.items():
        assert build(spec).reads == spec.reads == ("z" if name in ("masks", "predicted loss") else "x")
    check_estimator(small(reads="z"))
    check_estimator(small(reads="z", own_embedding=True, time_conditioning=True))
    assert TermBiasEstimator(base=small(reads="z")).reads == "z"


def test_estimators_inside_another_read_the_same():
    table = {"name": "a", "estimator": {"use": "hybrid", "learned": {"use": "transformer", "reads": "z"}}}
    with pytest.raises(UserError, match=r"estimator\.prior: 'frequency' reads x but the learned estimator reads z"):
        from_table(table, where="here")
    table["estimator"]["prior"] = {"use": "transformer", "reads": "z"}
    assert from_table(table, where="here").parts["estimator"].reads == "z"
    table["estimator"]["learned"] = "loss_prediction"
    with pytest.raises(UserError, match=r"estimator\.prior: 'transformer' and 'loss_prediction' read different inputs"):
        from_table(table, where="here")
    table["estimator"]["prior"] = "loss_prediction"
    assert from_table(table, where="here").parts["estimator"].reads_hidden


@pytest.mark.parametrize("key", ["estimator", "estimator.learned", "estimator.base"])
def test_scores_of_the_ngram_prior_follow_the_embedding(key):
    around = {"estimator.learned": ["estimator.use=hybrid"]}
    around["estimator.base"] = ["estimator.use=term_bias", "estimator.words=['a']"]
    words = [*around.get(key, []), "backbone.ngram_prior=2", f"{key}={{use='transformer',ngram_scores=true}}"]
    experiment = load("cpu/mdlm", words)
    context = Context(vocabulary_size=27, length=64, tokenizer=CharactersTokenizer().train(lambda: iter(())))
    module, tokens = assemble(experiment, context), torch.randint(0, 27, (2, 64))
    assert module.estimator.reads_ngram_scores
    read = []
    module.estimator.register_forward_pre_hook(lambda _, given: read.append(given[1]))
    module.importance(tokens, torch.ones_like(tokens, dtype=torch.bool), None)
    near = neighbours_of(tokens, 2, 27).flatten(0, 1)
    scores = module.prior.token_scores(tokens.flatten(), near).view(2, 64, 5)
    assert torch.equal(read[0], torch.cat([module.backbone.embedding(tokens), scores], -1))
    weights = sum(p.numel() for p in module.estimator.parameters())
    assert experiment.parts["estimator"].weights(27, read[0].shape[-1], 64) == weights


def test_scores_of_the_ngram_prior_are_refused_where_they_cannot_be_read():
    for word, problem in (
        ("backbone.ngram_prior=0", r"the backbone has no n-gram prior; set backbone\.ngram_prior, or set estimator"),
        ("estimator.own_embedding=true", "true cannot be combined with own_embedding = true"),
        ("estimator.reads=z", 'true cannot be combined with reads = "z"; set estimator.ngram_scores = false'),
    ):
        with pytest.raises(UserError, match=rf"estimator\.ngram_scores: {problem}"):
            load("cpu/mdlm", ["estimator.use=transformer", "estimator.ngram_scores=true", word])
    mixed = ["estimator.use=hybrid", "estimator.prior=transformer", "estimator.learned.ngram_scores=true"]
    with pytest.raises(UserError, match=r"estimator\.prior: 'transformer' and 'transformer' read different inputs"):
        load("cpu/mdlm", mixed)


def test_a_sampler_that_would_run_the_network_twice_per_step_is_refused():
    with pytest.raises(UserError, match=r"'uncertainty_guided' uses importance, .* with the objective 'set_causal'"):
        load("quickstart", ["sampler.use=uncertainty_guided"])
    words = ["estimator.use=loss_prediction", "sampler.use=uncertainty_guided"]
    assert load("cpu/mdlm", words).parts["sampler"].uses_importance
    with pytest.raises(UserError, match=r"an extra forward pass in every step with a backbone that reads the time"):
        load("cpu/mdlm", [*words, "backbone.time_conditioning=true"])


def test_a_problem_of_an_estimator_inside_is_told_where_it_is():
    wide = {"use": "transformer", "width": 6, "heads": 4}
    table = {"name": "a", "estimator": {"use": "hybrid", "learned": wide}}
    with pytest.raises(UserError, match=r"estimator\.learned\.width: 6 .* change estimator\.learned\.heads"):
        from_table(table, where="here")
    longer = {"name": "a", "estimator": {"use": "transformer", "max_length": 32}, "data": {"length": 33}}
    with pytest.raises(UserError, match=r"data\.length: 33 is longer than estimator\.max_length = 32; lower data"):
        from_table(longer)
    inside = {"use": "term_bias", "base": {"use": "hybrid", "learned": {"use": "transformer"}, "prior": wide}}
    with pytest.raises(UserError, match=r"estimator\.base\.prior\.width: 6 .* change estimator\.base\.prior\.heads"):
        from_table(table | {"estimator": inside}, where="here")


# Golden numbers


def test_frequency_is_the_surprisal_over_its_largest_value():
    module = FrequencyEstimator().build(CONTEXT)
    total = 1025 + 6  # one is added to every count
    nats = [-math.log(c / total) for c in (1, 2, 4, 8, 16, 1000)]
    expected = torch.tensor([n / nats[0] for n in nats])
    tokens = torch.arange(6)[None]
    torch.testing.assert_close(module(tokens, torch.zeros(1, 6, D), None, tokens >= 0)[0], expected)
    assert expected[0] == 1
    one = FrequencyEstimator().build(Context(vocabulary_size=1, length=2, width=D, counts=np.array([3])))
    assert torch.equal(one(torch.zeros(1, 2, dtype=torch.int64), None, None, None), torch.zeros(1, 2))
    # The mask token is asked for in no use of the contract, and has a position in the table all the same.
    assert module(torch.tensor([[V]]), torch.zeros(1, 1, D), None, torch.ones(1, 1) > 0).item() == 0.5


def test_frequency_is_saved_with_the_model():
    saved = FrequencyEstimator().build(CONTEXT).state_dict()
    blank = FrequencyEstimator().build(Context(vocabulary_size=V, length=L, width=D))
    tokens = torch.arange(6)[None]
    assert torch.equal(blank(tokens, None, None, None), torch.full((1, 6), 0.5))
    blank.load_state_dict(saved)
    assert torch.equal(blank(tokens, None, None, None), FrequencyEstimator().build(CONTEXT)(tokens, None, None, None))


@at_most(10)
@given(mix=st.floats(0, 1))
def test_hybrid_is_the_mix(mix):
    tokens, embedded, t, maskable = batch()
    module = build(HybridEstimator(mix=mix, learned=small()))
    with torch.no_grad():
        expected = mix * module.a(tokens, embedded, t, maskable) + (1 - mix) * module.b(tokens, embedded, t, maskable)
        torch.testing.assert_close(module(tokens, embedded, t, maskable), expected)
        build(HybridEstimator(learned=small(time_conditioning=True)))(tokens, embedded, t, maskable)  # is told the time
    assert torch.equal(module.b.values, FrequencyEstimator().build(CONTEXT).values)


LETTERS = CharactersTokenizer().train(lambda: iter(()))
TEXT = torch.tensor([LETTERS.encode("a cab and cabs cab")])
THERE = torch.tensor([[c == "x" for c in "-xxxx---------xxxx"]])


@pytest.mark.parametrize(("strength", "there"), [(0.5, 0.75), (1.0, 1.0), (-0.5, 0.25), (-1.0, 0.0)])
def test_the_tokens_of_words_move_towards_one_or_zero(strength, there):
    about = Context(vocabulary_size=27, length=18, width=D, tokenizer=LETTERS)
    module = TermBiasEstimator(words=("cab",), strength=strength).build(about)
    assert torch.equal(module(TEXT, None, None, TEXT >= 0), torch.where(THERE, there, 0.5))


def test_words_that_cannot_be_found_are_refused():
    about = Context(vocabulary_size=27, length=4, width=D, tokenizer=LETTERS)
    TermBiasEstimator(words=("cab",)).build(about)
    for word, said in (("naïve", "'naïve' is unknown"), ("cable", "'cable' takes 5 tokens, but a sequence has 4")):
        with pytest.raises(UserError, match=rf"estimator\.words: {said}"):
            TermBiasEstimator(words=(word,)).build(about)
    with pytest.raises(RuntimeError, match="tokenizer"):
        TermBiasEstimator(words=("cab",)).build(CONTEXT)
    for nothing in (TermBiasEstimator(), TermBiasEstimator(words=("cab",), strength=0)):
        assert isinstance(nothing.build(CONTEXT), ConstantModule), "no words are looked up"


# Sizes


def parameters(spec, context):
    with torch.device("meta"):
        return sum(p.numel() for p in spec.build(context).parameters())


def test_the_transformer_adds_at_most_two_percent_to_the_small_backbone():
    context = Context(vocabulary_size=50257, length=1024, width=768)
    backbone = parameters(DiTBackbone(preset="small", tied=True), context)
    added = parameters(TransformerEstimator(), context)
    assert backbone == 123_553_536
    assert added == 768 * 256 + 1024 * 256 + 2 * (12 * 256**2 + 9 * 256) + 512 + 257
    assert added / backbone <= 0.02
    assert parameters(UniformEstimator(), context) == parameters(FrequencyEstimator(), context) == 0
    own = parameters(TransformerEstimator(own_embedding=True), context)
    assert own == added - 768 * 256 + 50258 * 256  # 13M more, as in ATAT's documents


@pytest.mark.parametrize(
    ("settings", "vocabulary_size", "length"),
    [({}, 8, 4000), ({"own_embedding": True}, 50_000, 8), ({"layers": 1, "width": 32}, 8, 8)],
)
def test_the_memory_for_the_weights_is_asked_for_before_they_are_made(settings, vocabulary_size, length, monkeypatch):
    spec, context = TransformerEstimator(**settings), Context(vocabulary_size=vocabulary_size, length=length, width=300)
    weights = parameters(spec, context)
    monkeypatch.setattr("atat_zoo.modeling.estimators.estimator_networks.TransformerModule", lambda *_, **__: "built")
    monkeypatch.setattr("atat_zoo.system.machine.free_memory", lambda: 4 * weights)
    assert spec.build(context) == "built"
    monkeypatch.setattr("atat_zoo.system.machine.free_memory", lambda: 3.9 * weights)
    with pytest.raises(
        UserError,
        match=rf"{spec.layers} layers and width {spec.width} needs .* for its weights.*; reduce `layers` or `width`",
    ):
        spec.build(context)


@pytest.mark.parametrize(
    ("estimator", "trained", "untrained"),
    [
        (UniformEstimator(), False, False),
        (HybridEstimator(learned=small()), True, True),
        (HybridEstimator(learned=small(), mix=1), True, False),
        (HybridEstimator(learned=small(), mix=0), True, True),
        # The prior is not trained.
        (HybridEstimator(learned=UniformEstimator(), prior=small()), False, False),
        (HybridEstimator(learned=FrequencyEstimator(), prior=UniformEstimator(), mix=0), False, False),
        (TermBiasEstimator(words=("a",)), True, True),
        (TermBiasEstimator(words=("a",), strength=0), False, False),
        (TermBiasEstimator(base=small()), True, False),
    ],
    ids=str,
)
def test_whether_tokens_are_told_apart(estimator, trained, untrained):
    assert [estimator.tells_apart(True), estimator.tells_apart(False)] == [trained, untrained]


def test_a_run_without_importance_is_refused_and_one_where_all_is_alike_unless_it_may_be():
    none = from_table({"name": "a", "objective": "autoregressive", "sampler": "left_to_right"})
    alike = from_table({"name": "a", "estimator": "uniform"})
    apart = from_table({"name": "a", "estimator": "frequency", "masking": "importance"})
    for constant in (False, True):
        require_estimator(apart, "runs/a", constant=constant)
        said = r"^runs/a was trained with the objective 'autoregressive', which uses no importance estimator; choose"
        with pytest.raises(UserError, match=said):
            require_estimator(none, "runs/a", constant=constant)
    with pytest.raises(
        UserError, match=r"^runs/a has the estimator 'uniform', which gives every token the same importance; choose a"
    ):
        require_estimator(alike, "runs/a")
    require_estimator(alike, "runs/a", constant=True)
