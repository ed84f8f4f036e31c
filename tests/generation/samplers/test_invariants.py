"""What must hold whatever the sampler (docs/mathematics.md): for every named one, and for random combinations of parts.

On a toy in float64, where a row alone must give what it gives in a batch, and on a network in float32, where a batch
adds up in another order and only the rest must hold.
"""

import re

import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from atat_zoo.errors import UserError
from atat_zoo.generation.guided import Guided
from atat_zoo.generation.samplers.parts import SamplerParts
from atat_zoo.generation.samplers.remask import Remask
from atat_zoo.modeling.diffusion.randomness import fold
from atat_zoo.registry import Context, Zoo
from atat_zoo.testing.sampling import Assembled, check_sample, noisy
from atat_zoo.testing.toys import FunctionDenoiser, Hashed, hashed_importance
from tests.modeling.objectives.small_objectives import build
from tests.specs import specs

PARTS = st.builds(SamplerParts, **{kind: specs(kind) for kind in ("order", "pace", "remask", "stop", "draw")})
FITTING = PARTS.filter(lambda parts: not list(parts.incompatibilities()))


def many(examples):
    return settings(max_examples=examples, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


@pytest.mark.slow
def test_random_combinations_on_the_toy():
    seen = set()

    @many(60)
    @given(FITTING, st.integers(1, 5), st.integers(1, 10), st.integers(1, 6), st.integers(0, 2**40))
    def holds(parts, rows, length, v, seed):
        seen.add(parts)
        z, seeds = noisy(rows, length, v, seed), fold(torch.arange(rows), seed)
        sampler, importance = Assembled(parts=parts), hashed_importance if seed % 2 else None
        check_sample(sampler, lambda: Hashed(v, sharpness=seed % 9, importance=importance), z, seeds)

    holds()
    assert len(seen) >= 35  # some are drawn twice


class Counted(Guided):
    """A denoiser of a model that counts the rows that it was asked for, and may be asked for visible tokens."""

    def __init__(self, model):
        super().__init__(model.denoiser())
        self.denoise, self.evaluated = self.denoiser, 0

    def __call__(self, tokens, t, where):
        self.evaluated += len(tokens)
        return self.denoise(tokens, t, where)

    def everywhere(self, tokens, t, where, visible):
        self.evaluated += len(tokens)
        return self.denoise.everywhere(tokens, t, where, visible)


@pytest.fixture(scope="module")
def model():
    context = Context(vocabulary_size=40, length=16, width=16, steps=100, seed=5)
    return build({"use": "mdlm"}, context=context).eval()


@pytest.mark.slow
def test_random_combinations_on_a_network(model):
    seen = set()

    @many(30)
    @given(FITTING, st.integers(1, 3), st.integers(0, 2**40))
    def holds(parts, rows, seed):
        # The objective of this model learns no order.
        assume("order_weights" not in parts.needs)
        seen.add(parts)
        z = noisy(rows, model.context.length, model.context.vocabulary_size, seed)
        check_sample(Assembled(parts=parts), lambda: Counted(model), z, fold(torch.arange(rows), seed), alone=False)

    holds()
    assert len(seen) >= 15


@pytest.mark.slow
@given(specs("sampler"), st.integers(0, 2**40))
@many(25)
def test_named_samplers_with_any_parameters(sampler, seed):
    z, seeds = noisy(3, 8, 5, seed), fold(torch.arange(3), seed)
    try:
        check_sample(sampler, lambda: Hashed(5, sharpness=seed % 9, importance=hashed_importance), z, seeds)
    except UserError as error:
        assume(not re.match(r"sampler(\.\w+)?: ", str(error)))
        raise


@pytest.mark.slow
@given(FITTING | specs("sampler"), st.integers(0, 2**40), st.sets(st.integers(0, 4), min_size=1), st.integers(0, 4))
@many(40)
def test_rows_that_are_given_up_cost_nothing_more_and_change_no_other(parts, seed, gone, when):
    sampler = Assembled(parts=parts) if isinstance(parts, SamplerParts) else parts
    z, seeds = noisy(4, 8, 5, seed), fold(torch.arange(4), seed)  # there is no fifth row
    denoiser, trace = Hashed(5, sharpness=seed % 9, importance=hashed_importance), []

    def observe(record):
        trace.append(record)
        return sorted(gone) if len(trace) > when else None

    try:
        whole = sampler.sample(Hashed(5, sharpness=seed % 9, importance=hashed_importance), z, seeds)
    except UserError as error:
        assume(not re.match(r"sampler(\.\w+)?: ", str(error)))
        raise
    made = sampler.sample(denoiser, z, seeds, observe=observe)
    kept = [row for row in range(4) if row not in gone]
    assert torch.equal(made.tokens[kept], whole.tokens[kept])
    assert torch.equal(made.nfe[kept], whole.nfe[kept])
    assert (made.tokens < 5).all()
    assert (made.nfe <= whole.nfe).all()
    assert denoiser.evaluated == int(made.nfe.sum())
    if not sampler.blockwise:
        assert not gone & {row for record in trace[when + 1 :] for row in record.get("hidden", record)["rows"]}


@torch.no_grad()
def test_a_model_says_what_it_thinks_of_visible_tokens_in_the_same_evaluation(model):
    denoise, length, v = model.denoiser(), model.context.length, model.context.vocabulary_size
    z = noisy(4, length, v, 3)
    masked = z == v
    log_probs, own = denoise.everywhere(z, None, masked, ~masked)
    assert torch.equal(log_probs, denoise(z, None, masked))
    # The head's own distribution at a visible position, which SUBS never shows.
    logits = model.logits(model.head_inputs(z, None).at(masked | ~masked)).unflatten(0, z.shape)
    expected = logits.log_softmax(-1)[~masked].gather(1, z[~masked].unsqueeze(1)).squeeze(1)
    assert torch.allclose(own, expected, atol=1e-5)
    assert (own < 0).all()


def test_a_remask_without_a_grid_still_needs_an_end():
    class Half(Remask):
        name, active, needs = "half", True, frozenset()

    parts = Zoo.load().spec("sampler", {"use": "combination", "pace": "first_hitting"}).parts()
    (problem,) = evolve(parts, remask=Half()).incompatibilities()
    assert "needs a number of steps at which to end" in problem.text
    capped = Zoo.load().spec("pace", {"use": "first_hitting", "steps": 4})
    assert not list(evolve(parts, remask=Half(), pace=capped).incompatibilities())


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"pace": "adaptive", "remask": "planner"}, "^sampler: the remask planner follows the pace's grid"),
        ({"order": "learned", "pace": "everything", "remask": "planner"}, "the order learned and the remask planner"),
        (
            {"remask": {"use": "remdm_cap", "switch_on": 0.1, "switch_off": 0.2}},
            "must be at most switch_on, 0.1, not 0.2$",
        ),
        ({"use": "uncertainty_guided", "max_steps": 5}, "^sampler: max_steps must be at least min_steps, 10, not 5$"),
        ({"use": "remdm_loop", "begin": 0.2, "end": 0.4}, "^sampler: end must be less than begin, 0.2, not 0.4; time"),
        # A model that does not score visible tokens.
        ({"use": "p2"}, "choose another sampler, such as remdm_conf$"),
    ],
)
def test_what_cannot_be_is_refused_in_words(table, words):
    unable = FunctionDenoiser(lambda tokens, t, where: Hashed(5)(tokens, t, where), 5)
    with pytest.raises(UserError, match=words):
        Zoo.load().spec("sampler", {"use": "combination"} | table).sample(
            unable, torch.full((1, 4), 5), torch.arange(1)
        )
