"""Named samplers are what was published, by what they draw, hide, fill and ask; and which fit a model."""

import itertools

import attrs
import pytest
import torch
from exactness import fit, masks

from atat_zoo import UserError
from atat_zoo.evaluation.sample_quality import bench
from atat_zoo.experiment import from_table
from atat_zoo.generation.samplers import Sample, changes, shifted
from atat_zoo.generation.samplers.loop import run
from atat_zoo.generation.samplers.order import UncertaintyOrder
from atat_zoo.generation.samplers.published_samplers import (
    AncestralSampler,
    LeftToRightSampler,
    MaskGITSampler,
    P2Sampler,
    StridedSampler,
    at_steps,
    fitting,
)
from atat_zoo.generation.samplers.remasking import ReMDMCapRemasking
from atat_zoo.generation.samplers.teacher_forcing import TeacherForcing
from atat_zoo.generation.samplers.token_sampling import NucleusTokenSampling
from atat_zoo.generation.samplers.tokens_per_step import BinomialTokensPerStep
from atat_zoo.modeling.uncertainty import ConfidenceUncertainty
from atat_zoo.registry import Zoo
from atat_zoo.testing.sampler_checks import assemble, noisy, traced
from atat_zoo.testing.toys import FunctionDenoiser, Hashed, hashed_importance, toy

ROWS = 20_000


WORDS = ("none", "random", "easy", "hard", "most_certain", "most_uncertain")


