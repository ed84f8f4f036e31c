"""Remasks mask what they say, and never what is given or new; stops fill the rest from what they judged."""

import pytest
import torch

from atat_zoo.generation.samplers.pace import FixedPace
from atat_zoo.generation.samplers.remask import (
    NoRemask,
    PlannerRemask,
    ReMDMCapRemask,
    ReMDMConfRemask,
    ReMDMLoopRemask,
    ReMDMRescaleRemask,
    greatest,
)
from atat_zoo.generation.samplers.stop import ConfidenceHistoryStop, UncertaintyStop
from atat_zoo.modeling.uncertainty import EntropyUncertainty
from atat_zoo.testing.sampling import assemble, example_step, traced
from atat_zoo.testing.toys import Hashed


def step_with(rates, rows=3000, length=10):
    """Return a step of many rows in which the first half is masked, and position 9 new."""
    step = example_step(frozenset({"confidence"}), rows=rows, length=length)
    step.rates = rates
    step.open = (torch.arange(length) < length // 2).expand(rows, length)
    step.fresh = (torch.arange(length) == length - 1).expand(rows, length)
    step.free = torch.ones_like(step.open)
    step.confidence = torch.full((rows, length), 0.5)
    return step


def test_sigma_is_that_of_the_paper():
    # α_t = 0.4, α_s = 0.5: σ_max = 0.5/0.4, more than 1. α_t = 0.8, α_s = 0.9: 0.1/0.8.
    assert greatest(step_with((0.6, 0.5))) == 1
    assert greatest(step_with((0.2, 0.1))) == pytest.approx(0.125)
    assert greatest(step_with((1.0, 0.9))) == 1
    assert greatest(step_with((0.1, 0.0))) == 0
    early, late = step_with((0.6, 0.5), rows=2), step_with((0.2, 0.1), rows=2)
    assert [ReMDMCapRemask(eta=0.3).rate(step) for step in (early, late)] == pytest.approx([0.3, 0.125])
    assert [ReMDMRescaleRemask(eta=0.3).rate(step) for step in (early, late)] == pytest.approx([0.3, 0.0375])
    assert [ReMDMLoopRemask(eta=0.3).rate(step) for step in (early, late)] == [0, 0]
    assert ReMDMLoopRemask(eta=0.3).rate(step_with((0.1, 0.1), rows=2)) == pytest.approx(0.1 / 0.9)
    assert ReMDMLoopRemask(eta=0.02).rate(step_with((0.1, 0.1), rows=2)) == pytest.approx(0.02)


@pytest.mark.parametrize("remask", [ReMDMCapRemask, ReMDMRescaleRemask])
def test_it_is_switched_on_and_off(remask):
    switched = remask(switch_on=0.5, switch_off=0.2)
    rates = [switched.rate(step_with((before, before - 0.1), rows=2)) > 0 for before in (0.9, 0.5, 0.3, 0.2)]
    assert rates == [False, True, True, False]
    assert not ReMDMConfRemask(switch_on=0.5)(step_with((0.9, 0.8))).any()


@pytest.mark.parametrize("remask", [ReMDMCapRemask(eta=0.3), ReMDMRescaleRemask(eta=0.3), ReMDMLoopRemask(eta=0.3)])
def test_settled_tokens_go_by_chance_and_no_others(remask):
    step = step_with((0.5, 0.5))
    step.remask_rate = remask.rate(step)
    share = remask(step).double().mean(0)
    assert share[:5].max() == 0
    assert share[9] == 0
    assert share[5:9].tolist() == pytest.approx([0.3] * 4, abs=0.04)
    step.free = torch.arange(10).expand_as(step.open) != 6  # what is given is not touched
    assert not remask(step)[:, 6].any()


def test_a_token_that_was_drawn_with_little_confidence_goes_sooner():
    step = step_with((0.5, 0.5), rows=20_000)
    step.confidence = torch.tensor([1.0] * 5 + [0.1, 0.1, 0.9, 0.9, 0.0]).expand(20_000, 10)
    share = ReMDMConfRemask(eta=0.8)(step).double().mean(0)
    weight = (-torch.tensor([0.1, 0.1, 0.9, 0.9])).softmax(0) * 0.8
    assert share[5:9].tolist() == pytest.approx(weight.tolist(), abs=0.02)
    assert share[:5].max() == share[9] == 0
    assert ReMDMConfRemask().rate(step) == 0
    assert not NoRemask()(step).any()


def test_the_planner_keeps_the_best_down_to_the_share():
    step = step_with((0.9, 0.6), rows=1)
    step.open, step.total = torch.zeros_like(step.open), torch.tensor([10])
    step.confidence = torch.tensor([[0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4, 0.5, 0.05]])
    step.fresh = torch.arange(10)[None] >= 8
    # ⌊10 · 0.6⌋ go: 9, 1, 3, 5, 7, 8.
    assert PlannerRemask()(step).nonzero()[:, 1].tolist() == [1, 3, 5, 7, 8, 9]
    # Old tokens weigh nothing, so the new ones go first; then from the right, as equals go left first into the text.
    assert PlannerRemask(eta=0.0)(step).nonzero()[:, 1].tolist() == [4, 5, 6, 7, 8, 9]
    # Old ones weigh much: only the new ones and the best stay.
    assert PlannerRemask(eta=100.0)(step).nonzero()[:, 1].tolist() == [1, 3, 4, 5, 6, 7]
    # What is given takes no part in the share.
    step.free, step.total = torch.arange(10)[None] != 9, torch.tensor([9])
    assert PlannerRemask()(step).nonzero()[:, 1].tolist() == [1, 3, 5, 7, 8]


def test_the_planner_keeps_the_left_of_equals():
    step = step_with((0.9, 0.5), rows=2, length=40)
    step.open, step.total = torch.zeros_like(step.open), torch.full((2,), 40)
    step.confidence = torch.full((2, 40), 0.5)
    assert PlannerRemask()(step).nonzero()[:, 1].tolist() == [*range(20, 40)] * 2


def test_the_share_of_the_grid_is_not_rounded_below():
    # 10 · (1 − 0.9) is 0.9999999999999998; and 180 · 0.65 is less than 117 in float32.
    for length, share, masked in ((10, 1 - 0.9, 1), (180, 1 - (1 - 13 / 20), 117)):
        step = step_with((0.9, share), rows=2, length=length)
        step.open, step.total = torch.zeros_like(step.open), torch.full((2,), length)
        assert PlannerRemask()(step).sum(1).tolist() == [masked, masked]


def test_the_mean_uncertainty_is_over_what_is_masked():
    step = example_step(frozenset(), rows=4)
    means = [EntropyUncertainty()(logits).mean() for logits in step.log_probs.split(step.open.sum(1).tolist())]
    threshold = float(sorted(means)[1]) + 1e-6
    stopped = UncertaintyStop(threshold=threshold)(step)
    assert stopped.tolist() == [bool(mean < threshold) for mean in means]
    assert stopped.sum() == 2
    # What is as uncertain as the threshold goes on, so 0 never stops.
    step = example_step(frozenset(), rows=1, length=2)
    step.log_probs = torch.tensor([0.0, -torch.inf]).expand(len(step.log_probs), 2)
    assert not UncertaintyStop(threshold=0.0)(step).any()


@pytest.mark.parametrize(
    ("stop", "sharpness", "filled"),
    [
        # A text that is certain is filled in one evaluation.
        (UncertaintyStop(threshold=0.3), 1e4, [16]),
        (UncertaintyStop(threshold=0.3), 0.1, [2] * 8),
        (UncertaintyStop(threshold=0.0), 1e4, [2] * 8),
        # The history must be full.
        (ConfidenceHistoryStop(window=3, threshold=0.9), 1e6, [2, 2, 12]),
        (ConfidenceHistoryStop(window=3, threshold=1.0), 1e6, [2] * 8),
    ],
)
def test_a_stop_fills_the_rest(stop, sharpness, filled):
    denoiser, sampler = Hashed(50, sharpness=sharpness), assemble(pace=FixedPace(steps=8), stop=stop)
    made, trace = traced(sampler, denoiser, torch.full((3, 16), 50), torch.arange(3))
    assert [len(record["rows"]) // 3 for record in trace] == filled
    assert made.nfe.tolist() == [denoiser.calls] * 3 == [len(filled)] * 3


def test_the_running_confidence_is_a_mean_over_the_window():
    step = example_step(frozenset(), rows=3)
    nan = torch.nan
    step.history = torch.tensor([[0.1, 0.8, 0.9], [nan, 0.9, 0.9], [nan, nan, 0.9]], dtype=torch.float64)
    assert ConfidenceHistoryStop(window=2, threshold=0.84)(step).tolist() == [True, True, False]
    assert ConfidenceHistoryStop(window=3, threshold=0.59)(step).tolist() == [True, False, False]
    assert ConfidenceHistoryStop(window=3, threshold=0.61)(step).tolist() == [False, False, False]
    assert ConfidenceHistoryStop(window=4, threshold=0.0)(step).tolist() == [False, False, False]
