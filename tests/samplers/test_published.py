"""Named samplers are what was published: on a toy whose joint is known, by what they hide, fill and ask."""

import pytest
import torch
from exactness import fit, masks

from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.noise import LinearNoise
from atat_zoo.registry import Zoo
from atat_zoo.samplers.draw import CategoricalDraw, NucleusDraw
from atat_zoo.samplers.loop import run
from atat_zoo.samplers.order import DrawnProbabilityOrder, UncertaintyOrder
from atat_zoo.samplers.pace import BinomialPace, FirstHittingPace
from atat_zoo.samplers.published import AncestralSampler
from atat_zoo.samplers.remask import ReMDMCapRemask, ReMDMRescaleRemask
from atat_zoo.testing.sampling import assemble, noisy, traced
from atat_zoo.testing.toys import FunctionDenoiser, Hashed, Joint, toy
from atat_zoo.uncertainty import ConfidenceUncertainty

ROWS = 20_000


@pytest.mark.parametrize("name", ["first_hitting", "left_to_right", "margin", "entropy", "entropy_bounded"])
def test_one_at_a_time_reproduces_the_joint(name):
    joint = toy()
    table = {"use": name, "gamma": 0.0} if name == "entropy_bounded" else {"use": name}
    made = Zoo.load().spec("sampler", table).sample(joint.denoiser, *masks(joint, ROWS))
    assert fit(made, joint) > 0.001
    assert (made.nfe == 3).all()


def test_first_hitting_hands_its_times_to_a_denoiser_that_reads_them():
    joint, seen = toy(), []

    def denoiser(tokens, t, where):
        seen.append(t)
        return joint.denoiser(tokens, t, where)

    sampler = Zoo.load().spec("sampler", "first_hitting")
    z, seeds = masks(joint, ROWS)
    told = FunctionDenoiser(denoiser, 2, reads_time=True)
    made = sampler.sample(told, z, seeds)
    assert len(seen) == made.max_nfe == 3
    # The times are the order statistics of three uniforms, from the largest: means 3/4, 2/4, 1/4.
    assert [t.mean().item() for t in seen] == pytest.approx([0.75, 0.5, 0.25], abs=0.01)
    seen.clear()
    # Two positions at the first time, and the time of the second of them is that behind which the third comes.
    Zoo.load().spec("sampler", {"use": "first_hitting", "steps": 2}).sample(told, z, seeds)
    assert [t.mean().item() for t in seen] == pytest.approx([0.75, 0.25], abs=0.01)
    seen.clear()
    sampler.sample(FunctionDenoiser(denoiser, 2), z[:2], seeds[:2])
    assert seen == [None, None, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    "remask", [ReMDMCapRemask(eta=0.03), ReMDMRescaleRemask(eta=0.03)], ids=lambda remask: remask.name
)
def test_remasking_with_the_rate_made_up_for_keeps_the_joint(remask):
    joint = toy()
    remdm = assemble(pace=BinomialPace(steps=150, noise=LinearNoise()), remask=remask)
    made, trace = traced(remdm, joint.denoiser, *masks(joint, ROWS))
    assert fit(made, joint) > 0.001
    assert sum("hidden" in record for record in trace) > 50


def test_the_share_of_masked_tokens_follows_the_grid_while_tokens_are_hidden():
    n, steps, rows = 50, 10, 400
    sampler = Zoo.load().spec("sampler", {"use": "remdm_cap", "steps": steps, "eta": 0.3})
    _, trace = traced(sampler, Hashed(4), torch.full((rows, n), 4), torch.arange(rows))
    masked, shares = rows * n, {}
    for record in trace:
        masked += len(record["hidden"]["rows"]) if "hidden" in record else -len(record["rows"])
        shares[record["step"]] = masked / (rows * n)
    for step, share in shares.items():
        assert share == pytest.approx(1 - (step + 1) / steps, abs=0.02)


def test_after_the_draw_is_not_exact():
    joint = toy()
    maskgit = assemble(pace=FirstHittingPace(noise=LinearNoise()), order=DrawnProbabilityOrder())
    assert fit(maskgit.sample(joint.denoiser, *masks(joint, ROWS)), joint) < 1e-6


def test_path_planning_redraws_what_it_is_least_sure_of():
    z = noisy(1, 12, 5, 0)
    made, trace = traced(Zoo.load().spec("sampler", {"use": "p2", "steps": 6}), Hashed(5), z, torch.arange(1))
    # All twelve are filled in each step, and ten, eight, … go back: two more stay each time, new or old.
    assert [len(record["hidden"]["rows"]) for record in trace if "hidden" in record] == [10, 8, 6, 4, 2]
    assert made.nfe.tolist() == [6]
    settled, gone = set(), 0
    for record in trace:
        if "hidden" in record:
            gone += len(settled & set(record["hidden"]["positions"]))
            settled = set(range(12)) - set(record["hidden"]["positions"])
    assert gone > 0


