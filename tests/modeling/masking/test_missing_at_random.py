"""Masks that read what they hide tilt what is learned, at any capacity; their figures by enumeration."""

import math

import pytest
import torch

from atat_zoo.modeling.masking import ImportanceMasking, InverseMasking, UniformMasking
from atat_zoo.testing.toys import toy
from tests import learned

TOY = toy()
RATES = (torch.arange(80, dtype=torch.float64) + 0.5) / 80  # midpoints of 80 intervals


def weights(strategy, floor=None):
    """Return q(M|x) h_i(x) of a strategy with `simple` weights; with a floor ε, h is r/p and p is at least εr."""
    # All rates at once: [80 · 8, 3].
    texts, rate = TOY.states.repeat(len(RATES), 1).double(), RATES.repeat_interleave(len(TOY.states))
    p = strategy.probabilities(texts, rate, torch.ones_like(texts, dtype=torch.bool)).double()
    if floor is not None:
        p = torch.lerp(p, rate[:, None], floor)
    h = torch.ones_like(p) if floor is None else rate[:, None] / p
    drawn = [torch.where(mask, p, 1 - p).prod(1, keepdim=True) * h for mask in learned.masks(TOY.length)]
    return torch.stack(drawn).view(len(drawn), len(RATES), *TOY.states.shape).mean(1)


@pytest.mark.parametrize(
    ("strategy", "floor", "excess"),
    [
        (UniformMasking(), None, 0.0),
        (ImportanceMasking(temperature=1.0), None, 0.0852),
        (ImportanceMasking(temperature=1.0), 0.1, 0.0163),
        (ImportanceMasking(temperature=0.3), 0.1, 0.0378),
        (InverseMasking(temperature=1.0), 0.1, 0.0243),
    ],
    ids=["uniform", "importance", "importance corrected", "importance at 0.3 corrected", "inverse corrected"],
)
def test_the_excess_perplexity_of_masks_that_read_what_they_hide(strategy, floor, excess):
    p, known = learned.conditionals(TOY, weights(strategy, floor))
    assert known.sum() == 8 * sum(range(1, 4)) * 2, "every place of every mask is learned"
    found = math.exp((learned.bound(TOY, p) - TOY.entropy) / 3) - 1
    assert found == pytest.approx(excess, abs=1e-4)
