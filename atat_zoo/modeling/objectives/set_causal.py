"""The objectives of set-causal models: every position from the tokens of all earlier position sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from atat_zoo.modeling.curricula import NoCurriculum
from atat_zoo.modeling.objectives import Objective
from atat_zoo.modeling.objectives.causal import has_no_time, has_own_bound
from atat_zoo.registry import component, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from atat_zoo.experiment import Experiment


@component
class SetCausalObjective(Objective):
    """Cross-entropy of every free token given the tokens of all earlier steps c; those of step −1 are given.

        loss = Σ_{i free} w_i · −log p_θ(x_i | x_k, c_k < c_i) / Σ maskable

    The steps are those of the part `position_sets`. In a share of the rows tokens are given: the beginning of the text
    (`prompts`), all but a gap (`gaps`), or a uniformly random subset of uniformly random size (`subsets`), so that one
    model writes whole texts, continues prompts and fills gaps.

    The network reads inputs: the one at position i carries x_{i−1}, as in next-token prediction, or the mask if that
    token comes no earlier than x_i, and predicts x_i where it is free. Token x_k can be read from step c_k + 1 on. Its
    input is the one at position k + 1, if that one's step is this; for all other tokens that a later step may read,
    there is another input at that position, which predicts nothing. An input sees the inputs of tokens whose step
    is not later than its own, and itself; so no prediction reads a token of its own or of a later step. The mask before
    the first token, the start, counts as a token that is given, so that every input sees one. In sets that are
    `ascending` no other inputs are needed, but for the last token, if no random subset is given: one pass over the
    text trains them all.

    Every prediction has a context of its own and, without a curriculum, weight 1. An estimator reads the text as it
    stands before a step that is drawn for each row: it learns how hard the tokens of that step are, and the curriculum
    weighs all that are still masked, so both know only what is visible to them. The exact likelihood of the sets is
    reported as the bound `sets`; the perplexity is the bound under uniform masking, as for `mdlm`, of p_θ with all
    visible tokens given.
    """

    name = "set_causal"
    summary = "set-causal: predicts each position set from earlier ones; exact likelihood, also with prompts and gaps"
    refs = ("arXiv:2607.01775", "arXiv:2205.13554")
    network = "atat_zoo.modeling.objectives.set_causal_module:PositionSetsModule"
    hub_form = "turns"
    uses = frozenset({"backbone", "position_sets", "estimator", "curriculum", "target"})
    shifted = masks_attention = True
    importance_reads = "z"
    prompt_share: float = param(0.2, help="fraction of sequences with a given prompt", ge=0, le=1)
    gap_share: float = param(0.2, help="fraction of sequences with a gap to infill", ge=0, le=1)
    subset_share: float = param(0.0, help="fraction of sequences with a random given subset", ge=0, le=1)
    importance_loss_weight: float = param(0.1, help="λ, weight of the importance estimator's loss", ge=0)

    @override
    def factorisations(self, experiment: Experiment) -> Mapping[str, str]:
        exactly = "exact" if experiment.parts["position_sets"].deterministic else "bound"
        return {**super().factorisations(experiment), "sets": f"own position sets, {exactly}"}

    @override
    def network_input(self, experiment: Experiment) -> tuple[int, int]:
        once = experiment.parts["position_sets"].ascending and not self.subset_share  # else it is at most twice as many
        once = once and experiment.data.format == "text"
        return experiment.train.batch_size, (1 if once else 2) * experiment.data.length + 1

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems: shares above 1, an estimator that reads the clean text, or one that reads a time."""
        total = self.prompt_share + self.gap_share + self.subset_share
        if total > 1 + 1e-9:
            yield Problem("objective", f"prompts + gaps + subsets = {total:g} is more than all rows; lower them")
        estimator, sets = experiment.parts["estimator"], experiment.parts["position_sets"]
        weighs = not isinstance(experiment.parts["curriculum"], NoCurriculum)
        if estimator.reads != "z" and (estimator.learns or weighs or sets.reads_importance):
            yield Problem(
                "estimator",
                f"objective {self.name!r} weighs and orders tokens by what is visible before them, and "
                f'{estimator.name!r}, as it is set, reads the clean text; set estimator.use = "transformer" and its '
                'reads to "z"',
            )
        if estimator.reads_time:
            yield Problem(
                "estimator.time_conditioning",
                f"objective {self.name!r} has no diffusion time to tell it; set it to false",
            )
        yield from has_no_time(experiment)


@component
class StridedCausalObjective(Objective):
    """Cross-entropy of every token given the tokens of all earlier steps; token number j has step j mod s.

        loss = Σ_i −log p_θ(x_i | x_k, c_k < c_i) / Σ maskable,   i maskable

    `sets` of the one kind `strided`, with nothing given: then the likelihood of the model's only order is exact in one
    pass, without draws, and is what perplexity is of. The tokens of a step are drawn apart, and lie s positions apart,
    so that little is lost by it; a text of any length is written in s evaluations. With s = L it reads what
    `autoregressive` does, and what is not maskable. It can be told a prompt or what stands around a gap, but has not
    learned from such rows, as `sets` does.
    """

    name = "strided_causal"
    summary = "set-causal with one fixed strided order; exact likelihood"
    exact = True
    shifted = masks_attention = True
    network = "atat_zoo.modeling.objectives.set_causal_module:StridedModule"
    hub_form = "turns"
    uses = frozenset({"backbone"})
    stride: int = param(16, help="s, the number of decoding steps; at most data.length, which is left to right", ge=1)

    @override
    def factorisations(self, experiment: Experiment) -> Mapping[str, str]:
        return {"nelbo": f"{self.stride} steps, exact"}

    @override
    def network_input(self, experiment: Experiment) -> tuple[int, int]:
        once = experiment.data.format == "text"
        return experiment.train.batch_size, (1 if once else 2) * experiment.data.length + 1

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems: the stride, or a sampler of another order than the only one that is learned."""
        length, order = experiment.data.length, experiment.parts["sampler"]
        if self.stride > length:
            yield Problem("objective.stride", f"{self.stride} is more than data.length = {length}; lower it")
        learned = {"stride": self.stride, "offset": "none"}
        if {key: getattr(order, key, None) for key in learned} != learned:
            yield Problem(
                "sampler",
                f"objective 'strided_causal' learns one order, in {self.stride} steps, and the sampler is "
                f"{order.name!r}; "
                f'set it to {{use = "strided", stride = {self.stride}}}',
            )
        yield from has_no_time(experiment)
        yield from has_own_bound(experiment)
