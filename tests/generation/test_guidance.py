"""Guidance: words raised, lowered and banned, towards a class, with a condition against none; also block by block."""

import math

import attrs
import pytest
import torch

from atat_zoo import Zoo
from atat_zoo.data.tokenizers.components import BytesTokenizer, CharactersTokenizer
from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.diffusion.terms import Terms
from atat_zoo.experiment import load
from atat_zoo.generation.classifiers import BagOfTokens, Differentiable, FunctionClassifier, NaiveBayesClassifier
from atat_zoo.generation.guidance import (
    ClassifierFreeGuidance,
    ClassifierGuidance,
    CombinedGuidance,
    ImportanceBiasGuidance,
    NoGuidance,
    TokenBiasGuidance,
)
from atat_zoo.generation.guided_denoiser import GuidedDenoiser, by_candidates, by_gradient
from atat_zoo.generation.samplers.published_samplers import AncestralSampler, CombinationSampler
from atat_zoo.generation.samplers.semi_autoregressive import SemiAutoregressiveSampler
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.system.errors import UserError
from atat_zoo.testing import check_classifier, check_guidance
from atat_zoo.testing.guidance_checks import toy_text_generator
from atat_zoo.testing.toys import FunctionDenoiser, Hashed, Joint, toy
from tests.generation.alphabet import Alphabet
from tests.generation.samplers.exactness import random_model

GENERATOR = toy_text_generator()
MASK = GENERATOR.tokenizer.vocabulary_size


def all_masks(rows=2, length=8):
    z = torch.full((rows, length), MASK)
    return z, z == MASK


CASES = (
    TokenBiasGuidance(words=("cab", "of it"), strength=-3.0),
    TokenBiasGuidance(words=("e",), tokens=(3, 4), strength=50.0, ban=("a", "cab", "i")),
    ImportanceBiasGuidance(words=("cab",), strength=0.5),
    ImportanceBiasGuidance(words=("cab",), strength=-1.0),
    CombinedGuidance(first=TokenBiasGuidance(words=("a",)), second=TokenBiasGuidance(words=(), ban=("b",))),
)


def test_a_token_is_raised_by_exactly_its_strength():
    """Golden: p becomes p · exp(s), normalised."""
    z, where = all_masks()
    plain = GENERATOR.denoiser(z, None, where).double().exp()
    plain[:, 5] *= 2.718281828459045**1.5
    guided = TokenBiasGuidance(words=(), tokens=(5,), strength=1.5).guide(GENERATOR).denoiser(z, None, where)
    assert torch.allclose(guided.double().exp(), plain / plain.sum(-1, keepdim=True), atol=1e-6)


def test_nothing_is_the_same_writer():
    for guidance in (TokenBiasGuidance(words=("a",), strength=0.0), CombinedGuidance(), NoGuidance()):
        assert guidance.guide(GENERATOR) is GENERATOR
    assert TokenBiasGuidance(words=("a",), strength=0.0, ban=("b",)).guide(GENERATOR) is not GENERATOR


@pytest.mark.parametrize("steps", [1, 16])
def test_banned_words_never_come(steps):
    # Few letters are likely, so that the words would come by themselves.
    likely = TokenBiasGuidance(words=(), tokens=tuple(GENERATOR.tokenizer.encode(" ab")), strength=6.0)
    banned = ("ab", "a", "ba b")
    z, _ = all_masks(200, 16)
    terms = Terms(GENERATOR.tokenizer, banned)
    free = likely.guide(GENERATOR).fill(AncestralSampler(steps=steps), z).tokens
    assert terms.occurrences(free).any(1).float().mean() > 0.5
    kept = attrs.evolve(likely, ban=banned).guide(GENERATOR).fill(AncestralSampler(steps=steps), z).tokens
    assert not terms.occurrences(kept).any()


def test_a_ban_gives_way_where_nothing_else_is_possible():
    z = torch.tensor([[*GENERATOR.tokenizer.encode("a ca"), MASK]])
    only = torch.full((1, MASK), -torch.inf)
    only[0, GENERATOR.tokenizer.encode("b")[0]] = 0.0
    text_generator = attrs.evolve(GENERATOR, denoiser=FunctionDenoiser(lambda tokens, t, where: only, MASK))
    guided = TokenBiasGuidance(words=(), ban=("cab",)).guide(text_generator)
    assert torch.equal(guided.denoiser(z, None, z == MASK), only)