def test_path_planning_keeps_what_the_model_finds_likely():
    """Position 0 is drawn at random, and known once position 1 is there: a wrong one goes back."""
    joint = Joint([8, 1, 1, 8], length=2, vocabulary_size=2)

    class Planning(Denoiser):
        mask_id, scores_visible_tokens = 2, True

        def __call__(self, tokens, t, where):
            return joint.denoiser(tokens, t, where)

        def everywhere(self, tokens, t, where, visible):
            own = torch.zeros(len(visible[0]), dtype=torch.float64)
            for i, (row, position) in enumerate(zip(*(x.tolist() for x in visible), strict=True)):
                hidden = tokens[row : row + 1].clone()
                hidden[0, position] = 2
                own[i] = joint.marginals(hidden)[0, position, tokens[row, position]].log()
            return joint.denoiser(tokens, t, where), own

    z, seeds = masks(joint, 2000)
    p2 = Zoo.load().spec("sampler", {"use": "p2", "steps": 8}).sample(Planning(), z, seeds)
    once = AncestralSampler(steps=1).sample(joint.denoiser, z, seeds)
    agree = [(made.tokens[:, 0] == made.tokens[:, 1]).double().mean() for made in (once, p2)]
    assert agree[0] < 0.55
    assert agree[1] > 0.8


def test_the_loop_reworks_on_its_plateau_only():
    sampler = Zoo.load().spec("sampler", {"use": "remdm_loop", "steps": 40, "eta": 0.1})
    z, seeds = torch.full((50, 40), 6), torch.arange(50)
    made, trace = traced(sampler, Hashed(6), z, seeds)
    steps = {record["step"] for record in trace if "hidden" in record}
    # Time runs from 1 to 0 in 40 steps; it stands still from 0.55 to 0.05, steps 18 to 37.
    assert steps == set(range(18, 38))
    assert made.max_nfe == 40


@pytest.mark.parametrize("name", ["confidence_threshold", "entropy_bounded", "klass"])
@pytest.mark.parametrize("sharpness", [0.5, 6.0])
def test_a_rule_keeps_its_steps_without_a_clean_up(name, sharpness):
    z, seeds = noisy(20, 30, 8, 3), torch.arange(20)
    free = Zoo.load().spec("sampler", name).sample(Hashed(8, sharpness=sharpness), z, seeds)
    capped = Zoo.load().spec("sampler", {"use": name, "steps": 4})
    made, trace = traced(capped, Hashed(8, sharpness=sharpness), z, seeds)
    assert made.max_nfe == 4
    assert free.max_nfe == 30
    assert made.nfe.max() <= 4 < free.nfe.max()
    # At least ⌈30/4⌉, ⌈22/3⌉, … each step: nothing is left over for the last one.
    filled = [record["rows"].count(0) for record in trace]
    assert sum(filled) == 30
    for k, taken in enumerate(filled):
        assert taken >= -(-(30 - sum(filled[:k])) // (4 - k))


@pytest.mark.parametrize("name", ["remdm_cap", "remdm_rescale", "remdm_conf", "remdm_loop"])
def test_remdm_draws_from_the_nucleus_as_published(name):
    parts = Zoo.load().spec("sampler", name).parts()
    assert parts.draw == NucleusDraw(p=0.9)
    assert Zoo.load().spec("sampler", {"use": name, "p": 1.0}).parts().draw == NucleusDraw(p=1.0)


def test_cached_ancestral_is_another_name():
    assert Zoo.load().spec("sampler", "cached_ancestral") == AncestralSampler()
    assert AncestralSampler().parts().draw == CategoricalDraw()


def test_block_by_block_fills_only_the_block():
    z = noisy(3, 8, 5, 1)
    first = torch.arange(8) < 4
    parts = assemble(order=UncertaintyOrder(uncertainty=ConfidenceUncertainty(), importance=True)).parts()
    drafts = []

    def importance(draft, masked):
        drafts.append((draft, masked))
        return torch.ones(draft.shape)

    made = run(parts, Hashed(5, importance=importance), z, torch.arange(3), fill=first.expand(3, 8))
    assert torch.equal(made.tokens[:, 4:], z[:, 4:])
    assert not (made.tokens[:, :4] == 5).any()
    assert all((draft < 5).all() for draft, _ in drafts)
    assert any(masked[:, 4:].any() for _, masked in drafts)
