"""Importance raised in sampling and in training; the mean rate of a masking strategy stays."""

import attrs
import pytest
import torch

from atat_zoo.errors import UserError
from atat_zoo.estimators import TermBiasEstimator
from atat_zoo.experiment import load
from atat_zoo.generation.guidance import CombinedGuidance, ImportanceBiasGuidance
from atat_zoo.testing import check_guidance
from atat_zoo.testing.batches import context
from atat_zoo.testing.guidance import toy_writer
from atat_zoo.testing.toys import Hashed

WRITER = toy_writer()
ENCODE = WRITER.tokenizer.encode
TEXT = torch.tensor([ENCODE("a cab and no cab")])
THERE = torch.tensor([[c == "x" for c in "-xxxx-------xxxx"]])
NONE = torch.zeros_like(THERE)


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.5, -1.0])
def test_conformance(strength):
    check_guidance(ImportanceBiasGuidance(words=("cab",), strength=strength))


def test_importance_moves_at_the_words_alone():
    before = WRITER.denoiser.importance(TEXT, NONE)
    after = ImportanceBiasGuidance(words=("cab",), strength=0.25).guide(WRITER).denoiser.importance(TEXT, NONE)
    assert torch.equal(after[~THERE], before[~THERE])
    assert torch.allclose(after[THERE], before[THERE] + 0.25 * (1 - before[THERE]))


def test_without_an_estimator_it_starts_from_a_half():
    writer = toy_writer(weighed=False)
    found = ImportanceBiasGuidance(words=("cab",), strength=-0.5).guide(writer).denoiser.importance(TEXT, NONE)
    assert torch.equal(found, torch.where(THERE, 0.25, 0.5))


def test_an_estimator_that_reads_masks_gets_them_while_the_words_are_those_of_the_draft():
    mask_id, hidden = WRITER.denoiser.mask_id, torch.tensor([[i in (2, 14) for i in range(16)]])

    def share_of_masks(tokens, masked):
        assert torch.equal(tokens == mask_id, masked)
        return (tokens == mask_id).float()

    denoiser = Hashed(mask_id, importance=share_of_masks, importance_reads="z")
    guided = ImportanceBiasGuidance(words=("cab",), strength=0.25).guide(attrs.evolve(WRITER, denoiser=denoiser))
    found = guided.denoiser.importance(TEXT, hidden)
    assert torch.equal(found, torch.where(hidden, 1.0, torch.where(THERE, 0.25, 0.0)))


def test_no_word_and_an_unknown_word_are_mistakes():
    with pytest.raises(UserError, match="names no word"):
        ImportanceBiasGuidance(words=()).guide(WRITER)
    with pytest.raises(UserError, match="'naïve' is unknown"):
        ImportanceBiasGuidance(words=("naïve",)).guide(WRITER)


@pytest.mark.parametrize("sampler", ["ancestral", "strided", "semi_autoregressive", "left_to_right"])
def test_a_sampler_that_does_not_look_is_told(sampler):
    overrides = ["guidance.use=importance_bias", 'guidance.words=["war"]']
    with pytest.raises(UserError, match=f"{sampler!r} does not"):
        load("quickstart", [*overrides, f"sampler.use={sampler}"])
    load("quickstart", [*overrides, "sampler.use=uncertainty_guided"])
    load("quickstart", [*overrides, "sampler={use='semi_autoregressive', within='uncertainty_guided'}"])


def test_inside_of_combined_it_says_where_it_stands():
    experiment = load("quickstart", ["sampler.use=ancestral"])
    inner = ImportanceBiasGuidance(words=("war",))
    (problem,) = CombinedGuidance(first=inner).check(experiment)
    assert (problem.key, str(problem)[:28]) == ("guidance.first", "guidance.first: importance_b")
    (problem,) = CombinedGuidance(second=CombinedGuidance(first=inner)).check(experiment)
    assert problem.key == "guidance.second.first"


def estimator(**changes):
    spec = TermBiasEstimator(words=("cab",), **changes)
    return spec.build(context(vocabulary_size=27, length=16, tokenizer=WRITER.tokenizer, counts=None))


def test_the_estimator_does_the_same_in_training():
    found = estimator(strength=0.5)(TEXT, None, None, ~NONE)
    assert torch.equal(found, torch.where(THERE, 0.75, 0.5))


def test_the_estimator_refuses_an_unknown_word_and_needs_a_tokenizer():
    with pytest.raises(UserError, match="'naïve' is unknown"):
        TermBiasEstimator(words=("naïve",)).build(context(vocabulary_size=27, tokenizer=WRITER.tokenizer))
    with pytest.raises(RuntimeError, match="tokenizer"):
        TermBiasEstimator(words=("cab",)).build(context())
