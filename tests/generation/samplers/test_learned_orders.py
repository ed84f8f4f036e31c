"""Orders that a model learns, as samplers: by its reverse weights, and by importance as in training."""

import itertools

import pytest
import torch
from exactness import fit, masks
from scipy import stats

from atat_zoo import UserError, Zoo
from atat_zoo.experiment import from_table
from atat_zoo.generation.samplers.loop import run
from atat_zoo.generation.samplers.order import ImportanceOrder, LearnedOrder, UncertaintyOrder
from atat_zoo.generation.samplers.published_samplers import LearnedOrderSampler, PolicySampler
from atat_zoo.generation.samplers.tokens_per_step import FixedTokensPerStep
from atat_zoo.modeling.masking import RevealMasking
from atat_zoo.testing.sampler_checks import assemble, example_step, traced
from atat_zoo.testing.toys import Hashed, toy
from tests import learned
from tests.adaptive_exact import look_everywhere, order_likelihood

ROWS = 20_000


def test_order_and_tokens_of_a_model_that_reads_z_in_both():
    """p(x) of the process that the adaptive bound is of, by summing over all orders, against what is drawn."""
    hashed, joint = Hashed(2), toy()

    def look(z, t, masked, x):
        log_p, log_reverse = hashed.predict_with_order(z, t, masked)
        return -log_p.gather(1, x[masked][:, None])[:, 0], log_reverse

    joint.p = order_likelihood(*look_everywhere(look, joint.states, 2)).exp()
    assert float(joint.p.sum()) == pytest.approx(1)
    assert fit(LearnedOrderSampler().sample(hashed, *masks(joint, ROWS)), joint) > 0.001
    # In random order this model is another distribution, so the test above can fail.
    assert fit(assemble(tokens_per_step=FixedTokensPerStep(steps=3)).sample(hashed, *masks(joint, ROWS)), joint) < 1e-6


def test_several_at_once_come_without_replacement():
    """Two of four in the first step: as sets, by Plackett–Luce."""
    log_w = (1.2, -0.4, 0.3, -1.0)
    hashed = Hashed(2)
    hashed.predict_with_order = lambda z, t, where: (hashed(z, t, where), torch.tensor(log_w).expand(len(z), 4)[where])
    sample, trace = traced(LearnedOrderSampler(steps=2), hashed, torch.full((ROWS, 4), 2), torch.arange(ROWS))
    assert (sample.nfe == 2).all()
    pairs = torch.tensor(trace[0]["positions"]).view(ROWS, 2).sort(1).values
    w = torch.tensor(log_w, dtype=torch.float64).softmax(0)
    both = list(itertools.combinations(range(4), 2))
    counts = [int((pairs == torch.tensor(pair)).all(1).sum()) for pair in both]
    expected = [float(w[a] * w[b] * (1 / (1 - w[a]) + 1 / (1 - w[b]))) for a, b in both]
    assert stats.chisquare(counts, [p * ROWS for p in expected]).pvalue > 0.001


def test_in_a_part_of_the_text_the_weights_are_those_of_the_part():
    """With masks that stay masked the network sees them, and their weights are left out."""
    fill = torch.tensor([0, 1, 1, 1, 0], dtype=torch.bool).expand(6, 5)
    z, trace = torch.full((6, 5), 3), []
    sample = run(LearnedOrderSampler().parts(), Hashed(3), z, torch.arange(6), fill=fill, observe=trace.append)
    assert torch.equal(sample.tokens == 3, ~fill)
    assert sorted(i for record in trace for i in record["positions"]) == sorted([1, 2, 3] * 6)


def test_a_model_and_an_experiment_without_weights_are_refused():
    joint = toy()
    with pytest.raises(UserError, match=r'which this model does not have; train it with objective\.use = "adaptive"'):
        LearnedOrderSampler().sample(joint.denoiser, *masks(joint, 2))
    with pytest.raises(RuntimeError, match="order weights"):
        LearnedOrder()(example_step(frozenset()))
    order = {"use": "blockwise", "inner": "learned"}  # also of an order within another
    table = {"name": "wrong", "objective": {"use": "mdlm"}, "sampler": {"use": "combination", "order": order}}
    with pytest.raises(
        UserError,
        match=r"sampler: the decoding order 'learned' needs reverse weights, which objective 'mdlm' does not learn",
    ):
        from_table(table, where="here")


