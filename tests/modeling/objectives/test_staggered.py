"""`staggered` against the probability that its windows give: how often the second of two positions comes first."""

import pytest
import torch

from atat_zoo import Zoo
from atat_zoo.modeling.diffusion.randomness import row_keys

ROWS = 20_000


@pytest.mark.parametrize("window", [0.4, 0.7, 1.0])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_two_positions_come_in_an_order_of_their_windows(window, power):
    """It does if y < x − c: x and y are their times u^(1/k) in a window, which begin c = (1 − w)/(2w) apart."""
    sets = Zoo.load().spec("position_sets", {"use": "staggered", "sets": 2, "window": window, "power": power})
    turns = sets.turns(torch.ones(ROWS, 2, dtype=torch.bool), row_keys(1, "windows", torch.arange(ROWS)), None)
    c, x = (1 - window) / (2 * window), torch.linspace(0, 1, 200_001, dtype=torch.float64)
    # ∫ F(x − c) dF(x), by the distribution function F(x) = x^k
    expected = torch.trapezoid((x - c).clamp(min=0) ** power, x**power).item()
    assert abs((turns[:, 1] == 0).double().mean().item() - expected) < 4.5 * (0.25 / ROWS) ** 0.5
