"""The module of the curriculum `learned`. Shapes: B sequences, L tokens, K bins."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.diffusion.contracts import NoisedBatch
from atat_zoo.modeling.curricula import CurriculumModule
from atat_zoo.registry import Context


class LearnedModule(nn.Module, CurriculumModule):
    """The module of `learned`: a log-weight for each difficulty bin."""

    log_weights: Tensor  # θ, float64 [K]

    def __init__(self, context: Context, *, bins: int, sharpness: float) -> None:
        super().__init__()
        self.sharpness = sharpness
        self.varied: int | None = None  # the bin of `derivative`
        self.equal = False  # see `unweighted`
        self.register_buffer("log_weights", torch.zeros(bins, dtype=torch.float64))

    @override
    def stage(self, progress: float) -> str:
        return "learned"

    @override
    def weights(self, noised: NoisedBatch, importance: Tensor, progress: float) -> Tensor:
        masked = noised.masked & noised.maskable
        if self.equal:
            return torch.ones_like(masked, dtype=torch.float32)
        bins, count = self.bins(importance, masked), masked.sum(-1, keepdim=True)
        share = self.log_weights[bins].masked_fill(~masked, -torch.inf).softmax(-1)
        if self.varied is None:
            return torch.where(masked, share * count, 1.0).float()
        own = (bins == self.varied).double()
        change = own - (share * own).sum(-1, keepdim=True)
        return torch.where(masked, share * count * change, 0.0).float()

    def bins(self, importance: Tensor, masked: Tensor) -> Tensor:
        """Return the bin of each masked token, from 0 for the easiest to K − 1, int64 [B, L]; 0 for other tokens."""
        order = importance.double().masked_fill(~masked, torch.inf).argsort(dim=-1, stable=True)
        place = torch.arange(masked.shape[-1], device=masked.device).expand_as(order)
        rank = torch.empty_like(order).scatter_(-1, order, place)
        found = rank * len(self.log_weights) // masked.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(masked, found, 0)

    @contextmanager
    def derivative(self, bin_number: int) -> Iterator[None]:
        """Make `weights` return ∂c/∂θ of one bin in a `with` block, so that the loss is its own derivative by θ."""
        self.varied = bin_number
        try:
            yield
        finally:
            self.varied = None

    @contextmanager
    def unweighted(self) -> Iterator[None]:
        """Make all weights 1 in a `with` block."""
        self.equal = True
        try:
            yield
        finally:
            self.equal = False

    @torch.no_grad()
    def learn(self, change: Tensor) -> None:
        """Add `change` [K], less its mean, to θ within its limits; a change that is not finite is ignored."""
        limit = self.sharpness / 2
        change = change.to(self.log_weights.device).double()
        new = (self.log_weights + change - change.mean()).clamp(-limit, limit)
        self.log_weights.copy_(torch.where(change.isfinite().all(), new, self.log_weights))
