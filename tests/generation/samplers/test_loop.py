"""What holds for every sampler (docs/explanation/mathematics.md), what a step costs, and when it waits for a GPU."""

import re
import warnings

import attrs
import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.diffusion.positions import pairs
from atat_zoo.diffusion.randomness import fold
from atat_zoo.generation.guided_denoiser import GuidedDenoiser
from atat_zoo.generation.samplers import Sample, loop
from atat_zoo.generation.samplers.order import DrawnProbabilityOrder, LearnedOrder, RandomOrder, UncertaintyOrder
from atat_zoo.generation.samplers.published_samplers import (
    AncestralSampler,
    LeftToRightSampler,
    UncertaintyGuidedSampler,
)
from atat_zoo.generation.samplers.remasking import PlannerRemasking, Remasking, ReMDMCapRemasking
from atat_zoo.generation.samplers.sampler_choices import SamplerChoices
from atat_zoo.generation.samplers.stopping_rule import UncertaintyStoppingRule
from atat_zoo.generation.samplers.tokens_per_step import (
    BinomialTokensPerStep,
    EverythingTokensPerStep,
    FirstHittingTokensPerStep,
    FixedTokensPerStep,
    PositionSetTokensPerStep,
)
from atat_zoo.registry import Context, Zoo
from atat_zoo.system.errors import Note, UserError
from atat_zoo.testing.sampler_checks import Assembled, assemble, check_sample, noisy, traced
from atat_zoo.testing.toys import FunctionDenoiser, Hashed, hashed_importance
from tests.modeling.objectives.small_objectives import build
from tests.specs import specs

PARTS = st.builds(
    SamplerChoices,
    **{kind: specs(kind) for kind in ("order", "tokens_per_step", "remasking", "stopping_rule", "token_sampling")},
)
FITTING = PARTS.filter(lambda parts: not list(parts.incompatibilities()))


def many(examples):
    return settings(max_examples=examples, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


def test_a_sample_prints_its_counts():
    said = "0 texts of 5 tokens, 0.0", "1 text of 5 tokens, 1.0", "2,000 texts of 5 tokens, 1.5"
    for texts, start in zip((0, 1, 2000), said, strict=True):
        nfe = 1 + torch.arange(texts) % 2
        made = repr(Sample(tokens=torch.zeros(texts, 5, dtype=torch.int64), nfe=nfe, max_nfe=1234))
        assert made == f"<Sample of {start} network evaluations on average, 1,234 at most>"


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


class Counted(GuidedDenoiser):
    """A denoiser of a model that counts the rows that it was asked for, and may be asked for visible tokens."""

    def __init__(self, model):
        super().__init__(model.denoiser())
        self.denoise, self.evaluated = self.denoiser, 0

    def __call__(self, tokens, t, where):
        self.evaluated += len(tokens)
        return self.denoise(tokens, t, where)

    def score_visible(self, tokens, t, where, visible):
        self.evaluated += len(tokens)
        return self.denoise.score_visible(tokens, t, where, visible)


@pytest.fixture(scope="module")
def model():
    context = Context(vocabulary_size=40, length=16, width=16, steps=100, seed=5)
    module = build({"use": "mdlm"}, context=context).eval()
    module.loss_by_mask_rate = Hashed.loss_by_mask_rate
    return module


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
    sampler = Assembled(parts=parts) if isinstance(parts, SamplerChoices) else parts
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
    log_probs, own = denoise.score_visible(z, None, masked, ~masked)
    assert torch.equal(log_probs, denoise(z, None, masked))
    # The head's own distribution at a visible position, which SUBS never shows.
    logits = model.logits(model.head_inputs(z, None).at(masked | ~masked)).unflatten(0, z.shape)
    expected = logits.log_softmax(-1)[~masked].gather(1, z[~masked].unsqueeze(1)).squeeze(1)
    assert torch.allclose(own, expected, atol=1e-5)
    assert (own < 0).all()


def test_a_remask_without_a_grid_still_needs_an_end():
    class Half(Remasking):
        name, active, needs = "half", True, frozenset()

    parts = Zoo.load().spec("sampler", {"use": "combination", "tokens_per_step": "first_hitting"}).parts()
    (problem,) = evolve(parts, remasking=Half()).incompatibilities()
    assert "needs a maximum number of steps" in problem.text
    capped = Zoo.load().spec("tokens_per_step", {"use": "first_hitting", "steps": 4})
    assert not list(evolve(parts, remasking=Half(), tokens_per_step=capped).incompatibilities())


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"tokens_per_step": "adaptive", "remasking": "planner"},
            "^sampler: remasking 'planner' needs a grid of mask rates",
        ),
        (
            {"order": "learned", "tokens_per_step": "everything", "remasking": "planner"},
            "the order 'learned' and the remasking 'planner'",
        ),
        (
            {"remasking": {"use": "remdm_cap", "switch_on": 0.1, "switch_off": 0.2}},
            "must be at most switch_on, 0.1, not 0.2$",
        ),
        ({"use": "uncertainty_guided", "max_steps": 5}, "^sampler: max_steps must be at least min_steps, 10, not 5$"),
        ({"use": "remdm_loop", "begin": 0.2, "end": 0.4}, "^sampler: end must be less than begin, 0.2, not 0.4; time"),
        # A model that does not score visible tokens.
        ({"use": "p2"}, "choose a different sampler, such as remdm_conf$"),
    ],
)
def test_what_cannot_be_is_refused_in_words(table, words):
    unable = FunctionDenoiser(lambda tokens, t, where: Hashed(5)(tokens, t, where), 5)
    with pytest.raises(UserError, match=words):
        Zoo.load().spec("sampler", {"use": "combination"} | table).sample(
            unable, torch.full((1, 4), 5), torch.arange(1)
        )


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
    steps = "the sampler uses 1,000,000,000 steps to fill 4 masked tokens"
    asked = f"^{steps}, which takes a long time; reduce its number of steps$"
    every = assemble(tokens_per_step=EverythingTokensPerStep(steps=10**9))
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


