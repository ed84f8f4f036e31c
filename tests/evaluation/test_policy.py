"""The likelihood of a sampler, on toys whose probabilities are known, and as it is printed."""

import json
import math

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import UserError, Zoo
from atat_zoo.diffusion.likelihood_bounds import enumerate_masks, from_denoiser
from atat_zoo.diffusion.randomness import fold, sequence_keys
from atat_zoo.evaluation.held_out_text import Text, text_of
from atat_zoo.evaluation.policy import (
    PolicyNats,
    bracket_value,
    measure_policy,
    policy_nats,
    policy_of_run,
    policy_value,
)
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.guidance import NoGuidance
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers.order import LeftToRightOrder, RandomOrder, StridedOrder, UncertaintyOrder
from atat_zoo.generation.samplers.published_samplers import AncestralSampler, LeftToRightSampler
from atat_zoo.generation.samplers.semi_autoregressive import SemiAutoregressiveSampler
from atat_zoo.generation.samplers.teacher_forcing import TeacherForcing
from atat_zoo.generation.samplers.token_sampling import (
    CategoricalTokenSampling,
    NucleusTokenSampling,
    TopKTokenSampling,
)
from atat_zoo.generation.samplers.tokens_per_step import EverythingTokensPerStep, OneAtATimeTokensPerStep
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.modeling.uncertainty import EntropyUncertainty
from atat_zoo.testing.sampler_checks import assemble
from atat_zoo.testing.toys import ENTROPY, FunctionDenoiser, Hashed, hashed_importance, toy
from tests.cli.terminal import printed
from tests.evaluation.making import runs
from tests.generation.making import tiny_model

ORDERS = {
    "random": RandomOrder(),
    "left to right": LeftToRightOrder(),
    "most certain": UncertaintyOrder(uncertainty=EntropyUncertainty()),
    "most uncertain": UncertaintyOrder(uncertainty=EntropyUncertainty(), first="most_uncertain", importance=True),
    "strided": StridedOrder(stride=2),
}
WEIGHED = FunctionDenoiser(toy().denoiser, 2, importance=hashed_importance)


def priced(sampler, denoiser=None, orders=1, seed=0, given=None):
    """Return what a policy pays for every text of the toy, all with one seed."""
    joint = toy()
    maskable = torch.ones_like(joint.states, dtype=torch.bool)
    if given is not None:
        maskable[:, given] = False
    seeds = torch.full_like(joint.states[:, 0], seed)
    return policy_nats(denoiser or joint.denoiser, sampler, joint.states, maskable, seeds, orders=orders)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@given(seed=st.integers(0, 10**6))
def test_one_place_a_step_costs_the_entropy(order, seed):
    joint = toy()
    found = priced(assemble(order=order, tokens_per_step=OneAtATimeTokensPerStep()), WEIGHED, seed=seed)
    torch.testing.assert_close(found.nats, -joint.p.log(), rtol=1e-12, atol=1e-12)
    assert float((joint.p * found.nats).sum()) == pytest.approx(ENTROPY, abs=5e-7)
    assert found.nfe.tolist() == [3.0] * 8
    assert found.max_nfe == 3


def test_a_random_order_averages_to_the_uniform_bound():
    """The mean over the six orders, of a model that is not consistent, is the sum over masks."""
    denoiser, joint, by_order = Hashed(2), toy(), {}
    z = torch.full_like(joint.states, 2)
    sampler = assemble(order=RandomOrder(), tokens_per_step=OneAtATimeTokensPerStep())
    for seed in range(60):
        trace, seeds = [], torch.full_like(z[:, 0], seed)
        sampler.score_text(denoiser, z, seeds, forced := TeacherForcing(joint.states), observe=trace.append)
        order = tuple(record["positions"][0] for record in trace)
        assert torch.equal(by_order.setdefault(order, forced.nats.sum(1)), forced.nats.sum(1))
    assert len(by_order) == 6
    uniform = enumerate_masks(from_denoiser(denoiser), joint.states, mask_id=2)
    torch.testing.assert_close(torch.stack(list(by_order.values())).mean(0), uniform, rtol=1e-12, atol=1e-12)
    # All at once is the product of the marginals.
    first = joint.marginals(torch.full((1, 3), 2))[0]
    expected = torch.stack([-first[[0, 1, 2], x].log() for x in joint.states])
    torch.testing.assert_close(
        priced(assemble(tokens_per_step=EverythingTokensPerStep(steps=1))).contribution, expected
    )


