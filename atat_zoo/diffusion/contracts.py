"""The masked batch of a training step, and the contracts of a part with a state and of a denoiser."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import attrs

from atat_zoo.diffusion.positions import pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from atat_zoo.diffusion.positions import Where


@attrs.frozen(kw_only=True, eq=False)
class NoisedBatch:
    """A batch of clean text and its noisy version."""

    x: Tensor  #: clean tokens, int64 [B, L]
    z: Tensor  #: noisy tokens, x with some replaced by m, int64 [B, L]
    masked: Tensor  #: where z is m, bool [B, L]
    maskable: Tensor  #: which tokens may be masked (not padding, prompts), bool [B, L]
    t: Tensor  #: diffusion time, float32 [B], in (0, 1]
    rate: Tensor  #: mask rate r, float32 [B]: 1 − α(t), where the noise schedule reaches it
    #: Probability with which each token was masked, float32 [B, L]; where it has no closed form, the row's rate
    p: Tensor
    documents: Tensor | None = None  #: which tokens a token reads, as in `objectives.Batch`, int64 [B, L] or None

    @cached_property
    def where(self) -> tuple[Tensor, Tensor]:
        """Row and position of the N masked tokens, int64 [N]: the host waits for the device to know N, once a batch."""
        return pairs(self.masked)


@attrs.frozen(kw_only=True, eq=False)
class NoiseLevels:
    """How much of each row of a training step is masked, or of each block of it."""

    t: Tensor  #: diffusion time, float32 [B]: that of the noise schedule for the rate, in [0, 1]
    rate: Tensor  #: mask rate r, float32 [B], in (0, 1]; 0 where it is rounded away
    #: 1/(r·f(r)), float32 [B], with f the density from which r is drawn: the weight of the cross-entropy in the NELBO
    weight: Tensor


@runtime_checkable
class StatefulComponent(Protocol):
    """A part whose state follows the training: an `nn.Module` with its state in buffers.

    The trainer sums `statistics` over micro-batches and ranks and passes the sum to `update` once per step, so the
    state does not depend on either.
    """

    def statistics(self, noised: NoisedBatch, loss: Tensor) -> Tensor:
        """Return the statistics of a micro-batch by its cross-entropy in nats, float32 [B, L], 0 where not masked."""

    def update(self, total: Tensor, progress: float) -> None:
        """Update the state with the sum over the global batch; progress of the training in [0, 1]."""


class Denoiser(Protocol):
    """p_θ(x_i | z) and facts about its model, for bounds and samplers.

    A subclass defines `__call__` and `mask_id`; everything else has a default. Attributes state its other abilities:
    `estimates_importance`, `gives_order_weights`, `scores_visible_tokens`.
    """

    mask_id: int  #: m. Predictable tokens are the ids below it.
    reads_time: bool = False  #: whether the prediction depends on t; false by default
    window: int | None = None  #: maximum number of tokens that it sees at once; no limit if None, the default
    #: Special tokens at the beginning and at the end of every full window of its training, which a window of a longer
    #: text has, too; none by default. A `TextGenerator` sets it.
    frame: tuple[Sequence[int], Sequence[int]] = ((), ())
    #: Tokens in a block, for a model that predicts a position from its own and earlier blocks; 1 for an autoregressive
    #: model; None, the default, for one that does not read block by block
    block_size: int | None = None
    estimates_importance: bool = False  #: whether `importance` returns a tensor; false by default
    #: "x", the default, if it is that of a complete draft, or "z" if it is that of hidden tokens, given the text with
    #: its masks
    importance_reads: Literal["x", "z"] = "x"
    gives_order_weights: bool = False  #: whether it has `predict_with_order`; false by default
    scores_visible_tokens: bool = False  #: whether it has `score_visible`; false by default

    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return SUBS log-probabilities at some masked positions.

        Args:
            tokens: z, int64 [B, L].
            t: diffusion time [B]; if None, it follows from the share of masked tokens.
            where: bool [B, L] with N true entries, or rows and positions, int64 [N] each, in row-major order; used only
                as an index `x[where]`. All N positions are masked, and none has a mask in an earlier block, see
                `turn`. With pairs the caller checks this once, as a check would wait for the device at every step.

        Returns:
            float32 or float64 [N, V], in row-major order; each row sums to 1 in probability.
        """

    def time_at(self, rate: Tensor) -> Tensor:
        """Return the time at which the model's noise masks this share of the tokens; by default the share itself."""
        return rate

    def step_of(self, position: Tensor) -> Tensor | None:
        """Return the turn in which positions are predicted, int64 like these; None for a model without an order.

        It is the number of the block. A position is predicted when all earlier turns are complete.
        """
        return None if self.block_size is None else position // self.block_size

    def importance(self, tokens: Tensor, masked: Tensor) -> Tensor | None:
        """Return the importance of a text's tokens, [B, L] in [0, 1], or None, the default, without an estimator.

        Args:
            tokens: a draft without masks; or z, if `importance_reads` says so; int64 [B, L].
            masked: which tokens are masked in z, bool [B, L].
        """
        return None

    def predict_with_order(self, tokens: Tensor, t: Tensor | None, where: Where) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities [N, V] and log ŵ [N], in one evaluation: position i comes next by ŵ_i / Ŵ."""
        raise _unable("gives no order weights")

    def score_visible(self, tokens: Tensor, t: Tensor | None, where: Where, visible: Where) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities [N, V], and log p_θ of M visible tokens [M], in one evaluation.

        The network sees those tokens; its head has a distribution there too, before SUBS replaces it.
        """
        raise _unable("does not score visible tokens")

    def begin(self, batch: int, window: int) -> BlockDecoder:
        """Begin B empty texts; `window` is the maximum number of tokens that are seen at once.

        Only for models with a `block_size`.
        """
        raise _unable("does not read block by block")

    def begin_generation(self, tokens: Tensor) -> Denoiser:
        """Return the denoiser of texts that are written from z, int64 [B, L], on; by default itself.

        One whose predictions depend on the order in which the tokens came remembers it, and what it has computed.
        """
        return self

    def select(self, rows: Tensor) -> Denoiser:
        """Return the denoiser of some rows of the batch, int64 [A]; by default itself, which has no state per row."""
        return self


def _unable(what: str) -> NotImplementedError:
    return NotImplementedError(f"this denoiser {what}")  # raised by its name, it would make a method abstract


class BlockDecoder(Denoiser, Protocol):
    """A batch of texts whose finished blocks have been read: a denoiser of the next one.

    It caches their keys and values, so each is read once. As a denoiser it takes only the tokens of the next block,
    int64 [B, S].
    """

    def read(self, tokens: Tensor) -> None:
        """Read n finished blocks, int64 [B, n · S], and move on to the next one."""

    def select(self, rows: Tensor) -> BlockDecoder:
        """Return the decoder of some of the rows, int64 [A]."""
