"""Stops end when they say, and fill the rest from the distributions they judged."""

import torch

from atat_zoo.samplers.pace import FixedPace
from atat_zoo.samplers.stop import ConfidenceHistoryStop, UncertaintyStop
from atat_zoo.testing.sampling import assemble, example_step, traced
from atat_zoo.testing.toys import Hashed
from atat_zoo.uncertainty import EntropyUncertainty


def test_the_mean_uncertainty_is_over_what_is_masked():
    step = example_step(frozenset(), rows=4)
    means = [EntropyUncertainty()(logits).mean() for logits in step.log_probs.split(step.open.sum(1).tolist())]
    threshold = float(sorted(means)[1]) + 1e-6
    stopped = UncertaintyStop(threshold=threshold, uncertainty=EntropyUncertainty())(step)
    assert stopped.tolist() == [bool(mean < threshold) for mean in means]
    assert stopped.sum() == 2


def run(stop, *, sharpness, steps=8):
    denoiser = Hashed(50, sharpness=sharpness)
    sampler = assemble(pace=FixedPace(steps=steps), stop=stop)
    made, trace = traced(sampler, denoiser, torch.full((3, 16), 50), torch.arange(3))
    return made, denoiser, trace


def test_a_text_that_is_certain_is_filled_in_one_evaluation():
    made, denoiser, _ = run(UncertaintyStop(threshold=0.3, uncertainty=EntropyUncertainty()), sharpness=1e4)
    assert made.nfe.tolist() == [1, 1, 1]
    assert denoiser.calls == 1
    made, _, _ = run(UncertaintyStop(threshold=0.3, uncertainty=EntropyUncertainty()), sharpness=0.1)
    assert made.nfe.tolist() == [8, 8, 8]
    made, _, _ = run(UncertaintyStop(threshold=0.0, uncertainty=EntropyUncertainty()), sharpness=1e4)
    assert made.nfe.tolist() == [8, 8, 8]


def test_the_history_must_be_full():
    made, _, trace = run(ConfidenceHistoryStop(window=3, threshold=0.9), sharpness=1e6)
    assert made.nfe.tolist() == [3, 3, 3]
    assert [len(record["rows"]) // 3 for record in trace] == [2, 2, 12]
    made, _, _ = run(ConfidenceHistoryStop(window=3, threshold=1.0), sharpness=1e6)
    assert made.nfe.tolist() == [8, 8, 8]


def test_the_running_confidence_is_a_mean_over_the_window():
    step = example_step(frozenset(), rows=3)
    nan = torch.nan
    step.history = torch.tensor([[0.1, 0.8, 0.9], [nan, 0.9, 0.9], [nan, nan, 0.9]], dtype=torch.float64)
    assert ConfidenceHistoryStop(window=2, threshold=0.84)(step).tolist() == [True, True, False]
    assert ConfidenceHistoryStop(window=3, threshold=0.59)(step).tolist() == [True, False, False]
    assert ConfidenceHistoryStop(window=3, threshold=0.61)(step).tolist() == [False, False, False]
    assert ConfidenceHistoryStop(window=4, threshold=0.0)(step).tolist() == [False, False, False]
