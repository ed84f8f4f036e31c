"""The draw `categorical`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.steps import Step


@component
class Categorical:
    """An exact draw in float64, by the inverse of the cumulative distribution.

    float32 truncates the tail and so lowers the temperature unasked (Zheng et al., arXiv:2409.02908). One
    float64 uniform a position is as exact as Gumbel-max in float64 and needs V times fewer random numbers.
    """

    name = "categorical"
    summary = "an exact draw in float64, tail included, with a temperature"
    refs = ("arXiv:2409.02908",)
    needs = frozenset[str]()

    temperature: float = param(1.0, help="log-probabilities are divided by it; 0 takes the most probable token", ge=0)

    def __call__(self, log_probs: Tensor, keys: Tensor, step: Step, rows: Tensor) -> Tensor:
        """Return int64 [M]."""
        from atat_zoo.diffusion.categorical import draw

        return draw(log_probs, keys, self.temperature)
