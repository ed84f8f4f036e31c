"""`Model` in a few lines of Python: infilling, and what it finds in a text."""

import operator
import subprocess
import sys

import attrs
import pytest
import torch

import atat_zoo
from atat_zoo.errors import UserError
from atat_zoo.generation.guidance import Guidance
from atat_zoo.modeling.uncertainty import MarginUncertainty
from tests.generation.making import ESTIMATOR, L, tiny_model


@pytest.fixture(scope="module")
def model():
    return tiny_model()


WITHOUT = {"without": ("estimator", "masking")}


@pytest.fixture(scope="module")
def autoregressive():
    return tiny_model(objective="autoregressive", sampler="left_to_right", **WITHOUT)


def test_guidance_is_taken_and_counted(model):
    class Twice(Guidance):
        name = "twice"

        def guide(self, writer):
            return attrs.evolve(writer, cost=2 * writer.cost)

    assert model.infill("We [MASK:3] of", guidance=Twice()).max_nfe == 6
    assert model.sample(guidance=Twice()).sample.max_nfe == 12


def test_importance_is_the_estimators(model):
    found = model.importance("We the")
    assert [token for token, _ in found] == list("We the")
    row = torch.tensor([[256, *b"We the", 257]])
    with torch.no_grad():
        expected = model.module.importance(row, torch.ones_like(row, dtype=torch.bool), None)[0, 1:-1]
    assert torch.tensor([value for _, value in found]).equal(expected)
    assert len({value for _, value in found}) > 1


def hidden(i):
    """A text with the token at a place masked."""
    z = torch.tensor([[256, *b"We the", 257]])
    z[0, i] = 258
    return z


def test_importance_of_an_estimator_that_reads_masks_is_that_of_each_token_hidden():
    model = tiny_model(estimator=ESTIMATOR | {"reads": "z"}, masking="uniform")
    found = model.importance("We the")
    for i, (_, value) in enumerate(found, start=1):
        with torch.no_grad():
            expected = model.module.importance(z := hidden(i), torch.ones_like(z, dtype=torch.bool), None)[0, i]
        assert value == pytest.approx(float(expected), abs=1e-6)
    # The token itself is not read.
    assert model.importance("We the")[2].value == pytest.approx(model.importance("WeXthe")[2].value, abs=1e-6)


def test_uncertainty_is_of_each_token_given_the_others(model):
    found = model.uncertainty("We the", "margin")
    assert [token for token, _ in found] == list("We the")
    for i, (_, value) in enumerate(found, start=1):
        with torch.no_grad():
            log_probs = model.writer().denoiser(z := hidden(i), None, z == 258)
        assert value == pytest.approx(float(MarginUncertainty()(log_probs)), abs=1e-6)
    again = model.uncertainty("We the", MarginUncertainty(), batch_size=4)
    assert [value for _, value in again] == pytest.approx([value for _, value in found], abs=1e-6)
    assert model.uncertainty("We the") == model.uncertainty("We the", "entropy")


def test_what_cannot_be_read(model, autoregressive):
    for method in (model.importance, model.uncertainty):
        with pytest.raises(UserError, match="the text is empty"):
            method("")
        with pytest.raises(UserError, match="is 25 tokens, special tokens included, and the model has learned 24"):
            method("x" * 23)
        assert len(method("x" * 22)) == 22
    with pytest.raises(UserError, match="there is no uncertainty named 'entropi'; did you mean 'entropy'"):
        model.uncertainty("We", "entropi")
    with pytest.raises(UserError, match="objective 'autoregressive' has no importance"):
        autoregressive.importance("We")
    assert len(autoregressive.uncertainty("We the")) == 6


def test_a_model_that_writes_in_turns_sees_all_that_is_given():
    data = {"length": L, "special": "none"}
    own = {"use": "strided", "stride": 8}
    model = tiny_model(objective=own, sampler=own, data=data, **WITHOUT)
    for length, evaluations in ((None, 8), (10, 8), (5, 5)):
        assert model.sample(2, length=length).sample.nfe.tolist() == [evaluations] * 2
    assert len(model.uncertainty("We the")) == 6
    (text,) = model.infill("We [MASK:1-3] of").texts
    assert (text[:3], text[-3:]) == ("We ", " of")
    (text,) = model.sample(1, prompt="We ", suffix=" of").texts
    assert (text[:3], text[-3:]) == ("We ", " of")
    with pytest.raises(UserError, match="more than the 24 tokens the model has learned"):
        model.sample(length=L + 1)


@pytest.mark.slow
def test_the_model_is_imported_when_it_is_asked_for():
    code = "import sys, atat_zoo; assert 'torch' not in sys.modules; from atat_zoo import Model; Model.load"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'Modell'"):
        operator.attrgetter("Modell")(atat_zoo)