def test_an_estimator_of_clean_text_is_given_the_masks_where_no_draft_is_wanted():
    given, draft = [], UncertaintyOrder(importance=True)
    literal = UncertaintyOrder(importance=True, draft=False)
    assert draft.needs < literal.needs

    def importance(z, masked):
        given.append(bool(((z == 9) == masked).all()))
        return hashed_importance(z, masked)

    z, pace = noisy(4, 10, 9, 3), FixedTokensPerStep(steps=3)
    sample(assemble(order=literal, tokens_per_step=pace), z, importance=importance)
    assert len(given) == 2  # the last step fills everything
    assert all(given)
    sample(assemble(order=draft, tokens_per_step=pace), z, importance=importance)
    assert not any(given[2:])


def test_a_model_that_reads_time_is_told_that_of_the_pace():
    told, plain = [], Hashed(9)

    def denoiser(tokens, t, where):
        told.append(t.tolist())
        return plain(tokens, t, where)

    timed = FunctionDenoiser(denoiser, 9, reads_time=True)
    for order in (RandomOrder(), UncertaintyOrder()):  # one that waits for the predictions, too
        sample(assemble(order=order, tokens_per_step=FirstHittingTokensPerStep()), torch.full((2, 3), 9), timed)
    once, again = told[:3], told[3:]
    assert once == again
    assert all(0 < t < 1 for times in once[1:] for t in times)


def test_an_order_and_a_remask_may_want_too_much_of_a_model():
    parts = SamplerChoices(order=LearnedOrder(), remasking=PlannerRemasking(), tokens_per_step=FixedTokensPerStep())
    (problem,) = parts.incompatibilities()
    assert (problem.key, "need two different forward passes" in problem.text) == ("sampler", True)


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


def test_what_is_masked_again_has_no_confidence_of_before():
    class Watching(ReMDMCapRemasking):
        needs = frozenset({"confidence"})

        def __call__(self, step):
            assert (step.confidence[step.open] == 1).all()
            assert (step.confidence[step.free & ~step.open] < 1).all()
            return super().__call__(step)

    z = torch.full((3, 12), 9)
    assert (
        sample(assemble(tokens_per_step=BinomialTokensPerStep(steps=9), remasking=Watching(eta=0.5)), z).tokens < 9
    ).all()


