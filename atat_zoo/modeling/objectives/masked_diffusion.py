"""The objectives of masked diffusion in any order: mdlm, mlm, sedd, d3pm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from atat_zoo.modeling.masking import StepwiseMasking, VisibleTextMasking
from atat_zoo.modeling.masking.mask_drawing import BernoulliMaskDrawing
from atat_zoo.modeling.objectives import Objective
from atat_zoo.modeling.objectives.causal import OMEGA, has_no_time, infinite_weights
from atat_zoo.registry import component, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from atat_zoo.experiment import Experiment


@component
class MDLMObjective(Objective):
    """Weighted cross-entropy at masked tokens under SUBS (Sahoo et al., NeurIPS 2024).

        loss = Σ_masked c_i · h_i · ω · CE_i / Σ maskable

    ω is the NELBO weight 1/(r·f(r)), where f is the density of the mask rates, or 1; h_i is 1 or r/p_i
    (Horvitz–Thompson); c_i is the curriculum's weight. The importance estimator is trained at the same time, towards
    the experiment's target; with `visible_loss_weight`, the network also learns to copy visible tokens, whose mean
    cross-entropy without SUBS is added. An estimator that reads z does not affect masking by probabilities; it scores
    tokens for masking strategies such as `reveal`, and the curriculum uses its importance for the final z. The loss
    estimates the NELBO only for uniform masking with `nelbo` weights, for any mask rates. The reported bound is always
    computed separately, under uniform masking.
    """

    name = "mdlm"
    summary = "MDLM: cross-entropy at masked tokens, optionally with importance masking, a curriculum and a correction"
    refs = ("arXiv:2406.07524", "ATAT")
    network = "atat_zoo.modeling.objectives.denoising:MDLMModule"
    separates_documents = True
    hub_form = "masked"
    uses = frozenset(
        {"backbone", "noise", "mask_rates", "estimator", "masking", "mask_drawing", "curriculum", "target"}
    )
    weight: Literal["nelbo", "simple"] = param("nelbo", help=OMEGA)
    correction: Literal["none", "horvitz_thompson"] = param(
        "none",
        help="h, correction for non-uniform masking: none, or r/p, which gives every token the same marginal weight",
    )
    floor: float = param(0.1, help="ε of the correction: p becomes (1−ε)p + εr, so that r/p ≤ 1/ε", gt=0, le=1)
    importance_loss_weight: float = param(0.1, help="λ, weight of the importance estimator's loss", ge=0)
    visible_loss_weight: float = param(
        0.0, help="weight of the cross-entropy of visible tokens without SUBS; the ATAT report averages over all", ge=0
    )

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem for NELBO weights of infinite variance, or masking that does not fit other components."""
        yield from infinite_weights(experiment)
        masking, estimator = experiment.parts["masking"], experiment.parts["estimator"]
        if isinstance(masking, VisibleTextMasking | StepwiseMasking):
            unread = isinstance(masking, StepwiseMasking) and not masking.reads_importance
            if estimator.reads != "z" and not unread:
                yield Problem(
                    "masking",
                    f"{masking.name!r} needs the importance of masked tokens, but estimator {estimator.name!r} "
                    'reads the clean sequence; set estimator.use = "transformer" and estimator.reads = "z"',
                )
            if self.correction == "horvitz_thompson":
                yield Problem(
                    "objective.correction",
                    f"masking {masking.name!r} has no masking probabilities and needs no correction; "
                    'set correction to "none"',
                )
            if not isinstance(experiment.parts["mask_drawing"], BernoulliMaskDrawing):
                yield Problem(
                    "mask_drawing", f"masking {masking.name!r} draws its masks itself; leave mask_drawing out"
                )
        elif estimator.reads == "z" and masking.direction:
            yield Problem(
                "masking",
                f"{masking.name!r} needs the importance of the clean sequence, but the estimator reads "
                'the masked sequence; set masking.use to "reveal" or "uniform", or the estimator\'s reads to "x"',
            )

    @override
    def logit_share(self, mask_rate: float) -> float:
        return 1.0 if self.visible_loss_weight else mask_rate


