"""The order by importance: one policy in training and sampling."""

import pytest
import torch
from exactness import fit, masks

from atat_zoo import UserError, Zoo
from atat_zoo.diffusion.randomness import fold, to_unit
from atat_zoo.experiment import from_table
from atat_zoo.masking.visible_text import RevealMasking
from atat_zoo.measure.policy import policy_nats
from atat_zoo.samplers.order import ImportanceOrder, UncertaintyOrder
from atat_zoo.samplers.pace import FixedPace, OneAtATimePace
from atat_zoo.samplers.published import PolicySampler
from atat_zoo.testing.sampling import assemble, example_step, traced
from atat_zoo.testing.toys import ENTROPY, FunctionDenoiser, Hashed, toy

V, L = 5, 9
MASKS = torch.full((4, L), V)


def of_z(tokens, masked):
    """Arbitrary scores of every position, by all of z."""
    key = torch.zeros_like(tokens[:, 0])
    for i in range(tokens.shape[1]):
        key = fold(key, tokens[:, i])
    return to_unit(fold(key[:, None], torch.arange(tokens.shape[1])))


def reading_z(**more):
    return Hashed(V, importance=of_z, importance_reads="z", **more)


@pytest.mark.parametrize("first", ["easy", "hard"])
def test_positions_come_in_the_order_of_their_scores_under_the_masks_at_that_step(first):
    sampler = PolicySampler(first=first, pace=FixedPace(steps=3))
    z = MASKS.clone()
    _, trace = traced(sampler, reading_z(), MASKS, torch.arange(4))
    for record in trace[:-1]:
        score = of_z(z, z == V).masked_fill(z != V, torch.inf if first == "easy" else -torch.inf)
        chosen = torch.zeros_like(z, dtype=torch.bool)
        chosen[record["rows"], record["positions"]] = True
        best = score.argsort(1, descending=first == "hard")[:, :3]
        assert torch.equal(chosen, torch.zeros_like(chosen).scatter(1, best, True))
        z[record["rows"], record["positions"]] = torch.tensor(record["tokens"])


def test_the_network_predicts_the_chosen_positions_alone():
    one, all_open = reading_z(), reading_z()
    PolicySampler(pace=FixedPace(steps=3)).sample(one, MASKS, torch.arange(4))
    assert (one.calls, one.asked) == (3, 4 * L)
    # With an order that reads the predictions as well it looks at all of them, and the scores are those of z still.
    order = UncertaintyOrder(importance=True)
    assemble(order=order, pace=FixedPace(steps=3)).sample(all_open, MASKS, torch.arange(4))
    assert (all_open.calls, all_open.asked) == (3, 4 * (9 + 6 + 3))


def test_masks_that_are_not_to_be_filled_stay_masks_for_the_estimator():
    seen = []

    def watched(tokens, masked):
        seen.append((tokens.clone(), masked.clone()))
        return of_z(tokens, masked)

    denoiser = Hashed(V, importance=watched, importance_reads="z")
    Zoo.load().spec("sampler", {"use": "semi_autoregressive", "size": 3, "within": "policy"}).sample(
        denoiser, MASKS, torch.arange(4)
    )
    assert seen
    for tokens, masked in seen:
        assert torch.equal(masked, tokens == V)


def test_one_at_a_time_is_exact_with_exact_conditionals():
    joint = toy()
    denoiser = FunctionDenoiser(joint.denoiser, 2, importance=of_z, importance_reads="z")
    sampler = PolicySampler(pace=OneAtATimePace())
    assert fit(sampler.sample(denoiser, *masks(joint, 20_000)), joint) > 0.001
    seeds = torch.zeros_like(joint.states[:, 0])
    found = policy_nats(denoiser, sampler, joint.states, torch.ones_like(joint.states, dtype=torch.bool), seeds)
    assert float((joint.p * found.nats).sum()) == pytest.approx(ENTROPY, abs=5e-7)


@pytest.mark.parametrize("first", ["easy", "hard"])
def test_training_and_sampling_show_the_same_positions_first(first):
    """From n masks, `reveal` shows those that `policy` fills in a step: one policy in both."""
    text, shown = torch.arange(L).expand(4, L) % V, 3

    def scores(masked):
        return of_z(torch.where(masked, V, text), masked)

    everything = torch.ones(4, L, dtype=torch.bool)
    rate = torch.full((4,), (L - shown) / L)
    mask = RevealMasking(excess=L / (L - shown), first=first).draw_mask(scores, rate, everything, torch.arange(4))
    _, trace = traced(PolicySampler(first=first, pace=FixedPace(steps=3)), reading_z(), MASKS, torch.arange(4))
    filled = torch.zeros_like(everything)
    filled[trace[0]["rows"], trace[0]["positions"]] = True
    assert torch.equal(filled, ~mask)


def test_without_an_estimator_the_experiment_is_refused():
    for table in ({}, {"estimator": "frequency"}, {"objective": "sedd"}):
        with pytest.raises(UserError, match="the order importance follows an estimator"):
            from_table({"name": "a", "sampler": "policy", **table}, where="here")
    assert not ImportanceOrder()(example_step(frozenset())).any()  # from Python, all positions are alike
    table = {"masking": "reveal", "estimator": {"use": "transformer", "reads": "z"}}
    assert from_table({"name": "a", "sampler": "policy", **table}, where="here").parts["sampler"].name == "policy"
