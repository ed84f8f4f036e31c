"""What a step costs: the network is asked for no row and no position that cannot change."""

import warnings

import pytest
import torch

from atat_zoo import Zoo
from atat_zoo.errors import Note
from atat_zoo.generation.samplers import Sample
from atat_zoo.generation.samplers.order import DrawnProbabilityOrder, LearnedOrder, RandomOrder, UncertaintyOrder
from atat_zoo.generation.samplers.pace import BinomialPace, EverythingPace, FirstHittingPace, FixedPace
from atat_zoo.generation.samplers.parts import SamplerParts
from atat_zoo.generation.samplers.published import AncestralSampler, LeftToRightSampler, UncertaintyGuidedSampler
from atat_zoo.generation.samplers.remask import PlannerRemask, ReMDMCapRemask
from atat_zoo.generation.samplers.stop import UncertaintyStop
from atat_zoo.modeling.diffusion.positions import pairs
from atat_zoo.modeling.diffusion.randomness import fold
from atat_zoo.testing.sampling import assemble, noisy, traced
from atat_zoo.testing.toys import FunctionDenoiser, Hashed, hashed_importance


def sample(sampler, tokens, denoiser=None, importance=None, **options):
    denoiser = denoiser or Hashed(9, importance=importance)
    return sampler.sample(denoiser, tokens, fold(torch.arange(len(tokens)), 5), **options)