@pytest.mark.parametrize(
    ("guidance", "says"),
    [
        (TokenBiasGuidance(words=()), "token_bias needs words, tokens or bans"),
        (ImportanceBiasGuidance(words=()), "importance_bias has no words"),
        (ImportanceBiasGuidance(words=("naïve",)), "guidance.words: 'naïve' is unknown"),
        (TokenBiasGuidance(words=("cab", "naïve")), "guidance.words: 'naïve' is unknown"),
        (TokenBiasGuidance(words=(), ban=("naïve",)), "guidance.ban: 'naïve' is unknown"),
        (TokenBiasGuidance(words=(), tokens=(27,)), r"^guidance\.tokens: the vocabulary has no token 27"),
        (TokenBiasGuidance(words=("abcdefghijklmnopqrstuvw",)), "takes 23 tokens, but a sequence has 16"),
    ],
)
def test_mistakes_are_said_in_a_sentence(guidance, says):
    with pytest.raises(UserError, match=says):
        guidance.guide(GENERATOR)


def test_a_denoiser_keeps_what_else_it_can_do():
    guided = TokenBiasGuidance(words=("a",)).guide(GENERATOR).denoiser
    z, where = all_masks()
    log_probs, weights = guided.predict_with_order(z, None, where)
    assert torch.equal(log_probs, guided(z, None, where))
    assert torch.equal(weights, GENERATOR.denoiser.predict_with_order(z, None, where)[1])


def test_what_words_do_not_change_is_the_models_own():
    guided, (z, where) = TokenBiasGuidance(words=("a",)).guide(GENERATOR).denoiser, all_masks()
    visible = (torch.tensor([1, 0]), torch.tensor([2, 5]))
    z[visible], where = torch.tensor([3, 4]), torch.arange(8) < 2
    log_probs, own = guided.score_visible(z, None, where.expand(2, -1), visible)
    assert torch.equal(log_probs, guided(z, None, where.expand(2, -1)))
    assert torch.equal(own, GENERATOR.denoiser.score_visible(z, None, where.expand(2, -1), visible)[1])
    assert torch.equal(guided.importance(TEXT, NONE), GENERATOR.denoiser.importance(TEXT, NONE))


FACTS = {"reads_time": True, "window": 9, "block_size": 3, "frame": ([1], [2]), "importance_reads": "z"}
FACTS |= {"gives_order_weights": True, "scores_visible_tokens": False, "estimates_importance": True}


@pytest.mark.parametrize("facts", [FACTS, {name: not value for name, value in FACTS.items()}], ids=["some", "others"])
def test_what_a_denoiser_is_stays_so(facts):
    own = Hashed(MASK)
    for name, value in facts.items():
        setattr(own, name, value)
    own.time_at = lambda rate: rate + 2
    guided = GuidedDenoiser(own)
    assert {name: getattr(guided, name) for name in facts} == facts
    assert guided.mask_id == MASK
    assert float(guided.time_at(torch.tensor(0.5))) == 2.5
    weighed = GuidedDenoiser(own, importance=lambda tokens, masked: tokens + masked)
    assert (weighed.estimates_importance, weighed.importance_reads) == (True, "x")
    assert torch.equal(weighed.importance(TEXT, THERE), TEXT + THERE)


TEXT = torch.tensor([GENERATOR.tokenizer.encode("a cab and no cab")])
THERE = torch.tensor([[c == "x" for c in "-xxxx-------xxxx"]])
NONE = torch.zeros_like(THERE)


@pytest.mark.parametrize(("weighed", "strength"), [(True, 0.25), (False, -0.5)])
def test_importance_moves_at_the_words_alone(weighed, strength):
    text_generator = toy_text_generator(weighed=weighed)
    # Without an estimator it starts from a half.
    before = text_generator.denoiser.importance(TEXT, NONE) if weighed else torch.full(TEXT.shape, 0.5)
    after = (
        ImportanceBiasGuidance(words=("cab",), strength=strength).guide(text_generator).denoiser.importance(TEXT, NONE)
    )
    moved = before + strength * (1 - before if strength > 0 else before)
    torch.testing.assert_close(after, torch.where(THERE, moved, before))


