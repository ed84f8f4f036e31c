"""A small transformer that learns which tokens are hard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context


@component
class Transformer:
    """Two transformer layers over the clean text, with importance σ(·) for each token.

    It reads the backbone's token embedding through a projection, so it adds
    about 2 % to a backbone of 124M. `own_embedding` gives it an embedding of its
    own, as ATAT's documents have it: 13M parameters at a vocabulary of 50k.
    """

    name = "transformer"
    summary = "two small transformer layers over the backbone's detached embedding"
    refs = ("ATAT",)
    layers: int = param(2, help="transformer layers", ge=1)
    width: int = param(256, help="width of the layers", ge=2)
    heads: int = param(4, help="attention heads", ge=1)
    max_length: int = param(1024, help="longest sequence: the learned positions", ge=1)
    time_conditioning: bool = param(False, help="whether it reads t; a bound for adaptive masks cannot use it then")
    own_embedding: bool = param(False, help="an embedding of its own instead of the backbone's")

    def check(self, experiment: Experiment) -> Iterator[str]:
        """Yield what does not fit: the length, or heads that do not divide the width."""
        if experiment.data.length > self.max_length:
            yield (
                f"data.length = {experiment.data.length} is longer than estimator.max_length = {self.max_length}; "
                "shorten the one or raise the other"
            )
        if self.width % self.heads:
            yield f"estimator.width = {self.width} does not divide into {self.heads} heads; change estimator.heads"

    def build(self, context: Context) -> nn.Module:
        """Return an `EstimatorModule`."""
        from atat_zoo.estimators.transformer_module import TransformerModule

        return TransformerModule(self, context)
