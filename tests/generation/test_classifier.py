"""Classifier guidance: the posterior on a toy, its first order, and the classifiers that ship."""

import math

import pytest
import torch

from atat_zoo import Zoo
from atat_zoo.data.tokenizers import BytesTokenizer
from atat_zoo.errors import UserError
from atat_zoo.generation.classifiers import BagOfTokens, Differentiable, FunctionClassifier, NaiveBayesClassifier
from atat_zoo.generation.guidance import ClassifierGuidance
from atat_zoo.generation.guided import by_candidates, by_gradient
from atat_zoo.generation.writer import Writer
from atat_zoo.testing import check_classifier, check_guidance
from atat_zoo.testing.guidance import toy_writer
from atat_zoo.testing.toys import toy
from tests.generation.alphabet import Alphabet

WEIGHTS = torch.linspace(-2, 2, 27)


class Given:
    """A classifier that is there already."""

    def __init__(self, model):
        self.build = lambda tokenizer, length: model


def bag(bias=0.3):
    return Given(BagOfTokens(WEIGHTS, bias))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "first_order"])
def test_conformance(method):
    check_guidance(ClassifierGuidance(classifier=bag(), method=method, candidates=7, strength=2.0), examples=15)
    check_classifier(bag())


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
    writer = Writer(denoiser=joint.denoiser, tokenizer=Alphabet("ab"), length=3)
    guided = ClassifierGuidance(classifier=Given(exact_classifier(joint, likelihood))).guide(writer)
    for tokens in ([2, 2, 2], [0, 2, 2], [2, 1, 2], [2, 1, 0]):
        z = torch.tensor([tokens])
        where = z == 2
        found = guided.denoiser(z, None, where).exp()
        assert torch.allclose(found, posterior(joint, likelihood, z)[where[0]], atol=1e-9)


MASKS = torch.full((2, 5), 27)


def guided(classifier, **options):
    """Return the log-probabilities at five masks in two rows, float32 [10, V]."""
    guidance = ClassifierGuidance(classifier=classifier, **options)
    return guidance.guide(toy_writer()).denoiser(MASKS, None, MASKS == 27)


def test_tokens_that_are_no_candidates_say_nothing_of_the_class():
    plain = guided(bag(), strength=0.0)[0]
    ratio, best = guided(bag(), candidates=3)[0] - plain, plain.topk(3).indices
    outside = plain.isfinite().index_fill(0, best, False)
    assert ratio[outside].max() - ratio[outside].min() < 1e-5
    assert (ratio[best] - ratio[outside][0]).abs().max() > 1e-2


@pytest.mark.parametrize("inference", [False, True])
def test_first_order_is_exact_where_the_log_probability_is_linear(inference):
    """Far below ½, log σ(x) is x, and both methods agree."""
    with torch.inference_mode(inference):
        exact, linear = (guided(bag(-40.0), candidates=27, method=method) for method in ("exact", "first_order"))
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
    whole = guided(bag(), candidates=9)
    monkeypatch.setattr("atat_zoo.generation.guided._AT_ONCE", 1)
    assert torch.allclose(guided(bag(), candidates=9), whole, atol=1e-6)


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


@pytest.mark.parametrize("method", ["exact", "first_order"])
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
    assert (guided(never_b, candidates=27)[:, 2] == -torch.inf).all()
    assert (guided(only_b, candidates=27)[:, 2] == 0).all()
    assert torch.equal(guided(never, candidates=27), guided(never, strength=0.0))
    with pytest.raises(UserError, match="takes a gradient at an embedding, and this classifier has none"):
        guided(never, method="first_order")


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
    [((), "names no word"), (("zebra",), "no passage of 50 tokens"), (("the",), "every passage of 50 tokens")],
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
        ("my_scores:NUMBER", "is no function"),
        ("my_scores:none", "cannot be imported"),
        ("no_such:x", "cannot be imported"),
        ("my_scores", "expected module:function"),
    ):
        with pytest.raises(UserError, match=says):
            scores(path)
