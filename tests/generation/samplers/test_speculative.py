"""`speculative` draws from the distribution of one position set per step, in fewer forward passes."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from exactness import fit
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import UserError, Zoo
from atat_zoo.data.tokenizers.components import CharactersTokenizer
from atat_zoo.diffusion import categorical
from atat_zoo.diffusion.randomness import fold, stream
from atat_zoo.evaluation.policy import policy_nats
from atat_zoo.generation.guidance import ClassifierFreeGuidance, TokenBiasGuidance
from atat_zoo.generation.samplers import speculative
from atat_zoo.generation.samplers.speculative import SpeculativeSampler
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.testing.sampler_checks import check_sampler, noisy, traced
from atat_zoo.testing.toys import FunctionDenoiser, Hashed, Joint, toy
from tests.examples import at_most
from tests.modeling.objectives.small_objectives import sets_of

STREAMS = {"use": "strided", "stride": 3}
ORDERS = [
    "left_to_right",
    STREAMS,
    {"use": "blocks", "block_size": 2},
    {"use": "random", "sets": None},
    {"use": "random", "sets": 3},
    {"use": "strided", "stride": 3, "random_offset": True},
]


def steps_of(sampler, z, seeds, mask_id):
    return sampler.position_sets.step_indices(z == mask_id, fold(seeds, stream(0, "order")), None)


def plain_law(denoiser, steps, texts):
    """Return the probability of each text, float64 [n], when each set is drawn given all earlier ones; steps [L]."""
    law = torch.ones(len(texts), dtype=torch.float64)
    for step in range(int(steps.max()) + 1):
        where = (steps == step).expand(texts.shape)
        log_probs = denoiser(texts.masked_fill(steps >= step, denoiser.mask_id), None, where)
        law *= log_probs.gather(1, texts[where][:, None]).view(len(texts), -1).sum(1).exp()
    return law


class Choices:
    """Random choices that follow a path, and then take the first outcome each time."""

    def __init__(self, path):
        self.path, self.taken, self.weight = path, [], 1.0

    def choose(self, probabilities):
        """Return an outcome, with its probability multiplied into the weight."""
        possible = [each for each, p in enumerate(probabilities) if p > 0]
        number = self.path[len(self.taken)] if len(self.taken) < len(self.path) else 0
        self.taken.append((number, len(possible)))
        self.weight *= probabilities[possible[number]]
        return possible[number]

    def draw(self, weights, keys):
        """Choose like `draw_by_weight`; where every weight is 0, nothing is drawn."""
        total = weights.sum(1)
        drawn = [self.choose((w / t).tolist()) if t > 0 else 0 for w, t in zip(weights, total, strict=True)]
        return torch.tensor(drawn, dtype=torch.int64)

    def happens(self, probability, keys):
        """Choose like `happens`."""
        return torch.tensor(
            [not math.isnan(p) and self.choose([min(p, 1.0), 1 - min(p, 1.0)]) == 0 for p in probability.tolist()],
            dtype=torch.bool,
        )


def every_path(sampler, make, z, seed, monkeypatch):
    """Yield the probability, the text and the NFE of each sequence of drafts, refusals and tokens."""
    path = []
    while path is not None:
        choices = Choices(path)
        monkeypatch.setattr(categorical, "draw_by_weight", choices.draw)
        monkeypatch.setattr(speculative, "happens", choices.happens)
        made = sampler.sample(make(), z, torch.tensor([seed]))
        yield choices.weight, made.tokens[0], int(made.nfe)
        taken = choices.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        path = [number for number, _ in taken[:-1]] + [taken[-1][0] + 1] if taken else None


QUICK = [*((order, 2, "0??1?", 2) for order in ORDERS), (STREAMS, 2, "????", 2), ("left_to_right", 1, "???", 3)]
LONG = [each for each in itertools.product(ORDERS, (1, 2, 3), ("0??1?", "????"), (2,)) if each not in QUICK]
LONG += [(STREAMS, 1, "?????", 2), (STREAMS, 2, "???", 3), ("left_to_right", 2, "???", 3)]


@pytest.mark.parametrize(
    ("order", "draft_length", "text", "v"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in LONG)],
    ids=str,
)
def test_the_law_is_that_of_one_set_per_step(order, draft_length, text, v, monkeypatch):
    sampler = SpeculativeSampler(draft_length=draft_length, position_sets=order)
    z = torch.tensor([[v if each == "?" else int(each) for each in text]])
    texts = torch.tensor(list(itertools.product(*(range(v) if each == "?" else [int(each)] for each in text))))
    steps = steps_of(sampler, z, torch.tensor([0]), v)[0]
    expected, law, sooner = plain_law(Hashed(v), steps, texts), torch.zeros(len(texts)).double(), 0.0
    for weight, made, nfe in every_path(sampler, lambda: Hashed(v), z, 0, monkeypatch):
        law[(made == texts).all(1)] += weight
        sooner += weight * (nfe <= steps.max())
        assert nfe <= steps.max() + 1
    torch.testing.assert_close(law, expected, rtol=0, atol=1e-12)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    assert 0 < sooner < 1 or steps.max() < 2, "some drafts must be accepted, and some refused"


@pytest.mark.parametrize(
    ("order", "draws"),
    [
        *(pytest.param(order, 20_000) for order in ("left_to_right", STREAMS)),
        *(pytest.param(order, 100_000, marks=pytest.mark.slow) for order in ("left_to_right", STREAMS)),
    ],
    ids=str,
)
def test_texts_follow_the_law(order, draws):
    sampler, z, seeds = SpeculativeSampler(position_sets=order), torch.full((draws, 4), 3), torch.arange(draws)
    law = plain_law(Hashed(3), steps_of(sampler, z[:1], seeds[:1], 3)[0], Joint(torch.ones(81), 4, 3).states)
    made = sampler.sample(Hashed(3), z, seeds)
    assert fit(made, Joint(law, 4, 3)) > 0.001
    assert fit(made, Joint(0.9 * law + 0.1 / 81, 4, 3)) < 1e-6
    assert made.nfe.double().mean() < made.max_nfe


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize(("draft_length", "temperature"), [(1, 1.0), (3, 0.5), (2, 0.0)])
def test_it_keeps_the_contract_of_samplers(order, draft_length, temperature):
    check_sampler(
        SpeculativeSampler(draft_length=draft_length, temperature=temperature, position_sets=order), examples=8
    )


class Drafting(FunctionDenoiser):
    """A denoiser with log-probabilities [V] of the next step, and others of later steps."""

    predicts_ahead = True

    def __init__(self, now, ahead):
        super().__init__(None, len(now))
        self.now, self.ahead = now, ahead

    def predict_ahead(self, tokens, steps, first, length):
        return lambda _, row, position, before: torch.where(
            (steps[row, position] > before)[:, None], self.ahead, self.now
        )


EVEN, SKEWED = torch.full((4,), 0.25).double().log(), torch.tensor([0.4, 0.3, 0.2, 0.1]).double().log()


@at_most(15)
@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 30), st.sampled_from([0.0, 0.5, 1.0]))
def test_perfect_drafts_save_all_passes_but_one_in_m_plus_one(length, draft_length, stride, temperature):
    order = {"use": "strided", "stride": stride}
    sampler = SpeculativeSampler(draft_length=draft_length, temperature=temperature, position_sets=order)
    z, steps = torch.full((3, length), 4), min(length, stride)
    made = sampler.sample(Drafting(SKEWED, SKEWED), z, torch.arange(3))
    assert made.nfe.tolist() == [1 + math.ceil((steps - 1) / (draft_length + 1))] * 3
    assert made.max_nfe == steps


def test_drafts_that_are_rarely_right_cost_no_pass():
    z, always = torch.full((500, 9), 4), torch.tensor([1.0, 0, 0, 0]).double().log()
    made = SpeculativeSampler(draft_length=2).sample(Drafting(EVEN, always), z, torch.arange(500))
    # Every draft is 0, and accepted with probability 1/4: the passes are 9 less the accepted drafts.
    assert made.nfe.max() == 9
    assert 6.5 < made.nfe.double().mean() < 7.5
    counts = made.tokens.flatten().bincount(minlength=4) / 4500
    assert (counts - 0.25).abs().max() < 5 * math.sqrt(0.25 * 0.75 / 4500)


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("order", ["left_to_right", {"use": "strided", "stride": 5}], ids=str)
def test_greedy_texts_are_those_of_plain_decoding(order, counts):
    """With caches, prompts, gaps, rows of different lengths, and an n-gram prior."""
    module, z = sets_of(12, counts=counts), noisy(6, 12, 7, 3)
    plain = order if isinstance(order, dict) else {"use": "left_to_right"}
    plain = Zoo.load().spec("sampler", plain | {"token_sampling": {"use": "categorical", "temperature": 0.0}})
    expected = plain.sample(module.denoiser(), z, torch.arange(6))
    for draft_length in (1, 3):
        sampler = SpeculativeSampler(draft_length=draft_length, temperature=0.0, position_sets=order)
        made = sampler.sample(module.denoiser(), z, torch.arange(6))
        assert torch.equal(made.tokens, expected.tokens)
        assert (made.nfe <= expected.nfe).all()
        assert made.nfe.sum() < expected.nfe.sum()


@at_most(15)
@given(seed=st.integers(0, 99), order=st.sampled_from(ORDERS), draft_length=st.integers(1, 4), counts=st.booleans())
def test_a_pass_predicts_what_a_pass_over_all_steps_predicts(seed, order, draft_length, counts):
    module, z, found = sets_of(9, counts=counts), noisy(4, 9, 7, seed), []
    denoiser, sampler = module.denoiser(), SpeculativeSampler(draft_length=draft_length, position_sets=order)
    begin = denoiser.begin_generation
    seeds = torch.arange(4) + seed

    def checked(tokens):
        return Checked(begin(tokens), torch.arange(4))

    class Checked:
        predicts_ahead, mask_id = True, 7

        def __init__(self, own, rows):
            self.own, self.rows = own, rows

        def select(self, rows):
            return Checked(self.own.select(rows), rows)

        def predict_ahead(self, tokens, steps, first, length):
            predict = self.own.predict_ahead(tokens, steps, first, length)

            def compared(tokens, row, position, before):
                log_probs = predict(tokens, row, position, before)
                for each, i, j, p in zip(row, position, before, log_probs, strict=True):
                    known = steps[each : each + 1].clamp(max=int(j))
                    read = module.inputs_in_steps(tokens[each : each + 1], known)
                    if counts and steps[each, i] > j:  # the prior also reads drafts
                        near = module.inputs_in_steps(tokens[each : each + 1], steps[each : each + 1]).neighbours
                        read = read._replace(neighbours=near)
                    expected = module.logits(read.at((torch.tensor([0]), i[None]))).log_softmax(-1)[0]
                    torch.testing.assert_close(p, expected, rtol=1e-9, atol=1e-9)
                    found.append(int(steps[each, i] - j))
                return log_probs

            return compared

    denoiser.begin_generation = checked
    made = sampler.sample(denoiser, z, seeds)
    assert (made.tokens < 7).all()
    assert max(found) <= draft_length
    for row in range(4):
        alone = sampler.sample(module.denoiser(), z[row : row + 1], seeds[row : row + 1])
        assert torch.equal(alone.tokens[0], made.tokens[row])


@pytest.mark.parametrize("draft_length", [1, 2, 3])
def test_a_pass_reads_each_final_token_once_and_drafts_from_every_place_at_which_it_may_stop(draft_length):
    module, sizes, length = sets_of(8), [], 8
    module.backbone.register_forward_hook(lambda _, args, out: sizes.append(args[0].shape[1]))
    sampler = SpeculativeSampler(draft_length=draft_length)
    _, trace = traced(sampler, module.denoiser(), torch.full((1, length), 7), torch.arange(1))
    first, expected = 0, []
    for record in trace:
        drafts = min(draft_length, length - first) if first else 0
        # The last final token, or the start, and the drafts, of which nobody reads that of the last position.
        content = 1 + drafts - (first + drafts == length)
        # Masks for the positions that are drafted after each one at which the pass may stop.
        stops = range(first, min(first + drafts, length - 1) + 1)
        expected.append(content + sum(min(draft_length, length - 1 - stop) for stop in stops))
        first = record["positions"][-1] + 1
    assert sizes == expected


def test_guidance_changes_the_law_as_it_does_for_plain_decoding():
    letters = CharactersTokenizer().train(lambda: iter(()))
    text_generator = TextGenerator(denoiser=sets_of(10, 27).denoiser(), tokenizer=letters, length=10)
    guided = TokenBiasGuidance(words=("abc", "de"), strength=60.0, ban=("e d",)).guide(text_generator)
    z = torch.full((3, 10), 27)
    plain = Zoo.load().spec(
        "sampler", {"use": "left_to_right", "token_sampling": {"use": "categorical", "temperature": 0.0}}
    )
    expected, own = guided.fill(plain, z), SpeculativeSampler(temperature=0.0)
    assert torch.equal(guided.fill(own, z).tokens, expected.tokens)
    assert not torch.equal(text_generator.fill(own, z).tokens, expected.tokens)
    assert not ClassifierFreeGuidance(condition="a").guide(text_generator).denoiser.predicts_ahead


def test_rows_that_the_observer_abandons_take_no_further_pass():
    z, seeds = torch.full((3, 8), 5), torch.arange(3)
    whole, (first, *_) = traced(SpeculativeSampler(), Hashed(5), z, seeds)
    assert first == {"step": 0, "rows": [0, 1, 2], "positions": [0, 0, 0], "tokens": whole.tokens[:, 0].tolist()}
    made = SpeculativeSampler().sample(Hashed(5), z, seeds, observe=lambda record: [1, 7, -1])
    assert made.nfe.tolist() == [int(whole.nfe[0]), 1, int(whole.nfe[2])]
    assert torch.equal(made.tokens[[0, 2]], whole.tokens[[0, 2]])
    assert made.tokens[1].tolist() == [int(whole.tokens[1, 0]), *[0] * 7]
    later = SpeculativeSampler().sample(Hashed(5), z, seeds, observe=lambda record: [0] if record["step"] else [])
    assert later.nfe.tolist() == [2, *whole.nfe[1:].tolist()]
    assert int(later.tokens.max()) < 5


def test_its_probabilities_are_those_of_the_temperature():
    log_probs = torch.stack([SKEWED, SKEWED.flip(0)])
    torch.testing.assert_close(categorical.probabilities(log_probs, 0.5), (2 * log_probs).softmax(-1))
    assert categorical.probabilities(log_probs, 0.0).tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]


def test_a_draft_is_accepted_if_rounding_leaves_nothing_else():
    q = torch.tensor([[0.5, 0.5]]).double()
    always = torch.tensor([-1])  # the largest number below 1
    accepted, tokens = speculative.verified(q * (1 - 1e-12), q, torch.tensor([1]), always, always)
    assert accepted.tolist() == [True]
    assert tokens.tolist() == [1]


def test_it_says_what_it_needs():
    with pytest.raises(UserError, match="reads the clean text; choose a different order"):
        Zoo.load().spec("sampler", {"use": "speculative", "position_sets": "by_importance"})
    with pytest.raises(UserError, match="caches keys and values"):
        SpeculativeSampler().sample(toy().denoiser, torch.full((1, 3), 2), torch.arange(1))
    module = sets_of(4)
    module.backbone.takes_cache = False
    assert not module.denoiser().predicts_ahead
    objective = Zoo.load().spec("objective", "mdlm")
    (problem,) = SpeculativeSampler().check(SimpleNamespace(parts={"objective": objective}))
    assert 'set objective.use = "set_causal"' in str(problem)
    objective = Zoo.load().spec("objective", "set_causal")
    assert not list(SpeculativeSampler().check(SimpleNamespace(parts={"objective": objective})))
    with pytest.raises(UserError, match='that of the sampler "left_to_right" or "strided" in the same order'):
        policy_nats(Hashed(2), SpeculativeSampler(), torch.zeros(1, 3).long(), torch.ones(1, 3).bool(), torch.arange(1))