def test_an_estimator_that_reads_masks_gets_them_while_the_words_are_those_of_the_draft():
    mask_id, hidden = GENERATOR.denoiser.mask_id, torch.tensor([[i in (2, 14) for i in range(16)]])

    def share_of_masks(tokens, masked):
        assert torch.equal(tokens == mask_id, masked)
        return (tokens == mask_id).float()

    denoiser = Hashed(mask_id, importance=share_of_masks, importance_reads="z")
    guided = ImportanceBiasGuidance(words=("cab",), strength=0.25).guide(attrs.evolve(GENERATOR, denoiser=denoiser))
    found = guided.denoiser.importance(TEXT, hidden)
    assert torch.equal(found, torch.where(hidden, 1.0, torch.where(THERE, 0.25, 0.0)))


@pytest.mark.parametrize("sampler", ["ancestral", "strided", "semi_autoregressive", "left_to_right"])
def test_a_sampler_that_does_not_look_is_told(sampler):
    overrides = ["guidance.use=importance_bias", 'guidance.words=["war"]']
    with pytest.raises(UserError, match=f"{sampler!r} does not"):
        load("atat", [*overrides, f"sampler.use={sampler}"])
    load("atat", [*overrides, "sampler.use=uncertainty_guided"])
    load("atat", [*overrides, "sampler={use='semi_autoregressive', block_sampler='uncertainty_guided'}"])


def test_inside_of_combined_it_says_where_it_stands():
    experiment = load("quickstart", ["sampler.use=ancestral"])
    inner = ImportanceBiasGuidance(words=("war",))
    (problem,) = CombinedGuidance(first=inner).check(experiment)
    assert problem.key == "guidance.first"
    (problem,) = CombinedGuidance(second=CombinedGuidance(first=inner)).check(experiment)
    assert problem.key == "guidance.second.first"


METHODS = ("exact", "first_order")
WEIGHTS = torch.linspace(-2, 2, 27)


class Given:
    """A classifier that is there already."""

    def __init__(self, model):
        self.build = lambda tokenizer, length: model


def bag(bias=0.3):
    return Given(BagOfTokens(WEIGHTS, bias))


def posterior(joint, likelihood, z):
    """p(x_i = v | z, class) from the joint alone, where p(class | z) is exact: Σ over texts, float64 [L, V]."""
    fits = ((z == joint.states) | (z == joint.mask_id)).all(1)
    weight = joint.p * fits * likelihood
    one_hot = torch.nn.functional.one_hot(joint.states, joint.vocabulary_size).double()
    return (weight[:, None, None] * one_hot).sum(0) / weight.sum()


def exact_classifier(joint, likelihood):
    """log p(class | z) of texts with masks, by enumeration."""

    def classify(tokens):
        fits = ((tokens[:, None] == joint.states) | (tokens[:, None] == joint.mask_id)).all(-1)
        weight = fits * joint.p
        return ((weight * likelihood).sum(1) / weight.sum(1)).log()

    return classify


def test_with_an_exact_classifier_it_is_the_posterior():
    joint = toy()
    likelihood = torch.tensor([0.9, 0.1, 0.3, 0.8, 0.5, 0.2, 0.05, 0.6], dtype=torch.float64)
    text_generator = TextGenerator(denoiser=joint.denoiser, tokenizer=Alphabet("ab"), length=3)
    guided = ClassifierGuidance(classifier=Given(exact_classifier(joint, likelihood))).guide(text_generator)
    for tokens in ([2, 2, 2], [0, 2, 2], [2, 1, 2], [2, 1, 0]):
        z = torch.tensor([tokens])
        where = z == 2
        found = guided.denoiser(z, None, where).exp()
        assert torch.allclose(found, posterior(joint, likelihood, z)[where[0]], atol=1e-9)


MASKS = torch.full((2, 5), 27)


def towards(classifier, **options):
    """Return the log-probabilities at five masks in two rows, float32 [10, V]."""
    guidance = ClassifierGuidance(classifier=classifier, **options)
    return guidance.guide(toy_text_generator()).denoiser(MASKS, None, MASKS == 27)


def test_tokens_that_are_no_candidates_say_nothing_of_the_class():
    plain = towards(bag(), strength=0.0)[0]
    ratio, best = towards(bag(), candidates=3)[0] - plain, plain.topk(3).indices
    outside = plain.isfinite().index_fill(0, best, False)
    assert ratio[outside].max() - ratio[outside].min() < 1e-5
    assert (ratio[best] - ratio[outside][0]).abs().max() > 1e-2


