"""Curricula whose weights depend on the text with masks alone: they tilt nothing that is learned.

See docs/mathematics.md, "Masks by visible tokens".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from atat_zoo.errors import Problem
from atat_zoo.modeling.curricula import StatelessCurriculum
from atat_zoo.modeling.diffusion.contracts import NoisedBatch
from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.experiment import Experiment


@component
class ContextAdaptiveCurriculum(StatelessCurriculum):
    """A token weighs more, the more visible tokens are near it: CART, of Dream 7B (Ye et al., arXiv:2508.15487).

        c_i ∝ ε + (1 − ε) · Σ_{j visible, j ≠ i} ½ p (1 − p)^{|i − j| − 1}

    The sum is the share of the neighbourhood that is visible, by a geometric distribution to either side: 1 in the
    middle of a visible text. The floor ε, which CART does not have, keeps tokens without visible neighbours in the
    loss. As for any curriculum, the mean over the maskable tokens of a row is 1.
    """

    name = "context_adaptive"
    summary = "masked tokens with visible neighbours weigh more, by geometric weights of the distance"
    refs = ("arXiv:2508.15487",)

    sharpness: float = param(0.3, help="p of the geometric distribution: the larger, the nearer", gt=0, le=1)
    floor: float = param(0.1, help="ε, weight of a token without visible neighbours; 1 weighs all alike", gt=0, le=1)

    @override
    def weights(self, noised: NoisedBatch, importance: Tensor, progress: float) -> Tensor:
        import torch

        maskable = noised.maskable
        position = torch.arange(maskable.shape[1], device=maskable.device, dtype=torch.float64)
        distance = (position[:, None] - position).abs()
        near = 0.5 * self.sharpness * (1 - self.sharpness) ** (distance - 1).clamp(min=0)
        visible = (maskable & ~noised.masked).double()
        share = visible @ near.fill_diagonal_(0.0)
        weights = self.floor + (1 - self.floor) * share
        mean = (weights * maskable).sum(-1, keepdim=True) / maskable.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(maskable, weights / mean, 1.0).float()


@component
class PlannerAwareCurriculum(StatelessCurriculum):
    """The masked tokens that the sampler `policy` would draw next weigh more (Peng et al., arXiv:2509.23405).

        c_i = (1 − a) + a · k · softmax_j(∓I_j / T)_i   over the k masked tokens of a row, and 1 elsewhere

    I is the importance by an estimator that reads z, the minus for `first = "easy"`. Published for the model's own
    confidence as the planner; here the planner is the estimator, in the loss as in the order of the sampler.
    """

    name = "planner_aware"
    summary = "the masked tokens that the sampler policy would draw next weigh more"
    reads_importance = True
    refs = ("arXiv:2509.23405",)

    first: Literal["easy", "hard"] = param("easy", help="which tokens the sampler draws first")
    share: float = param(0.5, help="a, share of the weight that follows the planner", ge=0, lt=1)
    temperature: float = param(0.3, help="T: small puts the share on the next token alone", ge=1e-3, le=1e9)

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a sentence if the estimator reads the clean text."""
        if experiment.parts["estimator"].reads != "z":
            yield Problem(
                "curriculum",
                f"{self.name!r} weighs tokens by how hard they are when hidden, and the estimator "
                'reads the clean text; set estimator.use = "transformer" and its reads to "z"',
            )

    @override
    def weights(self, noised: NoisedBatch, importance: Tensor, progress: float) -> Tensor:
        import torch

        sign = -1 if self.first == "easy" else 1
        masked = noised.masked & noised.maskable
        scores = (importance.double() * (sign / self.temperature)).masked_fill(~masked, -torch.inf)
        planned = scores.softmax(-1) * masked.sum(-1, keepdim=True)
        return torch.where(masked, 1 - self.share + self.share * planned, 1.0).float()
