"""The components: the curriculum `learned`, and the algorithm `look_ahead`, which learns its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from atat_zoo.modeling.curricula import Curriculum
from atat_zoo.modeling.masking import StepwiseMasking
from atat_zoo.registry import component, param
from atat_zoo.system.errors import Problem
from atat_zoo.training.algorithms import Algorithm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from composer import Algorithm as ComposerAlgorithm

    from atat_zoo.experiment import Experiment


@component
class LearnedCurriculum(Curriculum):
    """Loss weights of difficulty bins, learned from the gradient of the loss on held-out text.

    The k masked tokens of a sequence are ranked by importance and divided into bins of nearly equal size. With a
    log-weight θ for each bin, a masked token i in bin b(i) weighs

        c_i = k · exp(θ_b(i)) / Σ_j exp(θ_b(j))

    and all other tokens weigh 1. The algorithm `look_ahead` learns θ, which starts at 0: no curriculum. The importance
    must come from an estimator that reads z, the masked sequence. The weights then depend only on visible tokens, so
    they do not bias the model.
    """

    name = "learned"
    summary = "loss weights of difficulty bins, learned by the algorithm `look_ahead`"
    network = "atat_zoo_learned_curriculum.curriculum_weights:LearnedModule"
    reads_importance = True
    refs = ("arXiv:1803.09050", "arXiv:1703.03400")

    bins: int = param(3, help="number of difficulty bins", ge=2, le=100)
    sharpness: float = param(
        2.0, help="s, limit of the weights: those of two bins differ by a factor of at most exp(s)", gt=0, le=50
    )

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the weights would bias the model, or if nothing learns them."""
        if experiment.parts["estimator"].reads != "z":
            yield Problem(
                "curriculum",
                f"{self.name!r} needs the importance of masked tokens, but the estimator reads the clean sequence; "
                'set estimator.use = "loss_prediction", or estimator.use = "transformer" and estimator.reads = "z"',
            )
        if not any(isinstance(each, LookAheadAlgorithm) for each in experiment.train.algorithms):
            yield Problem(
                "curriculum", f'nothing learns the weights of {self.name!r}; set train.algorithms = ["look_ahead"]'
            )


@component
class LookAheadAlgorithm(Algorithm):
    """Learns the weights of the curriculum `learned` from how each bin's gradient changes the loss on held-out text.

    Before every `every`-th training step, the log-weight θ_b of each bin changes by

        rate · ⟨g_b, v⟩ / ⟨v, v⟩,   g_b = ∂g/∂θ_b

    g is the gradient of the training loss, for some sequences of the step's batch, and v is that of the unweighted loss
    for as many held-out sequences. For a small step of gradient descent, −⟨g_b, v⟩ is the derivative by θ_b of the
    held-out loss after this step (MAML, to first order; Ren et al. reweight examples by the same product). The
    optimizer's own step, such as Muon's, is not differentiated. The gradients are those of all weights that are
    trained, except the estimator's.

    The held-out sequences come from the selection half of the validation split, that is, its even-numbered sequences,
    each time different ones. The odd-numbered sequences, on which `atat study` evaluates, are never read.
    """

    name = "look_ahead"
    summary = "learns the weights of the curriculum `learned` from the gradient of the loss on held-out text"
    refs = ("arXiv:1803.09050", "arXiv:1703.03400")

    every: int = param(10, help="training steps between two changes of the weights", ge=1)
    sequences: int = param(
        16, help="training sequences, and as many held-out sequences, whose gradients are compared", ge=1
    )
    rate: float = param(0.5, help="learning rate of the log-weights; at 0, there is no curriculum", ge=0)

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if there is nothing to learn, or if the gradients cannot be computed."""
        train = experiment.train
        if not isinstance(experiment.parts["curriculum"], LearnedCurriculum):
            yield Problem(
                "train.algorithms",
                f'{self.name!r} learns only the weights of the curriculum "learned"; set curriculum.use = "learned", '
                f"or remove {self.name!r}",
            )
        if train.sharding != "none":
            yield Problem(
                "train.sharding", f'{self.name!r} needs the whole gradient on every rank; set sharding to "none"'
            )
        if isinstance(masking := experiment.parts["masking"], StepwiseMasking):
            yield Problem(
                "masking",
                f"{masking.name!r} knows no masks for held-out sequences, which {self.name!r} reads; set masking.use "
                'to "uniform" or "reveal"',
            )
        if self.sequences > train.batch_size:
            yield Problem(
                "train.algorithms",
                f"{self.name!r} reads {self.sequences} sequences of a training step, which has {train.batch_size}; "
                "lower its `sequences`",
            )

    @override
    def build(self) -> ComposerAlgorithm:
        from atat_zoo_learned_curriculum.look_ahead import LookAhead

        return LookAhead(self.every, self.sequences, self.rate)