def test_steps_without_number_are_said_before_they_are_taken():
    class Done(Exception):
        pass

    def stop(record):
        raise Done

    z = torch.full((1, 4), 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # few are not said
        sample(AncestralSampler(steps=1000), z)
    asked = "^1,000,000,000 steps are asked for to fill 4 masked tokens, which takes long; lower the sampler's steps$"
    every = assemble(pace=EverythingPace(steps=10**9))
    with pytest.warns(Note, match=asked), pytest.raises(Done):
        sample(every, z, observe=stop)


def test_the_draft_has_the_most_probable_token_at_every_mask():
    z = noisy(4, 10, 9, 3)
    seen = []

    def importance(draft, masked):
        expected = draft.clone()
        current = draft.masked_fill(masked, 9)
        expected[masked] = Hashed(9)(current, None, masked).argmax(-1)
        seen.append(torch.equal(draft, expected) and not (draft == 9).any())
        return hashed_importance(draft, masked)

    sample(UncertaintyGuidedSampler(min_steps=2, max_steps=6, threshold=0.0), z, importance=importance)
    assert len(seen) >= 2
    assert all(seen)


def test_a_guided_text_ends_when_little_is_uncertain():
    z = torch.full((2, 12), 9)
    made = sample(UncertaintyGuidedSampler(min_steps=6, max_steps=6), z, Hashed(9, sharpness=1e6))
    assert made.nfe.tolist() == [1, 1]
    made = sample(UncertaintyGuidedSampler(min_steps=6, max_steps=6, threshold=0.0), z, Hashed(9, sharpness=1e6))
    assert made.nfe.tolist() == [6, 6]


def test_a_model_that_reads_time_is_told_that_of_the_pace():
    told, plain = [], Hashed(9)

    def denoiser(tokens, t, where):
        told.append(t.tolist())
        return plain(tokens, t, where)

    timed = FunctionDenoiser(denoiser, 9, reads_time=True)
    for order in (RandomOrder(), UncertaintyOrder()):  # one that waits for the predictions, too
        sample(assemble(order=order, pace=FirstHittingPace()), torch.full((2, 3), 9), timed)
    once, again = told[:3], told[3:]
    assert once == again
    assert all(0 < t < 1 for times in once[1:] for t in times)


def test_an_order_and_a_remask_may_want_too_much_of_a_model():
    parts = SamplerParts(order=LearnedOrder(), remask=PlannerRemask(), pace=FixedPace())
    (problem,) = parts.incompatibilities()
    assert (problem.key, "each want more of the same evaluation" in problem.text) == ("sampler", True)


def test_importance_is_not_asked_for_unless_the_order_wants_it():
    def importance(draft, masked):
        raise AssertionError("asked")

    sample(UncertaintyGuidedSampler(importance=False), torch.full((2, 5), 9), importance=importance)
    sample(AncestralSampler(), torch.full((2, 5), 9), importance=importance)


def test_no_gradient_is_kept_and_no_global_random_number_drawn():
    weight = torch.zeros(9, requires_grad=True)
    state = torch.get_rng_state()

    def denoiser(tokens, t, where):
        return weight.log_softmax(-1).expand(len(where[0]), 9)

    made = sample(UncertaintyGuidedSampler(), torch.full((2, 5), 9), FunctionDenoiser(denoiser, 9))
    assert not made.tokens.requires_grad
    assert torch.equal(torch.get_rng_state(), state)


def test_a_stop_finishes_a_row_whatever_the_remask_hides():
    # Everything is certain enough at once, so each row is filled in its first evaluation, and stays.
    sampler = assemble(pace=BinomialPace(steps=20), remask=ReMDMCapRemask(eta=1.0), stop=UncertaintyStop(threshold=1.0))
    trace = []
    made = sample(sampler, torch.full((3, 12), 9), observe=trace.append)
    assert made.nfe.tolist() == [1, 1, 1]
    assert not any("hidden" in record for record in trace)
    # Without the stop it goes on.
    going = assemble(pace=BinomialPace(steps=20), remask=ReMDMCapRemask(eta=1.0))
    assert (sample(going, torch.full((3, 12), 9)).nfe > 1).all()


LEFT = {"use": "left_to_right"}
ALONE = {"use": "combination", "order": "left_to_right", "pace": "one_at_a_time"}


def test_it_writes_from_left_to_right_and_asks_for_nothing_else():
    asked, hashed = [], Hashed(5)

    def denoise(tokens, t, where):
        first = (tokens == 5).int().argmax(1)
        assert torch.equal(torch.stack(pairs(where)), torch.stack([torch.arange(len(tokens)), first]))
        asked.append(len(tokens))
        return hashed(tokens, t, where)

    z = torch.full((3, 6), 5)
    z[1, 2:5] = 1
    z[2] = 0
    made, trace = traced(LeftToRightSampler(), FunctionDenoiser(denoise, 5), z, torch.arange(3))
    assert made.nfe.tolist() == [6, 3, 0]
    assert made.max_nfe == 6
    assert asked == [2, 2, 2, 1, 1, 1]
    assert [record["positions"] for record in trace][:3] == [[0, 0], [1, 1], [2, 5]]


@pytest.mark.parametrize(
    ("table", "causal"),
    [
        (LEFT, True),
        # Its temperature follows the confidence at all masks.
        (LEFT | {"draw": "confidence_tempered"}, False),
        (ALONE, True),
        (ALONE | {"order": "random"}, False),
        (ALONE | {"pace": "fixed"}, False),
        (ALONE | {"stop": "uncertainty"}, False),
    ],
)
def test_which_samplers_are_causal(table, causal):
    assert Zoo.load().spec("sampler", table).causal is causal


def test_a_sample_says_what_it_cost_and_prints_no_tensor():
    tokens = torch.zeros(3, 1200, dtype=torch.int64)
    three = Sample(tokens=tokens, nfe=torch.tensor([2, 2, 3]), max_nfe=4000)
    assert repr(three) == "<Sample of 3 texts of 1,200 tokens, 2.3 network evaluations each, 4,000 at most>"
    one = Sample(tokens=tokens[:1], nfe=torch.tensor([7]), max_nfe=7)
    assert repr(one) == "<Sample of 1 text of 1,200 tokens, 7.0 network evaluations each, 7 at most>"
    none = Sample(tokens=tokens[:0], nfe=torch.zeros(0, dtype=torch.int64), max_nfe=0)
    assert repr(none) == "<Sample of 0 texts of 1,200 tokens, 0.0 network evaluations each, 0 at most>"


def test_an_order_by_drawn_tokens_is_given_those_that_are_drawn():
    z = noisy(4, 10, 9, 3)
    done = sample(assemble(order=DrawnProbabilityOrder(), pace=FixedPace(steps=4)), z)
    assert not (done.tokens == 9).any()
    assert torch.equal(done.tokens[z != 9], z[z != 9])
