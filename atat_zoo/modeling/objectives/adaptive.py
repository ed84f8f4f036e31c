"""The objective `adaptive`: masked diffusion in an order that depends on the clean sequence, with its own bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from atat_zoo.modeling.masking.position_bias import PositionBias
from atat_zoo.modeling.objectives import Objective
from atat_zoo.registry import component, component_param, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from atat_zoo.experiment import Experiment


@component
class AdaptiveObjective(Objective):
    """Masked diffusion with forward weights w_i(x), learned reverse weights ŵ_i(z), and a likelihood bound for both.

        log w_i = −(I_i − ½)/T − s · (bias_i − mean bias) + φ_i

    A token with a large w is unmasked early, so important tokens and those with a large bias stay masked longest. I is
    the estimator's importance for the clean sequence, and φ is a learned weight per position. The model sees only z and
    predicts p_θ and ŵ, the weights for choosing the next position. A small head on the same hidden states learns the
    component of ŵ that does not depend only on the position. The bound accounts for the information about x in the
    order, log (w_i/W_M)/(ŵ_i/Ŵ_M), where W_M sums w over the masked tokens, so it is valid for any w.

        loss = (Σ_masked c_i · CE_i + λ · Σ_masked n (w_i/W_M) log (w_i/W_M)/(ŵ_i/Ŵ_M)) / Σ maskable

    c is set by `weight`, and n is the number of maskable tokens. The weight in the bound itself, n·w_i/W_M, puts almost
    all of the gradient on the next one or two tokens if the order is sharp. The estimator is trained towards the
    experiment's target or, with `learn_importance`, with the gradient of the bound, using a leave-one-out baseline over
    several masks of the same sequence; φ is trained with this gradient too. The bound is reported as `adaptive`, in
    addition to the bound under uniform masking, whose exponential is perplexity (any-order ELBO).
    """

    name = "adaptive"
    summary = "masks that depend on the sequence, a learned reverse order, and a bound that accounts for both"
    refs = ("arXiv:2602.02112", "arXiv:2406.04329", "arXiv:2406.07524", "ATAT")
    network = "atat_zoo.modeling.objectives.adaptive_module:AdaptiveModule"
    hub_form = "masked"
    uses = frozenset({"backbone", "noise", "estimator", "target"})
    learns_order = True

    form: Literal["order", "timed"] = param(
        "order", help="what the bound covers. order: the order only; timed: the order and the unmasking times"
    )
    temperature: float = param(1.0, help="T, temperature; at small T, importance decides the order", ge=1e-6, le=1e9)
    bias: PositionBias = component_param(
        "position_bias", "flat", help="position bias: positions whose tokens stay masked longer"
    )
    strength: float = param(1.0, help="s, weight of the bias; a negative weight reverses it", ge=-1e3, le=1e3)
    learn_importance: bool = param(
        False, help="train the estimator with the gradient of the bound instead of the loss against the target"
    )
    learn_position: bool = param(False, help="learn φ, a weight per position, with the gradient of the bound")
    mask_samples: int | None = param(
        None,
        help="K, masks per sequence and step; default: 2 if the bound trains the estimator or φ, else 1",
        ge=1,
        le=64,
    )
    weight: Literal["bound", "nelbo", "simple"] = param(
        "simple", help="c, loss weight. bound: the weight in the bound; nelbo: 1/mask rate; simple: 1"
    )
    reverse_loss_weight: float = param(1.0, help="λ, weight of the loss for the reverse weights", ge=0)
    importance_loss_weight: float = param(0.1, help="weight of the loss for the estimator and φ", ge=0)

    def __attrs_post_init__(self) -> None:
        if self.learns and self.mask_samples == 1:
            raise ValueError("mask_samples must be at least 2 if learn_importance or learn_position is true")

    @property
    @override
    def reads_importance(self) -> bool:
        # At temperature 1 the objective also works with constant importance.
        return self.temperature != 1

    @property
    def learns(self) -> bool:
        """Whether the gradient of the bound trains the estimator or φ."""
        return self.learn_importance or self.learn_position

    @property
    def repeats(self) -> int:
        """K, the number of masks per sequence in a training step."""
        return self.mask_samples or (2 if self.learns else 1)

    @override
    def network_input(self, experiment: Experiment) -> tuple[int, int]:
        return self.repeats * experiment.train.batch_size, experiment.data.length

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the estimator reads z or t, or should learn from the bound but has no parameters."""
        estimator = experiment.parts["estimator"]
        if estimator.reads != "x":
            yield Problem(
                "estimator",
                "objective 'adaptive' draws the order from the importance of the clean tokens, but this "
                'estimator reads the masked sequence; set estimator.use = "transformer" and estimator.reads = "x"',
            )
        if estimator.reads_time:
            yield Problem(
                "estimator",
                "objective 'adaptive' draws the order before the diffusion time, but this estimator reads "
                "the time; set the estimator's time_conditioning to false",
            )
        if self.learn_importance and not estimator.learns:
            yield Problem(
                "objective.learn_importance",
                f"estimator {estimator.name!r} has nothing to learn; "
                'set estimator.use = "transformer", or learn_importance = false',
            )