@given(seed=st.integers(0, 10**6), orders=st.integers(2, 6))
def test_more_orders_are_tighter_and_still_a_bound(seed, orders):
    joint, denoiser = toy(), Hashed(2)
    sampler = AncestralSampler(steps=2)
    found = priced(sampler, denoiser, orders, seed)
    assert (found.nats <= found.contribution.sum(1) + 1e-12).all()
    # The mean of normalised distributions is one, so it costs at least the entropy.
    assert float(found.nats.neg().exp().sum()) == pytest.approx(1, abs=1e-12)
    assert float((joint.p * found.nats).sum()) >= joint.entropy - 1e-12
    # Below lies what the truth is above, where half of the orders can be held against the other half.
    assert (found.lower <= found.nats + 1e-12).all() if orders % 2 == 0 else found.lower.isnan().all()
    one = priced(sampler, denoiser, 1, seed)
    torch.testing.assert_close(one.nats, one.contribution.sum(1), rtol=1e-13, atol=0)


def test_the_truth_lies_in_the_bracket():
    sampler, denoiser, states = AncestralSampler(steps=2), Hashed(2), toy().states

    def for_seeds(number, orders):
        texts, seeds = states.repeat(number, 1), torch.arange(number).repeat_interleave(len(states))
        return policy_nats(denoiser, sampler, texts, torch.ones_like(texts) > 0, seeds, orders=orders)

    true = math.log(4000) - (-for_seeds(4000, 1).nats.view(4000, -1)).logsumexp(0)
    found = for_seeds(100, 4)
    assert float(found.lower.sum()) < 100 * float(true.sum()) < float(found.nats.sum())
    one = priced(sampler, denoiser, 4)
    value = bracket_value(one.ends, torch.full((8,), 3))
    assert value.width == pytest.approx(float((one.nats - one.lower).sum()) / 24)
    assert 1 <= value.effective_orders <= 4
    assert bracket_value(priced(sampler, denoiser, 3).ends, torch.full((8,), 3)) is None


def test_a_contribution_is_averaged_over_orders_that_differ():
    denoiser, joint = Hashed(2), toy()
    sampler = assemble(order=RandomOrder(), tokens_per_step=OneAtATimeTokensPerStep())
    z, seeds, each = torch.full_like(joint.states, 2), torch.zeros_like(joint.states[:, 0]), []
    for k in range(3):
        sampler.score_text(denoiser, z, fold(seeds, k), forced := TeacherForcing(joint.states))
        each.append(forced.nats)
    found = priced(sampler, denoiser, orders=3)
    torch.testing.assert_close(found.contribution, torch.stack(each).mean(0))
    torch.testing.assert_close(found.nats, math.log(3) - (-torch.stack(each).sum(2)).logsumexp(0))
    # Else the mean inside the logarithm would be that of one order, which is the bound of one.
    found = priced(AncestralSampler(steps=2), Hashed(2), orders=8)
    assert (found.nats < found.contribution.sum(1) - 1e-3).all()


def test_the_value_of_a_policy_bound_by_hand():
    nats, width = torch.tensor([20.0, 30.0, 70.0]).double(), torch.tensor([2.0, 3.0, 7.0]).double()
    of_orders = {"lower": nats - width, "effective": torch.tensor([1.0, 1.5, 3.5]).double(), "nfe": nats}
    measured = PolicyNats(nats=nats, contribution=torch.ones(3, 8, dtype=torch.float64), max_nfe=9, **of_orders)
    counted = torch.arange(8) < torch.tensor([[2], [3], [5]])
    tokens = torch.full((3, 8), ord("a"))
    text = Text(tokens=tokens, maskable=counted, counted=counted, data=None, split="test")
    sampler, guidance = AncestralSampler(steps=2), Zoo.load().spec("guidance", "none")
    value = policy_value(tiny_model(), measured, text, sampler, guidance, seed=1, orders=4)
    residual = torch.tensor([-4.0, -6.0, 10.0])  # of 12 nats a token
    error = math.sqrt(float(residual.square().sum()) * 3 / 2) / 10
    assert (value.nats_per_token, value.nats_per_token_stderr) == pytest.approx((12.0, error))
    assert (value.value, value.stderr) == pytest.approx((math.exp(12), error * math.exp(12)))
    assert (value.nats_per_token_of_one_order, value.nfe, value.tokens) == (2.4, 40.0, 10)
    bracket = value.bracket
    found = (value.bits_per_byte, bracket.width, bracket.value, bracket.effective_orders)
    assert found == pytest.approx((12 / math.log(2), 1.2, math.exp(10.8), 2.0))


