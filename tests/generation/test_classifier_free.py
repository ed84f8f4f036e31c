"""A condition against none, held to an enumerated joint over (c, x)."""

import attrs
import pytest
import torch

from atat_zoo.errors import UserError
from atat_zoo.generation.guidance import ClassifierFreeGuidance
from atat_zoo.generation.guided import Guided
from atat_zoo.generation.writer import Writer
from atat_zoo.modeling.diffusion.contracts import Denoiser
from atat_zoo.testing import check_guidance
from atat_zoo.testing.guidance import toy_writer
from atat_zoo.testing.toys import FunctionDenoiser, Joint
from tests.generation.alphabet import Alphabet

V, L = 3, 3
# P(c, x_1, x_2) over three symbols, none of them alike.
JOINT = Joint([1 + (7 * i * i + 3 * i) % 19 for i in range(V**L)], length=L, vocabulary_size=V)
TABLE = JOINT.p.view(V, V, V)


WRITER = Writer(denoiser=JOINT.denoiser, tokenizer=Alphabet("abc"), length=L)


def expected(c, w, first=None):
    """p(x_1 | c)^(1+w) p(x_1)^(−w), or of x_2 given x_1 too: by sums over the table alone."""
    of_c = TABLE[c].sum(1) if first is None else TABLE[c, first]
    of_all = TABLE.sum((0, 2)) if first is None else TABLE[:, first].sum(0)
    p = (of_c / of_c.sum()) ** (1 + w) * (of_all / of_all.sum()) ** -w
    return p / p.sum()


@pytest.mark.parametrize(("c", "w"), [(0, 0.5), (2, 3.0)])
def test_it_is_what_the_joint_says(c, w):
    guided = ClassifierFreeGuidance(condition="abc"[c], strength=w).guide(WRITER)
    z = torch.tensor([[c, V, V], [c, 1, V]])
    found = guided.denoiser(z, None, torch.tensor([[False, True, False], [False, False, True]])).exp()
    assert torch.allclose(found[0], expected(c, w), atol=1e-12)
    assert torch.allclose(found[1], expected(c, w, first=1), atol=1e-12)

    # A row without the condition is not guided.
    z[1, 0] = (c + 1) % V
    assert torch.equal(guided.denoiser(z, None, z == V)[2], JOINT.denoiser(z, None, z == V)[2])


def mask(*positions):
    where = torch.zeros(1, L, dtype=torch.bool)
    where[0, list(positions)] = True
    return where


@pytest.mark.slow
@pytest.mark.parametrize("empty", ["masked", "dropped"])
def test_conformance(empty):
    check_guidance(ClassifierFreeGuidance(condition="ca", strength=2.0, empty=empty), start="ca")


def test_bos_comes_before_the_condition_and_all_its_tokens_are_masked():
    found = ClassifierFreeGuidance(condition="ba").guide(WRITER).denoiser(torch.tensor([[1, 0, V]]), None, mask(2))
    p = (TABLE[1, 0] / TABLE[1, 0].sum()) ** 2 / (TABLE.sum((0, 1)) / TABLE.sum())
    assert torch.allclose(found[0].exp(), p / p.sum(), atol=1e-12)
    tokenizer = Alphabet("ab", bos=2)
    guided = ClassifierFreeGuidance(condition="b").guide(attrs.evolve(WRITER, tokenizer=tokenizer, special="sequence"))
    found = guided.denoiser(torch.tensor([[2, 1, V]]), None, mask(2)).exp()
    p = (TABLE[2, 1] / TABLE[2, 1].sum()) ** 2 / (TABLE[2].sum(0) / TABLE[2].sum())
    assert torch.allclose(found[0], p / p.sum(), atol=1e-12)


def test_what_is_dropped_is_gone():
    """∅ is then the shorter row, whose positions move up."""
    seen = []

    def denoiser(tokens, t, where):
        seen.append((tokens.clone(), where))
        return torch.zeros(len(where[0]), V).log_softmax(-1)

    writer = attrs.evolve(WRITER, denoiser=FunctionDenoiser(denoiser, V), length=6)
    guided = ClassifierFreeGuidance(condition="ab", empty="dropped").guide(writer)
    guided.denoiser(torch.tensor([[0, 1, 2, V]]), None, (torch.tensor([0]), torch.tensor([3])))
    bare, (rows, positions) = seen[1]
    assert bare.tolist() == [[2, V]]
    assert (rows.tolist(), positions.tolist()) == ([0], [1])


def test_an_impossible_token_stays_impossible_and_a_new_one_is_finite():
    log_probs = torch.tensor([[[0.5, 0.5, 0.0]], [[1.0, 0.0, 0.0]]]).log()

    def denoiser(tokens, t, where):
        return log_probs[int(tokens[0, 0] == V)]

    guided = ClassifierFreeGuidance(condition="a").guide(attrs.evolve(WRITER, denoiser=FunctionDenoiser(denoiser, V)))
    found = guided.denoiser(torch.tensor([[0, V, 0]]), None, mask(1)).exp()[0]
    # b is only possible with the condition, so all of the mass goes there; c never was.
    assert found.tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)


def test_mistakes_are_said_in_a_sentence():
    with pytest.raises(UserError, match="takes 0 tokens"):
        ClassifierFreeGuidance(condition="").guide(WRITER)
    with pytest.raises(UserError, match="takes 3 tokens"):
        ClassifierFreeGuidance(condition="abc").guide(WRITER)
    with pytest.raises(UserError, match="no text begins with 'a'; let every text begin with it"):
        ClassifierFreeGuidance(condition="a").guide(WRITER).denoiser(torch.tensor([[1, V, 0]]), None, mask(1))


def test_a_model_that_reads_from_left_to_right_drops_whole_blocks():
    class Causal(Denoiser):
        mask_id, block_size = V, 2

        def __call__(self, tokens, t, where):
            return torch.zeros(int(where.sum()), V).log_softmax(-1)

    writer = attrs.evolve(toy_writer(), denoiser=Causal())
    with pytest.raises(UserError, match='"dropped"'):
        ClassifierFreeGuidance(condition="ab").guide(writer)
    with pytest.raises(UserError, match="whole blocks"):
        ClassifierFreeGuidance(condition="abc", empty="dropped").guide(writer)
    assert ClassifierFreeGuidance(condition="ab", empty="dropped").guide(writer).denoiser.block_size == 2


def test_the_denoiser_within_is_asked_what_the_guided_one_is():
    asked = []

    class Recording(Denoiser):
        mask_id, reads_time = V, True

        def __call__(self, tokens, t, where):
            asked.append((tokens, t, where))
            return torch.zeros(1, V)

        def ordered(self, tokens, t, where):
            return self(tokens, t, where), torch.zeros(1)

        def everywhere(self, tokens, t, where, visible):
            return self(tokens, t, where), visible

    arguments = torch.tensor([[0, 1, V]]), torch.tensor([0.5]), mask(2)
    guided = Guided(Recording())
    guided(*arguments)
    guided.ordered(*arguments)
    assert guided.everywhere(*arguments, mask(0))[1].equal(mask(0))
    assert asked == [arguments] * 3
