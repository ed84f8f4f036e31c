"""Importance by the k-mer that is visible around a position."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atat_zoo.registry import component, param
from atat_zoo.system.machine import require

if TYPE_CHECKING:
    from torch import nn

    from atat_zoo.modeling.estimators import Reads
    from atat_zoo.registry import Context


@component
class KmerEstimator:
    """One learned number for each k-mer around a place: how hard the base within it is.

    The k-mer is what z shows at `reach` positions on either side, with masks as a letter of their own, so k is twice
    the reach and the position itself is left out. With the target `difficulty` it learns how hard a hidden base is in
    this context. It reads the visible text alone, so nothing that follows from it tilts what the model learns.
    """

    name = "kmer"
    summary = "how hard a base is by the k-mer that is visible around it, from a learned table"
    reads: ClassVar[Reads] = "z"
    reads_time: ClassVar[bool] = False
    learns: ClassVar[bool] = True

    reach: int = param(3, help="positions on either side; the table has (V + 1)^(2·reach) numbers", ge=1, le=16)

    def tells_apart(self, trained: bool) -> bool:
        """See `Estimator`."""
        return trained  # it starts at ½ everywhere

    def build(self, context: Context) -> nn.Module:
        """See `Estimator`."""
        from atat_zoo_genomics.kmers import KmerModule

        numbers = (context.vocabulary_size + 1) ** (2 * self.reach)
        require(4 * numbers, f"estimator.reach = {self.reach}", "its table", "lower it")
        return KmerModule(context.vocabulary_size, self.reach)