def test_a_deterministic_sampler_has_one_order():
    calls = Hashed(2)
    found = priced(LeftToRightSampler(), calls, orders=64)
    assert calls.calls == 3
    assert torch.equal(found.nats, priced(LeftToRightSampler(), seed=9, denoiser=Hashed(2)).nats)


def test_one_order_is_the_default():
    joint, counted = toy(), Hashed(2)
    everything = torch.ones_like(joint.states, dtype=torch.bool)
    policy_nats(
        counted,
        assemble(order=RandomOrder(), tokens_per_step=OneAtATimeTokensPerStep()),
        joint.states,
        everything,
        joint.states[:, 0],
    )
    assert counted.calls == 3


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_given_tokens_are_given(order):
    joint = toy()
    found = priced(assemble(order=order, tokens_per_step=OneAtATimeTokensPerStep()), WEIGHED, given=1)
    of_middle = torch.stack([joint.p[joint.states[:, 1] == x[1]].sum() for x in joint.states])
    torch.testing.assert_close(found.nats, (of_middle / joint.p).log(), rtol=1e-12, atol=1e-12)
    assert not found.contribution[:, 1].any()
    assert found.max_nfe == 2


@pytest.mark.parametrize(
    ("draw", "p"),
    [
        (CategoricalTokenSampling(temperature=0.5), [16 / 21, 4 / 21, 1 / 21]),
        (CategoricalTokenSampling(temperature=0.0), [1.0, 0.0, 0.0]),
        (TopKTokenSampling(k=2), [2 / 3, 1 / 3, 0.0]),
        (NucleusTokenSampling(top_p=0.5), [1.0, 0.0, 0.0]),
    ],
    ids=str,
)
def test_the_price_is_that_of_what_is_drawn_from(draw, p):
    log_p = torch.tensor([4 / 7, 2 / 7, 1 / 7]).log()
    denoiser = FunctionDenoiser(lambda z, t, where: log_p.expand(len(where[0]), 3), 3)
    x = torch.arange(3)[:, None]
    found = policy_nats(denoiser, assemble(token_sampling=draw), x, torch.ones(3, 1, dtype=torch.bool), torch.arange(3))
    assert found.nats.neg().exp().tolist() == pytest.approx(p, abs=1e-6)


@pytest.mark.parametrize("name", ["maskgit", "p2", "remdm_cap", "remdm_conf"])
def test_a_sampler_that_is_not_covered_is_refused(name):
    with pytest.raises(UserError, match=r"does not cover this sampler: it (remasks|uses the sampled)"):
        priced(Zoo.load().spec("sampler", name))


def test_neither_the_batch_nor_other_texts_matter():
    x = (torch.arange(30) % 7 % 5).view(6, 5)
    maskable = torch.arange(5) < torch.arange(6)[:, None]
    text_generator = TextGenerator(denoiser=Hashed(5), tokenizer=None, length=5)
    done, asked = [], (text_generator, AncestralSampler(steps=3))
    options = {"seed": 3, "orders": 2}
    whole = measure_policy(*asked, x, maskable, **options)
    parts = measure_policy(*asked, x, maskable, **options, batch_size=4, progress=lambda *each: done.append(each))
    few = measure_policy(*asked, x[:3], maskable[:3], **options, batch_size=2)
    for name in ("nats", "contribution", "nfe"):
        assert torch.equal(getattr(parts, name), getattr(whole, name))
        assert torch.equal(getattr(few, name), getattr(whole, name)[:3])
    assert done == [(4, 6), (6, 6)]
    twice = measure_policy(attrs.evolve(text_generator, cost=2), asked[1], x, maskable, **options)
    assert (twice.nfe.tolist(), twice.max_nfe) == ((2 * whole.nfe).tolist(), 2 * whole.max_nfe)


V, L, SIZE = 258, 12, 3  # bytes, BOS and EOS


def module(objective):
    """Return a small module with random weights, in float64."""
    without = ("estimator", "masking")
    return tiny_model(scale=0.3, objective=objective, sampler="semi_autoregressive", without=without).module.double()


