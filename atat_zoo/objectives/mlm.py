"""The objective of BERT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context


@component
class MLMObjective:
    """Cross-entropy at a fixed share of masked tokens (Devlin et al., NAACL 2019, section 3.1).

        loss = Σ_rows (n/k) Σ_masked CE / Σ n,   k = rate·n rounded, at least 1

    n is a row's number of maskable tokens, so where all rows are full the loss is the mean over the masked tokens. A
    row gets exactly k masks, as in BERT's own code: none is left without a loss, and the number of logits is known.
    Every chosen token becomes the mask; BERT leaves a tenth as they are and replaces a tenth by others, which a
    denoiser under SUBS never sees.

    Its perplexity is the bound of a denoiser that has seen one mask rate only: valid, and large.
    """

    name = "mlm"
    summary = "cross-entropy at a fixed share of masked tokens, as BERT is trained"
    refs = ("arXiv:1810.04805",)
    uses: ClassVar[frozenset[str]] = frozenset({"backbone"})
    exact: ClassVar[bool] = False
    rate: float = param(0.15, help="share of a sequence's tokens that is masked", gt=0, le=1)

    def check(self, experiment: Experiment) -> Iterator[str]:
        """Yield what does not fit: a backbone that reads t, of which one value would be all it sees."""
        from atat_zoo.objectives.causal import has_no_time

        yield from has_no_time(experiment)

    def build(self, context: Context, parts: Mapping[str, Any], batch_size: int) -> nn.Module:
        """Return an `ObjectiveModule`."""
        from atat_zoo.objectives.mlm_module import MLMModule

        return MLMModule(context, parts, batch_size, share=self.rate)