@pytest.mark.parametrize("inference", [False, True])
def test_first_order_is_exact_where_the_log_probability_is_linear(inference):
    """Far below ½, log σ(x) is x, and both methods agree."""
    with torch.inference_mode(inference):
        exact, linear = (towards(bag(-40.0), candidates=27, method=method) for method in ("exact", "first_order"))
    assert torch.allclose(exact.exp(), linear.exp(), atol=1e-5)


class Linear:
    """A classifier whose log f is a sum over the text, so that its first order is all of it."""

    def __init__(self):
        self.table = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
        self.at = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 1.0], [-1.0, 0.5, 3.0]])

    def embedded(self, x):
        return (x * self.at).sum((1, 2)) - 99

    def __call__(self, tokens):
        return self.embedded(self.table[tokens])


def test_a_gradient_says_what_each_token_changes_against_the_mask():
    model, z, where = Linear(), torch.tensor([[7, 2, 7], [1, 7, 7]]), (torch.tensor([1, 0, 1]), torch.tensor([2, 0, 1]))
    found = by_gradient(model, z, where)
    torch.testing.assert_close(found, by_candidates(model, z, where, torch.arange(7).expand(3, -1)), atol=1e-4, rtol=0)
    changed = model.table[:7] - model.table[7]
    torch.testing.assert_close(found, torch.stack([changed @ model.at[i] for i in (2, 0, 1)]), atol=1e-4, rtol=0)
    # Where nothing is masked, nothing is said.
    nowhere = torch.zeros(2, 0, dtype=torch.int64)
    assert by_candidates(model, z, (nowhere[0], nowhere[1]), torch.zeros(0, 4, dtype=torch.int64)).shape == (0, 4)


def test_many_candidates_are_scored_in_parts(monkeypatch):
    whole = towards(bag(), candidates=9)
    monkeypatch.setattr("atat_zoo.generation.guided_denoiser._AT_ONCE", 1)
    assert torch.allclose(towards(bag(), candidates=9), whole, atol=1e-6)