TEXTS = (torch.arange(5 * L) * 5 % 11 % V).view(5, L)
LEFT = LeftToRightSampler()


@pytest.mark.parametrize(
    "sampler", [LEFT, SemiAutoregressiveSampler(block_sampler=LEFT), SemiAutoregressiveSampler()], ids=str
)
@torch.no_grad()
def test_an_autoregressive_model_pays_its_likelihood(sampler):
    built, maskable = module("autoregressive"), torch.arange(L) < torch.tensor([[L], [3], [L], [1], [7]])
    keys = sequence_keys(0, "x", torch.arange(5))
    exact = built.bound(TEXTS, maskable, keys, 1, Zoo.load().spec("bound", "exact_k"))["nelbo"]
    found = policy_nats(built.denoiser(), sampler, TEXTS, maskable, keys)
    torch.testing.assert_close(found.contribution, exact.contribution, rtol=1e-11, atol=1e-11)
    assert found.nfe.tolist() == maskable.sum(1).tolist()


@torch.no_grad()
def test_a_block_model_pays_block_by_block():
    """All of a block at once is its bound with every token of the block masked."""
    built, maskable = module({"use": "block", "block_size": SIZE}), torch.ones(5, L, dtype=torch.bool)
    at_once = SemiAutoregressiveSampler(block_sampler=AncestralSampler(steps=1))
    found = policy_nats(built.denoiser(), at_once, TEXTS, maskable, torch.arange(5))
    z = torch.full_like(TEXTS, V)
    expected = built.cross_entropy(z, None, maskable, TEXTS).view(5, L)
    torch.testing.assert_close(found.contribution, expected, rtol=1e-11, atol=1e-11)
    assert found.nfe.tolist() == [L / SIZE] * 5


root = runs(text_generator={"objective": "mdlm", "data": {"remainder": "pad"}})


@pytest.mark.slow
def test_the_bound_stands_next_to_that_of_the_model(atat, root, monkeypatch):
    monkeypatch.chdir(root)
    out = printed(atat, "eval", "text_generator", "--bound", "policy", "sampler.steps=4", "--orders", "3")
    assert {"perplexity (any-order ELBO)", "policy bound"} <= {
        line.strip().partition("  ")[0] for line in out.splitlines()
    }
    assert "on the same text: 3 orders, seed 4" in out
    bracket = printed(atat, "eval", "text_generator", "--bound", "bracket", "--orders", "4", "sampler.steps=4")
    assert "lower limit" in bracket
    said = json.loads(atat("eval", "text_generator", "--bound", "policy", "--sampler", "strided", "--json")[1])
    policy = said["policy"]
    assert (policy["quantity"], policy["orders"]) == ("policy likelihood", 1)
    assert (policy["tokens"], policy["sequences"]) == (said["tokens"], said["sequences"])
    assert "perplexity" in said
    (kept,) = (root / "text_generator" / "evaluations").glob("policy-validation-strided-8x1-seed*.json")
    assert json.loads(kept.read_text()) == policy
    run, told = root / "text_generator", []
    model = Model.from_run(run)
    text, sampler = text_of(model, run, EvaluationSpec(sequences=8)), Zoo.load().spec("sampler", "strided")
    found = policy_of_run(
        model, run, text, sampler, NoGuidance(), seed=4, batch_size=3, progress=lambda *done: told.append(done)
    )
    assert told == [(3, 8), (6, 8), (8, 8)]
    assert found.nats_per_token == pytest.approx(policy["nats_per_token"], rel=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sampler.steps=4"], "sampler.steps=4 only works with --bound policy or bracket"),
        (["--bound", "policy", "--sampler", "maskgit"], "does not cover sampler 'maskgit': it uses the sampled tokens"),
        (["--bound", "policy", "train.steps=4"], "only the sampler and the guidance of a trained run"),
        (["--bound", "bracket", "--orders", "3"], "--orders 3: a likelihood bracket compares two halves of the orders"),
        (["--bound", "policy", "--sampler", "learned_order"], "needs reverse weights"),
    ],
)
def test_what_is_refused(atat, root, monkeypatch, words, message):
    monkeypatch.chdir(root)
    code, _, err = atat("eval", "text_generator", *words)
    assert (code, err.count("\n"), message in err) == (2, 1, True)