def test_a_stop_finishes_a_row_whatever_the_remask_hides():
    # Everything is certain enough at once, so each row is filled in its first evaluation, and stays.
    sampler = assemble(
        tokens_per_step=BinomialTokensPerStep(steps=20),
        remasking=ReMDMCapRemasking(eta=1.0),
        stopping_rule=UncertaintyStoppingRule(threshold=1.0),
    )
    trace = []
    made = sample(sampler, torch.full((3, 12), 9), observe=trace.append)
    assert made.nfe.tolist() == [1, 1, 1]
    assert not any("hidden" in record for record in trace)
    # Without the stop it goes on.
    going = assemble(tokens_per_step=BinomialTokensPerStep(steps=20), remasking=ReMDMCapRemasking(eta=1.0))
    assert (sample(going, torch.full((3, 12), 9)).nfe > 1).all()


LEFT = {"use": "left_to_right"}
ALONE = {"use": "combination", "order": "left_to_right", "tokens_per_step": "one_at_a_time"}


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
        (LEFT | {"token_sampling": "confidence_tempered"}, False),
        (ALONE, True),
        (ALONE | {"order": "random"}, False),
        (ALONE | {"tokens_per_step": "fixed"}, False),
        (ALONE | {"stopping_rule": "uncertainty"}, False),
    ],
)
def test_which_samplers_are_causal(table, causal):
    assert Zoo.load().spec("sampler", table).causal is causal


def test_an_order_by_drawn_tokens_is_given_those_that_are_drawn():
    z = noisy(4, 10, 9, 3)
    done = sample(assemble(order=DrawnProbabilityOrder(), tokens_per_step=FixedTokensPerStep(steps=4)), z)
    assert not (done.tokens == 9).any()
    assert torch.equal(done.tokens[z != 9], z[z != 9])


V, L, ROWS, STEPS = 9, 16, 4, 5
NAMES = Zoo.load().names("sampler")
# Those whose parts decide by what the network says, or hide tokens by a draw on the device, or count by position.
DECIDES = [
    name
    for name in NAMES
    if (parts := getattr(Zoo.load().spec("sampler", name), "parts", lambda: None)()) is None
    or parts.tokens_per_step.needs
    or isinstance(parts.tokens_per_step, PositionSetTokensPerStep)
    or parts.stopping_rule.active
    or parts.remasking.active
]


class Flat(Denoiser):
    """A denoiser that knows nothing, on any device."""

    mask_id, reads_time = V, True
    estimates_importance = gives_order_weights = scores_visible_tokens = True

    def importance(self, draft, masked):
        return draft / V

    def __call__(self, tokens, t, where):
        assert isinstance(where, tuple)
        base = torch.zeros(V, dtype=torch.float64, device=tokens.device)
        return (base[None] + tokens[where][:, None] * 0).log_softmax(-1)

    def predict_with_order(self, tokens, t, where):
        log_probs = self(tokens, t, where)
        return log_probs, log_probs[:, 0]

    def score_visible(self, tokens, t, where, visible):
        return self(tokens, t, where), self(tokens, t, visible)[:, 0]


def partly_masked():
    z = torch.full((ROWS, L), V)
    z[1, :7] = 1
    z[2] = 2
    return z


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in DECIDES])
def test_on_a_gpu(name, monkeypatch):
    def ask(tensor):
        torch.cuda.set_sync_debug_mode("default")
        found = tensor.cpu()
        torch.cuda.set_sync_debug_mode("error")
        return found

    spec, z = Zoo.load().spec("sampler", name), partly_masked().cuda()
    sampler = attrs.evolve(spec, steps=STEPS) if hasattr(spec, "steps") else spec
    monkeypatch.setattr(loop, "to_host", ask)
    try:
        sampler.sample(Flat(), z, torch.arange(ROWS, device=z.device))
    finally:
        torch.cuda.set_sync_debug_mode("default")