@component
class MLMObjective(Objective):
    """Cross-entropy at a fixed fraction of masked tokens (Devlin et al., NAACL 2019, section 3.1).

        loss = Σ_rows (n/k) Σ_masked CE / Σ n,   k = rate·n rounded, at least 1

    n is a row's number of maskable tokens, so without padding the loss is the mean over the masked tokens. A row gets
    exactly k masks, as in BERT's code: every row has a loss, and the number of logits is known. Every chosen token is
    masked; BERT leaves a tenth of them unchanged and replaces a tenth with other tokens. A denoiser under SUBS never
    sees such inputs.

    Its perplexity is a valid but loose bound, because the denoiser is trained at one mask rate only.
    """

    name = "mlm"
    summary = "BERT's masked language modelling: cross-entropy at a fixed mask rate"
    refs = ("arXiv:1810.04805",)
    network = "atat_zoo.modeling.objectives.masked_diffusion_module:MLMModule"
    separates_documents = True
    hub_form = "masked"
    uses = frozenset({"backbone"})
    rate: float = param(0.15, help="mask rate", gt=0, le=1)

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the backbone reads t, since the mask rate never changes."""
        yield from has_no_time(experiment)


@component
class SEDDObjective(Objective):
    """Score entropy of the absorbing process (Lou et al., ICML 2024, equation 7 and section 4.2).

    The network models the ratios s_y ≈ p_t(z with y at position i) / p_t(z) at masked positions. With ρ = α/(1 − α)
    their true value given x is ρ·1[y = x], so the head gives f with s_y = ρ e^{f_y}. A mask is entered at rate
    σ = −α'/α, and with K(a) = a (log a − 1) and S = Σ_y e^{f_y} the loss of a masked position is

        σ Σ_y [ s_y − ρ 1[y = x] log s_y + K(ρ 1[y = x]) ]  =  σρ [ S − f_x − 1 ]  =  ω [ CE + (S − 1 − log S) ]

    where ω = σρ = −α'/(1 − α) is the weight of `mdlm` and CE is the cross-entropy of softmax f. The loss is therefore
    that of `mdlm` plus a nonnegative penalty for not being normalised. A constant offset makes S = 1 before training.

    Its perplexity is that of p_θ = softmax f under uniform masking; the paper's bound, with the penalty, is
    reported as `sedd`.
    """

    name = "sedd"
    summary = "SEDD: score entropy with an absorbing state"
    refs = ("arXiv:2310.16834",)
    network = "atat_zoo.modeling.objectives.masked_diffusion_module:SEDDModule"
    separates_documents = True
    hub_form = "masked"
    uses = frozenset({"backbone", "noise", "mask_rates"})
    weight: Literal["nelbo", "simple"] = param("nelbo", help=OMEGA)

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if NELBO weights have infinite variance under the mask-rate distribution."""
        yield from infinite_weights(experiment)


@component
class D3PMObjective(Objective):
    """The variational bound of T absorbing steps, x₀-parametrised (Austin et al., NeurIPS 2021, sections 3.3 and 3.4).

    The network predicts p̃_θ(x_0 | z) over V + 1 outcomes, which include the mask, with probability μ. The reverse step
    is p_θ(x_s | x_t) = Σ_{x_0} q(x_s | x_t, x_0) p̃_θ(x_0 | z). With t = i/T, s = (i − 1)/T and the probability
    β = (α_s − α_t)/(1 − α_t) that a masked token is revealed, the loss of a masked position is

        KL(q(x_s | x_t, x) ‖ p_θ(x_s | x_t)) = −β log p̃_θ(x) + (1 − β) log[(1 − β) / (1 − β(1 − μ))]

    and that of a visible position is 0. The paper's equation 4 also weights each x_0 by q(x_t | x_0), which shifts the
    mask's logit by −log(1 − α_t); without this shift, μ has the same meaning at every t. The KL is smallest at μ = 0,
    where it is β times the cross-entropy, so T → ∞ gives `mdlm`. The mask's logit is initialised so that μ = 1/(V + 1),
    the probability of a token in a uniform prediction: small, because μ can only increase the loss, but large enough
    for a gradient.

    Its perplexity is that of p̃_θ renormalised over the V tokens, under uniform masking; if the schedule goes from
    α = 1 to α = 0, the paper's own bound is reported as `d3pm`.
    """

    name = "d3pm"
    summary = "D3PM: absorbing diffusion with T steps; variational bound plus cross-entropy"
    refs = ("arXiv:2107.03006",)
    network = "atat_zoo.modeling.objectives.masked_diffusion_module:D3PMModule"
    separates_documents = True
    hub_form = "masked"
    uses = frozenset({"backbone", "noise"})
    steps: int = param(1000, help="T, number of diffusion steps", ge=1)
    weight: Literal["nelbo", "simple"] = param(
        "nelbo",
        help="nelbo: T(KL + λ·CE), which estimates the bound; simple: KL/β + λ·CE, equal weight for every masked token",
    )
    auxiliary: float = param(
        0.001, help="λ, weight of the auxiliary cross-entropy; the paper uses 0.001 for CIFAR-10", ge=0
    )