class Layered:
    """A classifier with layers, which autocast would compute in bf16."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        shapes = ((21, 16), (16, 64), (64, 1))
        self.table, self.inner, self.outer = (torch.randn(shape, generator=generator) / 4 for shape in shapes)

    def embedded(self, x):
        return torch.nn.functional.logsigmoid(((x.mean(1) @ self.inner).tanh() @ self.outer)[:, 0])

    def __call__(self, tokens):
        return self.embedded(self.table[tokens])


@pytest.mark.parametrize("method", METHODS)
def test_in_bf16_it_says_the_same(method):
    # A token in 64 changes log f by thousandths, which bf16 does not see.
    z = torch.arange(64)[None] % 20
    z[:, 3] = 20
    where, model = z == 20, Layered()

    def bias():
        if method == "exact":
            return by_candidates(model, z, where, torch.arange(20)[None])
        return by_gradient(model, z, where)

    plain = bias()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(bias(), plain)


def test_a_class_that_a_text_cannot_be_of_is_excluded_and_gives_way_where_all_are():
    never_b = Given(lambda tokens: torch.where((tokens == 2).any(1), -torch.inf, -1.0))
    never = Given(lambda tokens: torch.full((len(tokens),), -torch.inf))
    only_b = Given(lambda tokens: torch.where((tokens == 2).any(1), -1.0, -torch.inf))
    assert (towards(never_b, candidates=27)[:, 2] == -torch.inf).all()
    assert (towards(only_b, candidates=27)[:, 2] == 0).all()
    assert torch.equal(towards(never, candidates=27), towards(never, strength=0.0))
    with pytest.raises(UserError, match="needs a classifier with an embedding, which this one does not have"):
        towards(never, method="first_order")


# The classifiers that ship.

BYTES = BytesTokenizer().train(lambda: iter(()))
PEACE = "let us keep the peace with all nations and sign treaties "
MONEY = "the banks of the country hold gold and pay their debts in coin "


@pytest.fixture
def corpus(tmp_path):
    train, held_out = tmp_path / "train.txt", tmp_path / "validation.txt"
    train.write_text("\n".join(f"{text}{i}" for i in range(20) for text in (PEACE, MONEY)))
    held_out.write_text("something else altogether")
    files = {"train": [str(train)], "validation": [str(held_out)], "document": "line"}
    return Zoo.load().spec("corpus", {"use": "files", **files})


def test_naive_bayes_learns_the_words_that_go_with_the_topic(corpus):
    model = NaiveBayesClassifier(words=("peace",), corpus=corpus).build(BYTES, 50)
    assert isinstance(model, Differentiable)

    def probability(text):
        return float(model(torch.tensor([BYTES.encode(text)])).exp())

    # Neither has the word that the passages were told apart by.
    assert probability("sign treaties with nations") > 0.5 > probability("banks hold gold and pay debts")
    nothing = torch.full((1, 9), BYTES.vocabulary_size)
    started = [document.startswith(PEACE) for document in corpus.documents("train")]
    assert float(model(nothing).exp()) == pytest.approx(sum(started) / len(started))
    prior = NaiveBayesClassifier(words=("peace",), corpus=corpus, prior=0.1).build(BYTES, 50)
    assert float(prior(nothing).exp()) == pytest.approx(0.1)

    # w_v = log of (n_v + 1)/(N + V) in the topic over the same outside.
    def log_share(text, passages):
        return math.log((passages * text[:50].count("t") + 1) / (passages * 50 + BYTES.vocabulary_size))

    wanted = log_share(PEACE, started.count(True)) - log_share(MONEY, started.count(False))
    assert float(model.table[BYTES.encode("t")[0], 0]) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("words", "says"),
    [((), "has no words"), (("zebra",), "no passage of 50 tokens"), (("the",), "every passage of 50 tokens")],
)
def test_naive_bayes_says_what_it_cannot_learn(corpus, words, says):
    with pytest.raises(UserError, match=says):
        NaiveBayesClassifier(words=words, corpus=corpus).build(BYTES, 50)


FUNCTIONS = """
def shout(texts): return [0.0 if "A" in t else -3.0 for t in texts]
def positive(texts): return [1.0] * len(texts)
def short(texts): return []
def words(texts): return texts
NUMBER = 3
"""


def test_a_function_is_followed_only_if_a_person_names_it(tmp_path, monkeypatch):
    (tmp_path / "my_scores.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    tokens = torch.tensor([[*BYTES.encode(text), BYTES.vocabulary_size] for text in ("xA", "ab")])

    def scores(path, **options):
        return FunctionClassifier(path=path, **options).build(BYTES, 3)(tokens).tolist()

    monkeypatch.delenv("ATAT_ZOO_FUNCTIONS", raising=False)
    with pytest.raises(UserError, match="put ATAT_ZOO_FUNCTIONS=my_scores:shout before the command"):
        scores("my_scores:shout")
    names = ("shout", "positive", "short", "words", "NUMBER", "none")
    monkeypatch.setenv("ATAT_ZOO_FUNCTIONS", ", ".join([f"my_scores:{name}" for name in names] + ["no_such:x"]))
    check_classifier(FunctionClassifier(path="my_scores:shout"))
    assert scores("my_scores:shout") == [0.0, -3.0]
    assert scores("my_scores:shout", blank="A") == [0.0, 0.0]
    for path, says in (
        ("my_scores:positive", "must return a log-probability, at most 0"),
        ("my_scores:short", "must return a log-probability, at most 0"),
        ("my_scores:words", "must return a log-probability for each text"),
        ("my_scores:NUMBER", "is not a function"),
        ("my_scores:none", "cannot be imported"),
        ("no_such:x", "cannot be imported"),
        ("my_scores", "expected module:function"),
    ):
        with pytest.raises(UserError, match=says):
            scores(path)


# P(c, x_1, x_2) over three symbols, none of them alike.
JOINT = Joint([1 + (7 * i * i + 3 * i) % 19 for i in range(27)], length=3, vocabulary_size=3)
TABLE = JOINT.p.view(3, 3, 3)


JOINT_WRITER = TextGenerator(denoiser=JOINT.denoiser, tokenizer=Alphabet("abc"), length=3)


def expected(c, w, first=None):
    """p(x_1 | c)^(1+w) p(x_1)^(−w), or of x_2 given x_1 too: by sums over the table alone."""
    of_c = TABLE[c].sum(1) if first is None else TABLE[c, first]
    of_all = TABLE.sum((0, 2)) if first is None else TABLE[:, first].sum(0)
    p = (of_c / of_c.sum()) ** (1 + w) * (of_all / of_all.sum()) ** -w
    return p / p.sum()


@pytest.mark.parametrize(("c", "w"), [(0, 0.5), (2, 3.0)])
def test_it_is_what_the_joint_says(c, w):
    guided = ClassifierFreeGuidance(condition="abc"[c], strength=w).guide(JOINT_WRITER)
    z = torch.tensor([[c, 3, 3], [c, 1, 3]])
    found = guided.denoiser(z, None, torch.tensor([[False, True, False], [False, False, True]])).exp()
    assert torch.allclose(found[0], expected(c, w), atol=1e-12)
    assert torch.allclose(found[1], expected(c, w, first=1), atol=1e-12)

    # A row without the condition is not guided.
    z[1, 0] = (c + 1) % 3
    assert torch.equal(guided.denoiser(z, None, z == 3)[2], JOINT.denoiser(z, None, z == 3)[2])


def mask(*positions):
    where = torch.zeros(1, 3, dtype=torch.bool)
    where[0, list(positions)] = True
    return where


def test_bos_comes_before_the_condition_and_all_its_tokens_are_masked():
    found = (
        ClassifierFreeGuidance(condition="ba").guide(JOINT_WRITER).denoiser(torch.tensor([[1, 0, 3]]), None, mask(2))
    )
    p = (TABLE[1, 0] / TABLE[1, 0].sum()) ** 2 / (TABLE.sum((0, 1)) / TABLE.sum())
    assert torch.allclose(found[0].exp(), p / p.sum(), atol=1e-12)
    tokenizer = Alphabet("ab", bos=2)
    guided = ClassifierFreeGuidance(condition="b").guide(
        attrs.evolve(JOINT_WRITER, tokenizer=tokenizer, special="sequence")
    )
    found = guided.denoiser(torch.tensor([[2, 1, 3]]), None, mask(2)).exp()
    p = (TABLE[2, 1] / TABLE[2, 1].sum()) ** 2 / (TABLE[2].sum(0) / TABLE[2].sum())
    assert torch.allclose(found[0], p / p.sum(), atol=1e-12)


def test_what_is_dropped_is_gone():
    """∅ is then the shorter row, whose positions move up."""
    seen = []

    def denoiser(tokens, t, where):
        seen.append((tokens.clone(), where))
        return torch.zeros(len(where[0]), 3).log_softmax(-1)

    text_generator = attrs.evolve(JOINT_WRITER, denoiser=FunctionDenoiser(denoiser, 3), length=6)
    guided = ClassifierFreeGuidance(condition="ab", empty="dropped").guide(text_generator)
    guided.denoiser(torch.tensor([[0, 1, 2, 3]]), None, (torch.tensor([0]), torch.tensor([3])))
    bare, (rows, positions) = seen[1]
    assert bare.tolist() == [[2, 3]]
    assert (rows.tolist(), positions.tolist()) == ([0], [1])


def test_an_impossible_token_stays_impossible_and_a_new_one_is_finite():
    log_probs = torch.tensor([[[0.5, 0.5, 0.0]], [[1.0, 0.0, 0.0]]]).log()

    def denoiser(tokens, t, where):
        return log_probs[int(tokens[0, 0] == 3)]

    guided = ClassifierFreeGuidance(condition="a").guide(
        attrs.evolve(JOINT_WRITER, denoiser=FunctionDenoiser(denoiser, 3))
    )
    found = guided.denoiser(torch.tensor([[0, 3, 0]]), None, mask(1)).exp()[0]
    # b is only possible with the condition, so all of the mass goes there; c never was.
    assert found.tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)


def test_a_condition_that_cannot_be_is_a_sentence():
    with pytest.raises(UserError, match="takes 0 tokens"):
        ClassifierFreeGuidance(condition="").guide(JOINT_WRITER)
    with pytest.raises(UserError, match="takes 3 tokens"):
        ClassifierFreeGuidance(condition="abc").guide(JOINT_WRITER)
    with pytest.raises(UserError, match="no sequence begins with 'a'; begin every prompt with it"):
        ClassifierFreeGuidance(condition="a").guide(JOINT_WRITER).denoiser(torch.tensor([[1, 3, 0]]), None, mask(1))


def test_a_model_that_reads_from_left_to_right_drops_whole_blocks():
    class Causal(Denoiser):
        mask_id, block_size = 3, 2

        def __call__(self, tokens, t, where):
            return torch.zeros(int(where.sum()), 3).log_softmax(-1)

    text_generator = attrs.evolve(toy_text_generator(), denoiser=Causal())
    with pytest.raises(UserError, match='"dropped"'):
        ClassifierFreeGuidance(condition="ab").guide(text_generator)
    with pytest.raises(UserError, match="whole blocks"):
        ClassifierFreeGuidance(condition="abc", empty="dropped").guide(text_generator)
    assert ClassifierFreeGuidance(condition="ab", empty="dropped").guide(text_generator).denoiser.block_size == 2


LENGTH = 12
GREEDY = CombinationSampler(
    order="left_to_right", tokens_per_step="one_at_a_time", token_sampling={"use": "categorical", "temperature": 0}
)


LETTERS = CharactersTokenizer().train(lambda: iter(()))


def writer_of(objective):
    return TextGenerator(denoiser=random_model(objective, 27, LENGTH).denoiser(), tokenizer=LETTERS, length=LENGTH)


@pytest.mark.parametrize(
    "objective", ["autoregressive", {"use": "block", "block_size": 3}], ids=["autoregressive", "block"]
)
@pytest.mark.parametrize(
    "guidance",
    [
        TokenBiasGuidance(words=("abc", "de"), strength=60.0, ban=("e d",)),
        ClassifierGuidance(classifier=bag(), method="first_order"),
        ClassifierFreeGuidance(condition="cab", empty="dropped"),
    ],
    ids=["token_bias", "classifier", "classifier_free"],
)
def test_the_text_is_that_of_the_whole_read_anew(objective, guidance):
    guided = guidance.guide(writer_of(objective))
    z = torch.full((3, LENGTH), 27)
    z[:, :3] = torch.tensor(LETTERS.encode("cab"))
    z[1, 3] = 5
    # Greedy, so that no draw hides a difference.
    anew = guided.fill(GREEDY, z)
    kept = guided.fill(SemiAutoregressiveSampler(block_sampler=GREEDY), z)
    assert torch.equal(kept.tokens, anew.tokens)
    assert not torch.equal(anew.tokens, writer_of(objective).fill(GREEDY, z).tokens)


def test_beyond_the_training_length_the_condition_goes_out_of_sight():
    guided = ClassifierFreeGuidance(condition="cab", empty="dropped").guide(
        writer_of({"use": "block", "block_size": 3})
    )
    z = torch.full((2, 2 * LENGTH), 27)
    z[:, :3] = torch.tensor(LETTERS.encode("cab"))
    assert (guided.fill(SemiAutoregressiveSampler(block_sampler=GREEDY), z).tokens < 27).all()
    decoder = guided.denoiser.begin(2, LENGTH)
    decoder.read(z)
    assert decoder.text.shape == (2, LENGTH)  # as many as the network sees


@pytest.mark.slow
def test_a_ban_holds_across_blocks():
    banned = TokenBiasGuidance(words=(), tokens=tuple(LETTERS.encode(" ab")), strength=20.0, ban=("ab", "a"))
    guided = banned.guide(writer_of({"use": "block", "block_size": 3}))
    made = guided.fill(SemiAutoregressiveSampler(), torch.full((30, 2 * LENGTH), 27))
    words = " ".join(LETTERS.decode(ids) for ids in made.tokens.tolist()).split()
    assert words
    assert not {"ab", "a"} & set(words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guidance", "start"),
    [
        *((guidance, "") for guidance in CASES),
        *((ClassifierGuidance(classifier=bag(), method=method, candidates=7, strength=2.0), "") for method in METHODS),
        *((ClassifierFreeGuidance(condition="ca", strength=2.0, empty=empty), "ca") for empty in ("masked", "dropped")),
    ],
)
def test_conformance(guidance, start):
    check_guidance(guidance, 15, start=start)


@pytest.mark.slow
def test_conformance_of_a_classifier():
    check_classifier(bag())


def test_the_denoiser_within_is_asked_what_the_guided_one_is():
    asked = []

    class Recording(Denoiser):
        mask_id, reads_time = MASK, True

        def __call__(self, tokens, t, where):
            asked.append((tokens, t, where))
            return torch.zeros(1, MASK)

        def predict_with_order(self, tokens, t, where):
            return self(tokens, t, where), torch.zeros(1)

        def score_visible(self, tokens, t, where, visible):
            return self(tokens, t, where), visible

    tokens, where = all_masks(1)
    arguments = tokens, torch.tensor([0.5]), where
    guided = GuidedDenoiser(Recording())
    guided(*arguments)
    guided.predict_with_order(*arguments)
    assert guided.score_visible(*arguments, where)[1] is where
    assert asked == [arguments] * 3
