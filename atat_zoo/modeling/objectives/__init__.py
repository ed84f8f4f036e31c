"""Objectives: the training loss and the reported likelihood bounds.

An objective combines the other components of a model into one `nn.Module`. Its `uses` names the kinds of components
that it takes; an experiment that sets a model component of another kind is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import attrs

from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.modeling.backbones import BackboneModule
from atat_zoo.modeling.backbones.lora import adapt
from atat_zoo.modeling.bounds import Bound
from atat_zoo.registry import Context, network_of
from atat_zoo.registry.spec import complete

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.diffusion.likelihood_bounds import Estimate, WeightedMask
    from atat_zoo.diffusion.loss_by_mask_rate import LossByMaskRate
    from atat_zoo.experiment import Experiment


class Observer(Protocol):
    """A callback that receives the predictions of masked tokens in chunks."""

    def __call__(
        self, *, log_probs: Tensor, tokens: Tensor, weight: Tensor, row: Tensor, position: Tensor | None = None
    ) -> None:
        """Receive log-probabilities [N, V], true tokens [N], weights, float64 [N], and rows and positions, int64 [N].

        Without `position`, EOS tokens that pad chat sequences are treated like the tokens of the answers.
        """


@attrs.frozen(kw_only=True, eq=False)
class Batch:
    """A micro-batch of the training stream."""

    tokens: Tensor  # x, int64 [B, L]
    maskable: Tensor  # bool [B, L]
    index: Tensor  # the global sample number of each row, int64 [B]; every draw is a function of it
    mean_maskable: Tensor  # maskable tokens per row, averaged over the global batch, float32 scalar
    progress: float  # completed fraction of training, in [0, 1]
    #: The document number of each token within its row, int64 [B, L], −1 at padding; tokens attend within their
    #: document. None if rows are read as a whole; set only for an objective that `separates_documents`.
    documents: Tensor | None = None


class ObjectiveModule(Protocol):
    """The `nn.Module` that `build` returns, which holds the components."""

    loss_by_mask_rate: LossByMaskRate | None = None  #: measured by an evaluation, and saved with the model

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return a dict with `loss`, the scalar to minimise, and detached metrics.

        The loss is a mean over sequences, so its average over micro-batches and ranks, weighted by their sizes, is the
        loss of the global batch.
        """

    def bound(
        self,
        tokens: Tensor,
        maskable: Tensor,
        keys: Tensor,
        draws: int,
        method: Bound,
        observe: Observer | None = None,
        documents: Tensor | None = None,
        difficulty: bool = False,
    ) -> dict[str, Estimate]:
        """Return a dict of bounds on −log p_θ(x), and pass the predictions to the observer.

        `nelbo` bounds the negative log-likelihood of the model under uniform masking, or equals it if the likelihood is
        exact; its exponential per token is called perplexity. Bounds under the objective's own forward process have
        different names. The observer receives the predictions under the masks of the first bound, with weights whose
        expected sum over a sequence is its number of tokens; if the likelihood is exact, it receives every token once.

        `tokens` is x, int64 [B, L]; `maskable` is bool [B, L]; `keys` has one key per sequence, int64 [B]. `draws` is
        the number of masks per sequence, and `method` estimates the bound under uniform masking. An objective to which
        `method` does not apply raises a `UserError`. `documents` is as in `Batch`.

        With `difficulty`, the dict also has two predictors of the masked tokens' losses under the same masks, from the
        same forward passes: the `entropy` of the predictions, in nats, and the `importance`, if the estimator reads
        hidden states. The estimates then hold the values under each mask.
        """

    def masks(self, maskable: Tensor, keys: Tensor, draws: int, method: Bound) -> Iterable[WeightedMask]:
        """Return the weighted masks of the first bound, so that other quantities can be averaged over the same masks.

        The arguments are those of `bound`. If the likelihood is exact, the result is a single mask of all tokens, with
        weight 1.
        """

    def cross_entropy(self, z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> Tensor:
        """Return −log p_θ(x_i | z) at the N masked positions, in nats, [N]: the quantity that the first bound averages.

        z is the masked x, int64 [B, L], and `masked` is the mask, bool [B, L]. The diffusion time t, [B], defaults to
        the time that matches the fraction of masked tokens. Only models that see earlier clean tokens predict from x.
        """

    def importance(self, tokens: Tensor, maskable: Tensor, t: Tensor | None) -> Tensor:
        """Return the importance of x or z, float32 [B, L]; only for objectives that use an estimator."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the last hidden states [B, L, D] of unmasked tokens, int64 [B, L], at t = 0."""

    def stage(self, progress: float) -> str:
        """Return the name of the training stage, for the metrics; "train" by default."""
        return "train"

    def curriculum_strength(self, progress: float) -> float | None:
        """Return the strength of the curriculum for the metrics, or None; see `curricula.ExponentialWeighting`."""
        return None

    def denoiser(self) -> Denoiser:
        """Return the `Denoiser`, p_θ(x_i | z), with which samplers generate."""

    def begin_step(self) -> None:
        """Discard the statistics since the last `end_step`, so that a step that ran out of memory can be repeated."""

    def end_step(self, reduce: Callable[[Tensor], None], progress: float) -> None:
        """Update the stateful components with the statistics of the step; `reduce` sums over ranks in place."""


class Objective(Protocol):
    """A component of kind `objective`.

    Its `network` names a class that is constructed as `(context, parts, batch_size, **parameters)`.
    """

    name: str
    network: ClassVar[str]
    uses: ClassVar[frozenset[str]]  #: the kinds of components that it takes
    exact: ClassVar[bool] = False  #: whether `bound` returns the exact likelihood, without random masks
    #: Whether the network reads at each position the preceding token, as in next-token prediction.
    shifted: ClassVar[bool] = False
    #: Whether it shows the network only a part of the text at a time, through `attention`.
    masks_attention: ClassVar[bool] = False
    separates_documents: ClassVar[bool] = False  #: whether the dialogues in a row are kept apart; see `Batch.documents`
    #: How an exported network predicts: `masked`, masked tokens from all visible ones in one forward pass; `turns`, the
    #: same, given the step of each token; `causal`, the next token; or, the default, not exported with `dit`.
    hub_form: ClassVar[Literal["masked", "turns", "causal", ""]] = ""
    importance_reads: ClassVar[str] = "x"  #: "x" if a learned estimator may read x or z, "z" if it may read only z
    learns_order: ClassVar[bool] = False  #: whether the denoiser predicts which position is unmasked next

    @property
    def reads_importance(self) -> bool:
        """Whether the objective needs importance that differs between tokens; false by default."""
        return False

    @property
    def learn_importance(self) -> bool:
        """Whether the gradient of the bound trains the estimator; false by default."""
        return False

    @property
    def importance_loss_weight(self) -> float:
        """The weight of the estimator's loss; at 0 the estimator is not trained."""
        return 1.0

    def factorisations(self, experiment: Experiment) -> Mapping[str, str]:
        """Return a dict from the name of each bound to that of its factorisation in tables, as in the default."""
        return {"nelbo": "any-order ELBO"}

    def network_input(self, experiment: Experiment) -> tuple[int, int]:
        """Return how many rows the network reads in a step over the global batch, and how many tokens per row."""
        return experiment.train.batch_size, experiment.data.length

    def logit_share(self, mask_rate: float) -> float:
        """Return the fraction of tokens that need logits in a training step with this fraction of masked tokens."""
        return 1.0 if self.exact else mask_rate

    def build(self, context: Context, parts: Mapping[str, object], batch_size: int) -> nn.Module:
        """Return an `ObjectiveModule`; row n of the stream belongs to step n // `batch_size`.

        `parts` are the objects that the other components' `build` methods returned.
        """
        return network_of(self, context, parts, batch_size)


def assemble(experiment: Experiment, context: Context) -> nn.Module:
    """Return an `ObjectiveModule` built from the objective and the components that it uses.

    Initial weights are drawn from `context.seed`; torch's global generator does not change.
    """
    import torch

    objective, form = experiment.parts["objective"], experiment.data.format
    size, between = experiment.train.batch_size, form == "chat"
    context = attrs.evolve(context, shifted=objective.shifted, batch_size=size, given_between=between)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        parts: dict[str, Any] = {"backbone": experiment.parts["backbone"].build(context)}
        adapt(parts["backbone"], experiment.parts["backbone"])
        complete(parts["backbone"], BackboneModule)
        width, prior = parts["backbone"].embedding.embedding_dim, parts["backbone"].prior
        read = width
        if "estimator" in objective.uses:
            read = experiment.parts["estimator"].width_read(width, prior.reach if prior else 0)
        context = attrs.evolve(context, width=width, width_read=read)
        for kind in sorted(objective.uses - {"backbone"}):
            parts[kind] = experiment.parts[kind].build(context)
        module: nn.Module = objective.build(context, parts, experiment.train.batch_size)
    return module
