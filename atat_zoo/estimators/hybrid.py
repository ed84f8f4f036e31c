"""A learned estimator mixed with a prior."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param, part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from atat_zoo.estimators import Estimator
    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context


@component
class Hybrid:
    """I = mix · learned + (1 − mix) · prior; only the learned part is trained."""

    name = "hybrid"
    summary = "a learned estimator and the frequency prior, mixed 0.7 to 0.3"
    refs = ("ATAT",)
    mix: float = param(0.7, help="share of the learned estimator", ge=0, le=1)
    learned: Estimator = part("estimator", "transformer", help="the estimator that is trained")
    prior: Estimator = part("estimator", "frequency", help="the estimator that it is mixed with")

    def check(self, experiment: Experiment) -> Iterator[str]:
        """Yield what does not fit its parts."""
        for place, inner in (("learned", self.learned), ("prior", self.prior)):
            if hasattr(inner, "check"):
                # The part knows itself as the table `estimator`; here it stands one table further in.
                yield from (text.replace("estimator.", f"estimator.{place}.") for text in inner.check(experiment))

    def build(self, context: Context) -> nn.Module:
        """Return an `EstimatorModule`."""
        from atat_zoo.estimators.hybrid_module import Mix

        return Mix(self.learned.build(context), self.prior.build(context), self.mix)
