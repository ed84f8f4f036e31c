"""`was_masked` says nothing about difficulty: its optimum is the masking the estimator caused."""

import torch

from atat_zoo.modeling.diffusion.randomness import row_keys, stratified
from atat_zoo.modeling.masking import ImportanceMasking
from atat_zoo.modeling.masking.mask_drawing import BernoulliMaskDrawing
from atat_zoo.modeling.targets import WasMaskedTarget
from tests.modeling.diffusion.noised import noised

ROWS = 20_000


def mean_target(strategy, importance):
    """The minimiser of the squared error per token: the mean target over rates and masks."""
    rows = torch.arange(ROWS)
    rate = stratified(3, rows, ROWS)
    maskable = torch.ones(ROWS, 4, dtype=torch.bool)
    p = strategy.probabilities(importance.expand(ROWS, 4), rate, maskable)
    masked = BernoulliMaskDrawing()(p, row_keys(0, "mask", rows))
    # Whatever the loss: here the first token is the hardest by far.
    target, counted = WasMaskedTarget()(noised(masked, rate), masked * torch.tensor([9.0, 1.0, 1.0, 1.0]))
    assert counted.all()
    return target.mean(0), p.mean(0)


def test_with_importance_masking_it_tends_to_the_mean_of_p():
    optimum, expected = mean_target(ImportanceMasking(temperature=0.3), torch.tensor([0.0, 0.2, 0.6, 1.0]))
    torch.testing.assert_close(optimum, expected, atol=0.02, rtol=0)
    assert bool((optimum.diff() > 0.05).all()), "it echoes the importance that went in"
