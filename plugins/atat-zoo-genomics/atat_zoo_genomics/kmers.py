"""K-mer importance, and masks of whole k-mers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atat_zoo.registry import component, param
from atat_zoo.system.machine import require

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.modeling.estimators import Reads
    from atat_zoo.registry import Context


@component
class KmerEstimator:
    """Importance of a base as a learned value for the k-mer around it.

    The k-mer consists of the tokens of z at `reach` positions on either side, masks included, so k = 2·reach. With the
    target `difficulty`, it learns the expected loss of a masked base in this context. It only reads visible text, so
    importance-dependent masks do not bias the model.
    """

    name = "kmer"
    summary = "importance of a base from its visible k-mer context, by a learned table"
    reads: ClassVar[Reads] = "z"
    reads_time: ClassVar[bool] = False
    learns: ClassVar[bool] = True

    reach: int = param(3, help="context positions on each side; the table has (V + 1)^(2·reach) entries", ge=1, le=16)

    def tells_apart(self, trained: bool) -> bool:
        """See `Estimator`."""
        return trained  # it starts at ½ everywhere

    def build(self, context: Context) -> nn.Module:
        """See `Estimator`."""
        from atat_zoo_genomics.genomic_networks import KmerModule

        numbers = (context.vocabulary_size + 1) ** (2 * self.reach)
        require(4 * numbers, f"estimator.reach = {self.reach}", "its table", "lower it")
        return KmerModule(context.vocabulary_size, self.reach)


@component
class KmerMaskDrawing:
    """Masks runs of k tokens that share one uniform u: a token is masked where u < p.

    Runs are adjacent, and their random offset makes every place in a run equally likely. The marginals are exactly p,
    and the masks of a higher rate contain those of a lower one. The drawing does not depend on the text, so it does not
    bias the model (Joshi et al., TACL 2020, mask spans of text).
    """

    name = "kmer"
    summary = "masks whole k-mers together, with the same marginals"
    refs = ("doi:10.1162/tacl_a_00300",)

    k: int = param(6, help="k, tokens masked together", ge=1, le=1_000_000)

    def __call__(self, p: Tensor, keys: Tensor) -> Tensor:
        """See `MaskDrawing`."""
        import torch

        from atat_zoo.diffusion.randomness import fold, to_unit, uniform

        first = (to_unit(fold(keys, 0), torch.float64) * self.k).long()
        run = (torch.arange(p.shape[-1], device=p.device) + first[:, None]) // self.k
        return uniform(fold(keys, 1), (p.shape[-1] - 1) // self.k + 2).gather(-1, run) < p