def others(field, value):
    """Other values of a parameter, by its type, or another part of the kind that it is named by."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value / 2]
    if value is None:
        return [7]
    if isinstance(value, str):
        return [word for word in WORDS if word != value]
    zoo = Zoo.load()
    return [spec for spec in (zoo.spec(field, name) for name in zoo.names(field)) if spec != value][:1]


NAMED = [name for name in Zoo.load().names("sampler") if hasattr(Zoo.load().spec("sampler", name), "parts")]


@pytest.mark.parametrize("name", NAMED)
def test_every_parameter_of_a_named_sampler_is_one_of_its_parts(name):
    sampler, seen = Zoo.load().spec("sampler", name), 0
    for field in attrs.fields(type(sampler)):
        for other in others(field.name, getattr(sampler, field.name)):
            try:
                changed = attrs.evolve(sampler, **{field.name: other})
            except (ValueError, TypeError):
                continue  # no value of this one
            seen += 1
            assert changed.parts() != sampler.parts(), field.name
    assert seen >= len(attrs.fields(type(sampler)))


@pytest.mark.parametrize("name", ["confidence_threshold", "klass"])
def test_those_with_a_threshold_begin_with_the_most_certain(name):
    assert Zoo.load().spec("sampler", name).parts().order == UncertaintyOrder(uncertainty=ConfidenceUncertainty())


def test_first_hitting_hands_its_times_to_a_denoiser_that_reads_them():
    joint, (z, seeds) = toy(), masks(toy(), ROWS)

    def mean_times(reads_time=True, **steps):
        seen = []

        def denoiser(tokens, t, where):
            seen.append(t if t is None else t.mean().item())
            return joint.denoiser(tokens, t, where)

        sampler = Zoo.load().spec("sampler", {"use": "first_hitting", **steps})
        sampler.sample(FunctionDenoiser(denoiser, 2, reads_time=reads_time), z, seeds)
        return seen

    # The times are the order statistics of three uniforms, from the largest: means 3/4, 2/4, 1/4.
    assert mean_times() == pytest.approx([0.75, 0.5, 0.25], abs=0.01)
    # Two positions at the first time, and the time of the second of them is that behind which the third comes.
    assert mean_times(steps=2) == pytest.approx([0.75, 0.25], abs=0.01)
    assert mean_times(reads_time=False) == [None] * 3


@pytest.mark.slow
def test_remasking_with_the_rate_made_up_for_keeps_the_joint():
    joint = toy()
    remdm = assemble(tokens_per_step=BinomialTokensPerStep(steps=150), remasking=ReMDMCapRemasking(eta=0.03))
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


def test_path_planning_redraws_what_it_is_least_sure_of():
    z = noisy(1, 12, 5, 0)
    made, trace = traced(Zoo.load().spec("sampler", {"use": "p2", "steps": 6}), Hashed(5), z, torch.arange(1))
    # All twelve are filled in each step, and ten, eight, … go back: two more stay each time, new or old.
    hidden = [set(record["hidden"]["positions"]) for record in trace if "hidden" in record]
    assert list(map(len, hidden)) == [10, 8, 6, 4, 2]
    assert made.nfe.tolist() == [6]
    assert any(later - earlier for earlier, later in itertools.pairwise(hidden))  # what had stayed


def test_the_loop_reworks_on_its_plateau_only():
    sampler = Zoo.load().spec("sampler", {"use": "remdm_loop", "steps": 40, "eta": 0.1})
    made, trace = traced(sampler, Hashed(6), torch.full((50, 40), 6), torch.arange(50))
    # Time runs from 1 to 0 in 40 steps; it stands still from 0.55 to 0.05, steps 18 to 37.
    assert {record["step"] for record in trace if "hidden" in record} == set(range(18, 38))
    assert made.max_nfe == 40


def test_remdm_draws_from_the_nucleus_as_published_and_ancestral_has_another_name():
    assert Zoo.load().spec("sampler", "cached_ancestral") == AncestralSampler()
    for name in ("remdm_cap", "remdm_rescale", "remdm_conf", "remdm_loop"):
        assert Zoo.load().spec("sampler", name).parts().token_sampling == NucleusTokenSampling(top_p=0.9)


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


HARD = {"use": "uncertainty", "first": "most_uncertain", "importance": True}
ONE_AT_A_TIME = [
    {"use": "combination", "order": HARD, "tokens_per_step": {"use": "fixed", "steps": 3}},
    {"use": "margin"},
    {"use": "first_hitting"},
    {"use": "left_to_right"},
    {"use": "entropy_bounded", "gamma": 0.0},
]


@pytest.mark.parametrize("table", ONE_AT_A_TIME, ids=lambda table: table["use"])
def test_one_at_a_time_reproduces_the_joint(table):
    joint = toy()
    weighed = FunctionDenoiser(joint.denoiser, 2, importance=hashed_importance)
    sample = Zoo.load().spec("sampler", table).sample(weighed, *masks(joint, ROWS))
    assert fit(sample, joint) > 0.001
    assert (sample.nfe == 3).all()
    assert sample.max_nfe == 3


def test_few_steps_have_the_distribution_of_ancestral_sampling_in_closed_form():
    """T = 2 on the toy, by summing over which tokens are unmasked in the first step, each with ½."""
    plain_loop = pytest.importorskip("benchmarks.plain_loop", reason="not in a source distribution")
    joint = toy()
    first = joint.marginals(torch.full((1, 3), 2))[0]
    expected = torch.zeros_like(joint.p)
    for index, x in enumerate(joint.states):
        for code in range(8):
            early = torch.tensor([bool(code >> i & 1) for i in range(3)])
            z = torch.where(early, x, 2)
            late = joint.marginals(z[None])[0]
            probability = torch.where(early, first[[0, 1, 2], x], late[[0, 1, 2], x]).prod()
            expected[index] += probability / 8
    joint.p = expected
    z, seeds = masks(joint, ROWS)
    assert fit(AncestralSampler(steps=2).sample(toy().denoiser, z, seeds), joint) > 0.001
    # A visible position's logits are never drawn from; marginals are its one-hot, whose log is −∞ elsewhere.
    plain = plain_loop.sample(
        lambda z: toy().marginals(z).clamp(min=1e-300).log(), z, 2, 2, torch.Generator().manual_seed(1)
    )
    assert fit(Sample(tokens=plain, nfe=seeds, max_nfe=2), joint) > 0.001


BACKBONE = {"use": "dit", "preset": "nano"}


def test_a_sampler_with_steps_has_a_row_for_each_number():
    rows = at_steps("ancestral", [4, 16])
    assert [(name, number, spec.steps) for name, number, spec in rows] == [("ancestral", 4, 4), ("ancestral", 16, 16)]
    assert at_steps("left_to_right", [4, 16]) == [("left_to_right", None, LeftToRightSampler())]
    # The fewest steps are no more than the most.
    rows = at_steps("uncertainty_guided", [2, 500])
    usual = at_steps("uncertainty_guided", [500])[0][2].min_steps
    assert [(spec.max_steps, spec.min_steps) for _, _, spec in rows] == [(2, 2), (500, usual)]
    assert 2 < usual < 500


def test_the_reference_is_first_and_what_does_not_fit_is_said_why():
    of_masks = from_table({"name": "x", "backbone": BACKBONE})
    fits, refused = fitting(of_masks, [4, 16])
    assert fits[0][:2] == ("ancestral", 16)
    assert sorted(row[1] for row in fits if row[0] == "ancestral") == [4, 16]
    assert "combination" not in {name for name, *_ in fits}
    assert "reverse weights" in refused["learned_order"]
    assert not {name for name, *_ in fits} & refused.keys()
    chosen, refused = fitting(of_masks, [4], at_steps("margin", [4]) + at_steps("learned_order", [4]))
    assert [name for name, *_ in chosen] == ["ancestral", "margin"]
    assert list(refused) == ["learned_order"]


def test_a_model_of_one_order_is_written_as_its_experiment_says():
    own = {"use": "strided", "stride": 4}
    data = {"length": 32}
    parts = {"backbone": BACKBONE, "objective": own | {"use": "strided_causal"}, "sampler": own}
    table = {"name": "x", **parts, "data": data}
    fits, refused = fitting(from_table(table), [4, 16])
    assert fits == [("strided", None, StridedSampler(stride=4))]
    assert {"ancestral", "left_to_right"} <= refused.keys()
    with pytest.raises(UserError, match="runs/x: none of these samplers supports the run's model; pass one that does"):
        bench(None, "runs/x", None, [])


@pytest.mark.parametrize("sampler", [MaskGITSampler(), P2Sampler()])
def test_what_no_policy_bound_covers_scores_no_text(sampler):
    z = torch.full((1, 3), 9)
    with pytest.raises(
        UserError, match=r"the policy bound does not cover this sampler: .*; choose a different sampler"
    ):
        sampler.score_text(Hashed(9), z, torch.zeros(1, dtype=torch.int64), TeacherForcing(z))


def test_an_observer_is_told_of_the_whole_text():
    told = []
    observe = shifted(told.append, rows=10, positions=3, steps=5)
    observe({"step": 1, "rows": [0, 1], "positions": [0, 4], "tokens": [7, 8]})
    observe({"step": 2, "hidden": {"rows": [0], "positions": [1]}})
    assert [*changes(told[0], 9)] == [(10, 3, 7), (11, 7, 8)]
    assert [*changes(told[1], 9)] == [(10, 4, 9)]
    assert told == [
        {"step": 6, "rows": [10, 11], "positions": [3, 7], "tokens": [7, 8]},
        {"step": 7, "hidden": {"rows": [10], "positions": [4]}},
    ]
