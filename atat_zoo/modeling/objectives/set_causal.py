"""The objectives of set-causal models, which predict each position from the tokens of all earlier position sets."""

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
    """Cross-entropy of every free token given the tokens of all earlier steps; x_i has step c_i, −1 if it is given.

        loss = Σ_{i free} w_i · −log p_θ(x_i | x_k, c_k < c_i) / Σ maskable

    The steps come from the component `position_sets`. In a fraction of the sequences, some tokens are given: the
    beginning (`prompt_share`), all but a gap (`gap_share`), or a random subset of random size, both uniform
    (`subset_share`), so one model generates from scratch, continues prompts and fills gaps.

    The input at position i is x_{i−1}, as in next-token prediction, or the mask if x_{i−1} does not come before x_i.
    Its output predicts x_i if x_i is free. Token x_k is readable from step c_k + 1 on. If the input at position k + 1
    has exactly this step, it provides x_k; otherwise, an extra input at that position provides x_k and predicts
    nothing. An input attends to itself and to the inputs of tokens whose step is not later than its own, so no
    prediction reads a token from its own or a later step. The start, a mask before the first token, is treated as
    given, so every input attends to a token. If the sets are `ascending` and no random subset is given, only the last
    token needs an extra input, and one forward pass trains all positions.

    Every prediction has its own context and, without a curriculum, weight 1. An estimator such as `transformer` reads
    the sequence before a randomly drawn step and learns the difficulty of the tokens in that step, and the curriculum
    weights all tokens that are still masked, so both depend only on visible tokens. The NLL in the order of the sets
    (a bound if they are random) is reported as `sets`; the perplexity comes from the bound under uniform masking, as
    for `mdlm`, with all visible tokens given.
    """

    name = "set_causal"
    summary = "set-causal: predicts each position set from earlier ones; exact likelihood in a given order"
    refs = ("arXiv:2607.01775", "arXiv:2205.13554")
    network = "atat_zoo.modeling.objectives.set_causal_module:PositionSetsModule"
    hub_form = "turns"
    uses = frozenset({"backbone", "position_sets", "estimator", "curriculum", "target"})
    shifted = masks_attention = True
    importance_reads = "z"
    prompt_share: float = param(0.2, help="fraction of sequences that begin with a given prompt", ge=0, le=1)
    gap_share: float = param(0.2, help="fraction of sequences with a gap to infill", ge=0, le=1)
    subset_share: float = param(0.0, help="fraction of sequences with a random subset of tokens given", ge=0, le=1)
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
        """Yield a problem if the fractions exceed 1, the estimator reads x or t, or the backbone reads t."""
        total = self.prompt_share + self.gap_share + self.subset_share
        if total > 1 + 1e-9:
            yield Problem(
                "objective",
                f"prompt_share, gap_share and subset_share add up to {total:g}, which is more than 1; lower them",
            )
        estimator, sets = experiment.parts["estimator"], experiment.parts["position_sets"]
        weighs = not isinstance(experiment.parts["curriculum"], NoCurriculum)
        if estimator.reads != "z" and (estimator.learns or weighs or sets.reads_importance):
            yield Problem(
                "estimator",
                f"objective {self.name!r} needs importance that depends only on visible tokens, but "
                f'{estimator.name!r}, as configured, reads the clean sequence; set estimator.use = "transformer" '
                'and estimator.reads = "z"',
            )
        if estimator.reads_time:
            yield Problem(
                "estimator.time_conditioning",
                f"objective {self.name!r} has no diffusion time; set time_conditioning to false",
            )
        yield from has_no_time(experiment)


@component
class StridedCausalObjective(Objective):
    """Cross-entropy of every token given the tokens of all earlier steps; token number j has step j mod s.

        loss = Σ_i −log p_θ(x_i | x_k, c_k < c_i) / Σ maskable,   i maskable

    This is `set_causal` with `strided` position sets and no given tokens. One forward pass gives the exact likelihood
    in the model's only order, and thus the perplexity. Generation takes s forward passes for any length. The tokens of
    a step are sampled independently but are s positions apart, so little is lost. With s = L, it equals
    `autoregressive`, except that it also reads tokens that are not maskable. It accepts prompts and gaps but, unlike
    `set_causal`, is not trained on them.
    """

    name = "strided_causal"
    summary = "set-causal with one fixed strided order; exact likelihood"
    exact = True
    shifted = masks_attention = True
    network = "atat_zoo.modeling.objectives.set_causal_module:StridedModule"
    hub_form = "turns"
    uses = frozenset({"backbone"})
    stride: int = param(16, help="s, number of decoding steps; the maximum, data.length, goes left to right", ge=1)

    @override
    def factorisations(self, experiment: Experiment) -> Mapping[str, str]:
        return {"nelbo": f"{self.stride} steps, exact"}

    @override
    def network_input(self, experiment: Experiment) -> tuple[int, int]:
        once = experiment.data.format == "text"
        return experiment.train.batch_size, (1 if once else 2) * experiment.data.length + 1

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the stride exceeds the length, or the sampler's order differs from the learned one."""
        length, order = experiment.data.length, experiment.parts["sampler"]
        if self.stride > length:
            yield Problem("objective.stride", f"{self.stride} is more than data.length = {length}; lower the stride")
        learned = {"stride": self.stride, "offset": "none"}
        if {key: getattr(order, key, None) for key in learned} != learned:
            yield Problem(
                "sampler",
                f"objective 'strided_causal' learns one order, in {self.stride} steps, but the sampler "
                f"{order.name!r}, as configured, uses a different one; "
                f'set it to {{use = "strided", stride = {self.stride}}}',
            )
        yield from has_no_time(experiment)
        yield from has_own_bound(experiment)
