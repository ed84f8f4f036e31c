"""Rare tokens are important."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component

if TYPE_CHECKING:
    from torch import nn

    from atat_zoo.registry import Context


@component
class Frequency:
    """Importance from the unigram prior of the training shards.

    I(v) = log p(v) / min log p, with one added to every count: 0 would be a
    token that is certain, 1 is a token that was never seen.
    """

    name = "frequency"
    summary = "rare tokens are important: the unigram surprisal over its largest value"
    refs = ()

    def build(self, context: Context) -> nn.Module:
        """Return an `EstimatorModule` without parameters; the table is a buffer of the model."""
        from atat_zoo.estimators.fixed_module import Table, surprisal

        return Table(surprisal(context))
