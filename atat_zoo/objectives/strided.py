"""The objective of models that write a text class by class: position i is of class i mod s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.data import is_framed
from atat_zoo.errors import Problem
from atat_zoo.objectives import Objective
from atat_zoo.objectives.causal import has_no_time, has_own_bound
from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atat_zoo.experiment import Experiment


@component
class StridedObjective(Objective):
    """Cross-entropy of every token given the tokens of all earlier classes; token i is of class c(i) = i mod s.

        loss = Σ_i −log p_θ(x_i | x_k, c(k) < c(i)) / Σ maskable,   i maskable

    The tokens of a class are drawn apart, and lie s positions apart, so that little is lost by it; a text of any length
    is written in s evaluations. Position i reads x_{i−1}, and the mask where its class is 0, for x_{i−1} is then of the
    last class. It attends to position k if c(k) ≤ c(i). So it sees all earlier classes, for x_k is read by position k +
    1, whose class is c(k) + 1, and no other token. The last token of a text is not read by any: where s divides L it is
    of the last class, and nothing is lost.

    Every token has weight 1, and the likelihood is exact in one pass, without draws. With s = L it is `autoregressive`.
    A given token is seen only by later classes, so texts are written without prompts and gaps; see the sampler
    `strided`.
    """

    name = "strided"
    summary = "classes of positions i mod s in turn; its likelihood is exact, and a text takes s evaluations"
    exact = True
    shifted = masks_attention = True
    module = "atat_zoo.objectives.strided_module:StridedModule"
    uses = frozenset({"backbone"})
    stride: int = param(16, help="s, the number of classes; at most data.length, where it is autoregressive", ge=1)

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems: the stride, or a choice that does not fit a model that writes class by class."""
        length, sampler = experiment.data.length, experiment.parts["sampler"]
        if self.stride > length:
            yield Problem("objective.stride", f"{self.stride} is more than data.length = {length}; lower it")
        if not sampler.classwise:
            yield Problem(
                "sampler",
                f"objective 'strided' writes the positions i mod {self.stride} in turn, and {sampler.name!r} "
                'has another order; use = "strided"',
            )
        elif sampler.stride not in (None, self.stride):
            yield Problem(
                "sampler.stride",
                f"{sampler.stride} is not objective.stride = {self.stride}; leave it out, and it is the model's",
            )
        if is_framed(experiment.data.special):
            yield Problem(
                "data.special",
                "objective 'strided' does not see a given token of a later class, and EOS is given at "
                'the end of every text; set it to "document" or "none"',
            )
        yield from has_no_time(experiment)
        yield from has_own_bound(experiment)
