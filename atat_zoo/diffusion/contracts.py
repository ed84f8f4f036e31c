"""The masked batch of a training step, and the interfaces of stateful components and denoisers."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import attrs

from atat_zoo.diffusion.positions import pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from atat_zoo.diffusion.loss_by_mask_rate import LossByMaskRate
    from atat_zoo.diffusion.positions import Where


@attrs.frozen(kw_only=True, eq=False)
class NoisedBatch:
    """A batch of clean text and its noisy version."""

    x: Tensor  #: clean tokens, int64 [B, L]
    z: Tensor  #: noisy tokens, x with some replaced by the mask token m, int64 [B, L]
    masked: Tensor  #: where z is m, bool [B, L]
    maskable: Tensor  #: which tokens may be masked (not padding or prompts), bool [B, L]
    t: Tensor  #: diffusion time, float32 [B], in (0, 1]
    rate: Tensor  #: mask rate r, float32 [B]: 1 − α(t), if the noise schedule reaches r
    #: Probability with which each token was masked, float32 [B, L]; the row's rate if this has no closed form
    p: Tensor
    documents: Tensor | None = None  #: the document number of each token, as in `objectives.Batch`, int64 [B, L]
    index: Tensor | None = None  #: the global sample number of each row, int64 [B], as in `objectives.Batch`
    #: The difficulty of each masked token, which a masking strategy carries over to the next step, float32 [B, L]
    difficulty: Tensor | None = None

    @cached_property
    def where(self) -> tuple[Tensor, Tensor]:
        """Rows and positions of the N masked tokens, int64 [N] each; the host waits for the device once per batch."""
        return pairs(self.masked)


@attrs.frozen(kw_only=True, eq=False)
class NoiseLevels:
    """The mask rates of the rows of a training step, or of their blocks."""

    t: Tensor  #: diffusion time, float32 [B]: the time at which the noise schedule has the rate, in [0, 1]
    rate: Tensor  #: mask rate r, float32 [B], in (0, 1], or 0 if float32 rounds it to 0
    #: 1/(r·f(r)), float32 [B], where r is drawn from the density f: the weight of the cross-entropy in the NELBO
    weight: Tensor


@runtime_checkable
class StatefulComponent(Protocol):
    """A component with a state that training updates: an `nn.Module` with its state in buffers.

    The trainer sums `statistics` over micro-batches and ranks and passes the sum to `update` once per training step, so
    the state does not depend on the number of micro-batches or ranks.
    """

    def statistics(self, noised: NoisedBatch, loss: Tensor) -> Tensor:
        """Return the statistics of a micro-batch from its cross-entropy in nats, float32 [B, L], 0 where not masked."""

    def update(self, total: Tensor, progress: float) -> None:
        """Update the state with the sum over the global batch; `progress` of training is in [0, 1]."""


class Denoiser(Protocol):
    """The denoiser p_θ(x_i | z) of a model, for bounds and samplers.

    A subclass defines `__call__` and `mask_id`; everything else has a default. `predict_with_order`, `score_visible`,
    `predict_ahead`, `with_padding` and `begin` are optional: attributes declare which of them a denoiser supports, and
    a call to another one is refused with a sentence that says what the denoiser cannot do.
    """

    mask_id: int  #: m; the predictable tokens are the ids below it
    reads_time: bool = False  #: whether the prediction depends on t; false by default
    window: int | None = None  #: maximum number of tokens that the denoiser sees at once; None, the default: no limit
    #: Special tokens that begin and end every full training window, and are added to each window of a longer text; none
    #: by default. A `TextGenerator` sets them.
    frame: tuple[Sequence[int], Sequence[int]] = ((), ())
    #: Tokens per block, for a model that predicts a position from its own and earlier blocks; 1 for an autoregressive
    #: model; None, the default, for a model that does not read block by block
    block_size: int | None = None
    estimates_importance: bool = False  #: whether `importance` returns a tensor; false by default
    #: "x", the default, if `importance` reads a complete draft, or "z" if it reads the text with its masks and scores
    #: the masked tokens
    importance_reads: Literal["x", "z"] = "x"
    gives_order_weights: bool = False  #: whether it supports `predict_with_order`; false by default
    scores_visible_tokens: bool = False  #: whether it supports `score_visible`; false by default
    predicts_ahead: bool = False  #: whether it supports `predict_ahead`; false by default
    supports_padding: bool = False  #: whether it supports `with_padding`; false by default
    #: The mean loss of a masked token at each mask rate, or None, the default, if it has not been measured
    loss_by_mask_rate: LossByMaskRate | None = None

    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return the SUBS log-probabilities at some masked positions.

        Args:
            tokens: z, int64 [B, L].
            t: diffusion time [B], or None for the time that matches the fraction of masked tokens.
            where: bool [B, L] with N true entries, or rows and positions, int64 [N] each, in row-major order; used only
                as an index `x[where]`. All N positions must be masked, and none may have a mask in an earlier block
                (see `step_of`). If `where` is rows and positions, the caller must ensure this, because a check would
                wait for the device at every step.

        Returns:
            float32 or float64 [N, V], in row-major order; the probabilities of each row sum to 1.
        """

    def time_at(self, rate: Tensor) -> Tensor:
        """Return the time at which the model's noise schedule has this mask rate; by default the rate itself."""
        return rate

    def step_of(self, position: Tensor) -> Tensor | None:
        """Return the step in which each position can be predicted, int64, or None for a model without a fixed order.

        The step is the index of the block. A position can be predicted once all earlier blocks are complete.
        """
        return None if self.block_size is None else position // self.block_size

    def importance(self, tokens: Tensor, masked: Tensor) -> Tensor | None:
        """Return the importance of tokens, [B, L] in [0, 1], or None (the default) without an estimator.

        Args:
            tokens: int64 [B, L]; a draft without masks, or z if `importance_reads` is "z".
            masked: which tokens are masked in z, bool [B, L].
        """
        return None

    def predict_with_order(self, tokens: Tensor, t: Tensor | None, where: Where) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [N, V] and log ŵ [N] from one pass; position i is next with probability ŵ_i/Σŵ."""
        raise _unable("gives no order weights")

    def score_visible(self, tokens: Tensor, t: Tensor | None, where: Where, visible: Where) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [N, V], and log p_θ [M] of M visible tokens, from one forward pass.

        The network reads those tokens; log p_θ is that of the head's distribution, without the substitution of SUBS.
        """
        raise _unable("does not score visible tokens")

    def predict_ahead(self, tokens: Tensor, steps: Tensor, first: Tensor, length: int) -> PredictAhead:
        """Return the predictions of one forward pass over texts that contain drafts; see `PredictAhead`.

        The pass predicts the positions of steps j … j + `length` from the tokens of all steps before j, for j from
        `first` to at most `first` + `length`, as far as the tokens of these steps are not masked. A generation begins
        with `first` = 0. In each later call, `first` is larger, and the tokens of all steps before the previous step
        are those of the last call.

        Args:
            tokens: int64 [B, L]; final in the steps before `first`, then drafts, and masks in all later steps.
            steps: the step of each position in the decoding order, int64 [B, L]; −1 if given.
            first: for each row, the first step with tokens that are not final, int64 [B].
            length: the number of steps that are predicted beyond the next one.
        """
        raise _unable("does not predict several steps ahead")

    def with_padding(self) -> Denoiser:
        """Return the denoiser for texts of different lengths, which the id m + 1 fills up to L tokens.

        This padding only follows a text. The predictions are those for the text without it, up to rounding.
        """
        raise _unable("does not support padding")

    def begin(self, batch: int, window: int) -> BlockDecoder:
        """Return a decoder for `batch` empty sequences; `window` is the maximum number of tokens seen at once.

        Only denoisers with a `block_size` support this.
        """
        raise _unable("does not read block by block")

    def begin_generation(self, tokens: Tensor) -> Denoiser:
        """Return the denoiser for a generation that starts from z, int64 [B, L]; by default, the denoiser itself.

        A denoiser that caches keys and values, or whose predictions depend on the order of unmasking, returns a new
        one, which keeps the state of this generation.
        """
        return self

    def select(self, rows: Tensor) -> Denoiser:
        """Return the denoiser for the given rows of the batch, int64 [A]; by default, the denoiser itself."""
        return self


class PredictAhead(Protocol):
    """The predictions of a forward pass of `Denoiser.predict_ahead`."""

    def __call__(self, tokens: Tensor, row: Tensor, position: Tensor, before: Tensor) -> Tensor:
        """Return log p_θ [N, V] at rows and positions, given the tokens of all steps below `before`, int64 [N] each.

        `tokens`, int64 [B, L], are those of the forward pass, or have changed only in the steps from `before` on. A
        prediction of a step after `before` may also use `tokens` of the steps in between.
        """


def _unable(what: str) -> NotImplementedError:
    return NotImplementedError(f"this denoiser {what}")  # a literal `raise NotImplementedError` would look abstract


class BlockDecoder(Denoiser, Protocol):
    """A decoder of the next block, for a batch of sequences whose earlier blocks it has read.

    It can cache the keys and values of finished blocks, so that each block is read once. As a denoiser, it takes only
    the S = `block_size` tokens of the next block, int64 [B, S].
    """

    def read(self, tokens: Tensor) -> None:
        """Read n finished blocks, int64 [B, n · S], and move on to the next one."""

    def select(self, rows: Tensor) -> BlockDecoder:
        """Return the decoder for the given rows, int64 [A]."""
