"""The estimator `kmer`, importance from k-mers, and the mask drawing `kmer`, masks that cover whole k-mers."""

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
    """Importance of a base, learned as one value for each k-mer context.

    The k-mer consists of the tokens of z at `reach` positions on either side, including masks, so k = 2·reach. With the
    target `difficulty`, the estimator learns the expected difficulty of a masked base in this context. It only reads
    visible text, so importance-dependent masks do not bias the model.
    """

    name = "kmer"
    summary = "importance of a base from its visible k-mer context, with a learned table"
    reads: ClassVar[Reads] = "z"
    reads_time: ClassVar[bool] = False
    learns: ClassVar[bool] = True

    reach: int = param(
        3, help="context positions on each side; the table has (vocabulary size + 1)^(2·reach) entries", ge=1, le=16
    )

    def tells_apart(self, trained: bool) -> bool:
        """Return whether tokens can differ in importance: yes, if the estimator is `trained`."""
        return trained  # it starts at ½ everywhere

    def build(self, context: Context) -> nn.Module:
        """Return a `KmerModule`, or raise a `UserError` if its table does not fit in memory."""
        from atat_zoo_genomics.genomic_networks import KmerModule

        numbers = (context.vocabulary_size + 1) ** (2 * self.reach)
        require(4 * numbers, f"estimator.reach = {self.reach}", "its table", "lower reach")
        return KmerModule(context.vocabulary_size, self.reach)


@component
class KmerMaskDrawing:
    """Masks for runs of k tokens that share one uniform random number u: token i is masked if u < p_i.

    Runs are adjacent, and their random offset makes every position within a run equally likely. The marginals are
    exactly p, and the masks at a higher rate contain those at a lower rate. The masks do not depend on the text, so
    they do not bias the model. SpanBERT (Joshi et al., TACL 2020) masks spans, too.
    """

    name = "kmer"
    summary = "masks whole k-mers together, with unchanged marginals"
    refs = ("doi:10.1162/tacl_a_00300",)

    k: int = param(6, help="number of tokens masked together", ge=1, le=1_000_000)

    def __call__(self, p: Tensor, keys: Tensor) -> Tensor:
        """Return a mask, bool [B, L], sampled with probabilities p [B, L] and one key per row, [B]."""
        import torch

        from atat_zoo.diffusion.randomness import fold, to_unit, uniform

        first = (to_unit(fold(keys, 0), torch.float64) * self.k).long()
        run = (torch.arange(p.shape[-1], device=p.device) + first[:, None]) // self.k
        return uniform(fold(keys, 1), (p.shape[-1] - 1) // self.k + 2).gather(-1, run) < p
