"""Mask drawings, which sample a mask in which each token i is masked with its probability p_i."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import Tensor


class MaskDrawing(Protocol):
    """A component of kind `mask_drawing`: a callable on tensors."""

    name: str

    def __call__(self, p: Tensor, keys: Tensor) -> Tensor:
        """Return a mask, bool [B, L], sampled with probabilities p, float32 [B, L], and one key per row, [B]."""


@component
class BernoulliMaskDrawing(MaskDrawing):
    """Independent masks: token i is masked if u_i < p_i, with u_i uniform in [0, 1).

    u depends only on the key, so for the same key, a higher p_i at every token masks a superset. p = 1 always masks and
    p = 0 never does.
    """

    name = "bernoulli"
    summary = "independent Bernoulli masks; with the same key, a higher rate masks a superset of the tokens"
    refs = ("arXiv:2406.07524",)

    @override
    def __call__(self, p: Tensor, keys: Tensor) -> Tensor:
        from atat_zoo.diffusion.randomness import uniform

        return uniform(keys, p.shape[-1]) < p


@component
class SystematicMaskDrawing(MaskDrawing):
    """Systematic sampling: the marginals are exactly p, and the number of masks is ⌊Σp⌋ or ⌈Σp⌉.

    The tokens are shuffled, and intervals of lengths p are laid end to end on a line. A token is masked if its interval
    contains one of the points u, u + 1, u + 2, … with a single uniform u. Intervals have length at most 1, so none
    contains two points.

    Tokens are not independent, and a higher rate need not mask a superset, so use it for training, never for a bound.
    """

    name = "systematic"
    summary = "systematic sampling: ⌊Σp⌋ or ⌈Σp⌉ masks per sequence, each token with probability p; for training only"
    refs = ("doi:10.1214/aoms/1177729988",)

    @override
    def __call__(self, p: Tensor, keys: Tensor) -> Tensor:
        import torch

        from atat_zoo.diffusion.calibration import comb
        from atat_zoo.diffusion.randomness import fold, to_unit, uniform

        # The first key orders the row and the second positions the comb.
        order = uniform(fold(keys, 0), p.shape[-1], torch.float64).argsort(dim=-1, stable=True)
        start = to_unit(fold(keys, 1), torch.float64)
        chosen = comb(p.gather(-1, order), start)
        return torch.zeros_like(chosen).scatter(-1, order, chosen)