V, L = 5, 9
MASKS = torch.full((4, L), V)


def of_z(tokens, masked):
    return learned.scores_of(tokens)


def reading_z(importance=of_z):
    return Hashed(V, importance=importance, importance_reads="z")


@pytest.mark.parametrize("first", ["easy", "hard"])
def test_positions_come_in_the_order_of_their_scores_under_the_masks_at_that_step(first):
    z = MASKS.clone()
    _, trace = traced(
        PolicySampler(first=first, tokens_per_step=FixedTokensPerStep(steps=3)), reading_z(), MASKS, torch.arange(4)
    )
    for record in trace[:-1]:
        score = of_z(z, z == V).masked_fill(z != V, torch.inf if first == "easy" else -torch.inf)
        best = score.argsort(1, descending=first == "hard")[:, :3].sort(1).values
        assert record["positions"] == best.flatten().tolist()
        z[record["rows"], record["positions"]] = torch.tensor(record["tokens"])


def test_the_network_predicts_the_chosen_positions_alone():
    weighed = []
    one, all_open = reading_z(lambda *given: weighed.append(0) or of_z(*given)), reading_z()
    PolicySampler(tokens_per_step=FixedTokensPerStep(steps=3)).sample(one, MASKS, torch.arange(4))
    assert (one.calls, one.asked, len(weighed)) == (3, 4 * L, 2)  # nothing is to be chosen in the last step
    # With an order that reads the predictions as well it looks at all of them, and the scores are those of z still.
    order = UncertaintyOrder(importance=True)
    assemble(order=order, tokens_per_step=FixedTokensPerStep(steps=3)).sample(all_open, MASKS, torch.arange(4))
    assert (all_open.calls, all_open.asked) == (3, 4 * (9 + 6 + 3))


def test_masks_that_are_not_to_be_filled_stay_masks_for_the_estimator():
    seen = []

    def watched(tokens, masked):
        seen.append((tokens.clone(), masked.clone()))
        return of_z(tokens, masked)

    sampler = Zoo.load().spec("sampler", {"use": "semi_autoregressive", "block_size": 3, "block_sampler": "policy"})
    sampler.sample(reading_z(watched), MASKS, torch.arange(4))
    assert seen
    assert all(torch.equal(masked, tokens == V) for tokens, masked in seen)


@pytest.mark.parametrize("first", ["easy", "hard"])
def test_training_and_sampling_show_the_same_positions_first(first):
    """From n masks, `reveal` shows those that `policy` fills in a step: one policy in both."""
    text, shown = torch.arange(L).expand(4, L) % V, 3

    def scores(masked):
        return of_z(torch.where(masked, V, text), masked)

    masking, rate = RevealMasking(excess=L / (L - shown), first=first), torch.full((4,), (L - shown) / L)
    mask = masking.draw_mask(scores, rate, MASKS == V, torch.arange(4))
    _, trace = traced(
        PolicySampler(first=first, tokens_per_step=FixedTokensPerStep(steps=3)), reading_z(), MASKS, torch.arange(4)
    )
    assert trace[0]["positions"] == (~mask).nonzero()[:, 1].tolist()


def test_without_an_estimator_the_experiment_is_refused():
    for table in ({}, {"estimator": "frequency"}, {"objective": "sedd"}):
        with pytest.raises(UserError, match="the decoding order 'importance' needs an estimator"):
            from_table({"name": "a", "sampler": "policy", **table}, where="here")
    assert not ImportanceOrder()(example_step(frozenset())).any()  # from Python, all positions are alike
    table = {"masking": "reveal", "estimator": {"use": "transformer", "reads": "z"}}
    assert from_table({"name": "a", "sampler": "policy", **table}, where="here").parts["sampler"].name == "policy"


def test_only_an_estimator_of_clean_text_can_be_given_masks():
    def sampler(**order):
        return {"use": "combination", "order": {"use": "uncertainty", "draft": False, **order}}

    reads_x = {"name": "a", "estimator": "transformer", "masking": "importance", "sampler": sampler(importance=True)}
    assert not from_table(reads_x, where="here").parts["sampler"].order.draft
    reads_z = {"estimator": {"use": "transformer", "reads": "z"}, "masking": "reveal"}
    for table in (reads_z, {"sampler": sampler()}):
        with pytest.raises(UserError, match="draft = false only works with importance = true and an estimator that"):
            from_table(reads_x | table, where="here")
