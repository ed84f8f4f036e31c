"""`Step`: one decoding step of a sampler, which is the input of the sampler's components.

Shapes: B rows in the batch, A rows that take part in this step, L positions,
N open positions of those rows in row-major order, V predictable tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.diffusion.positions import positions
from atat_zoo.diffusion.randomness import fold, stream, uniform


@attrs.define(kw_only=True, eq=False)
class Step:
    """One decoding step of a sampler, for the rows that take part in it.

    A component lists in `needs` the optional fields that it reads; the loop fills these and leaves all others None, so
    nothing is computed unnecessarily. Rows that skip a step (finished, or without positions to unmask) are left out.
    """

    number: int  #: k, the number of the decoding step, counted from 0, the same for all rows
    final: bool  #: whether this step fills all open positions
    batch: int  #: B, rows in the batch
    rows: Tensor  #: the indices of these rows in the batch, int64 [A]
    tokens: Tensor  #: z, int64 [A, L]
    open: Tensor  #: masked positions that may be filled, bool [A, L]
    free: Tensor  #: positions that were open at the start, bool [A, L]; all others are given
    total: Tensor  #: number of positions open at the start, int64 [A], on the CPU
    remaining: Tensor  #: number of open positions, int64 [A], on the CPU
    closed: Tensor  #: number of masked positions that this run does not fill, int64 [A], on the CPU
    max_steps: Tensor  #: maximum number of steps that `tokens_per_step` allows for each row, int64 [A], on the CPU
    seeds: Tensor  #: the seed of each row, int64 [A]
    host_seeds: Tensor  #: the seeds on the CPU, for components that decide without reading from the device
    #: Tensors [batch, …] that a component stores between steps under its own names; index them with `rows`
    memory: dict[str, Tensor]
    denoiser: Denoiser  #: the denoiser, for components that need more than its distributions
    #: Expected fraction of masked tokens before and after this step, if the tokens per step follow a grid of times
    rates: tuple[float, float] | None = None
    #: Fraction of visible tokens that remasking will hide and for which the tokens per step compensate
    remask_rate: float | Tensor = 0.0
    log_probs: Tensor | None = None  #: needs "log_probs". log p_θ(x_i | z) at the open positions, [N, V].
    #: needs "order_weights". log ŵ of the model's own reverse process at the open positions, [N].
    order_weights: Tensor | None = None
    #: needs "importance". Importance of a draft's tokens or of the masked ones (see `Denoiser.importance_reads`),
    #: float [A, L] in [0, 1], or None if there is no estimator.
    importance: Tensor | None = None
    #: needs "drawn". A token for each open position, int64 [N]; only the tokens at the chosen positions are kept.
    drawn: Tensor | None = None
    drawn_log_probs: Tensor | None = None  #: needs "drawn". The log-probability of that token under p_θ, [N].
    #: needs "history". Mean of max p_θ over open positions, float64 [A, K]: one column per forward pass, the latest
    #: last; NaN for missing forward passes.
    history: Tensor | None = None
    #: needs "confidence". p_θ of the tokens drawn so far, at the time of drawing; 1 elsewhere, [A, L]. If the needs
    #: also list "rescored", p_θ of these tokens from the row's latest forward pass, which saw them.
    confidence: Tensor | None = None
    #: Open positions in decoding order, then all others, int64 [A, L]; set for tokens per step that have `needs`
    ranking: Tensor | None = None
    fresh: Tensor | None = None  #: positions drawn in this step, bool [A, L]; set for remasking
    _measured: list[tuple[object, Tensor]] = attrs.field(factory=list, init=False)
    _where: tuple[Tensor, Tensor] | None = attrs.field(default=None, init=False)

    @property
    def mask_id(self) -> int:
        """The denoiser's mask id."""
        return self.denoiser.mask_id

    @property
    def where(self) -> tuple[Tensor, Tensor]:
        """Rows (of this step) and positions of the open positions, each int64 [N], without waiting for the device."""
        if self._where is None:
            self._where = positions(self.open, self.remaining)
        return self._where

    def among_open(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Return the indices of M positions among the N open ones, int64 [M], from their rows [M] and positions [M]."""
        number = self.open.flatten().cumsum(0) - 1
        return number[rows * self.open.shape[1] + positions]

    def keys(self, purpose: str) -> Tensor:
        """Return a random-number key per row for one purpose in this step, int64 [A]."""
        return fold(self.seeds, stream(self.number, purpose))

    def uniform(self, purpose: str) -> Tensor:
        """Return uniform random numbers in [0, 1) for one purpose in this step, float64 [A, L]."""
        return uniform(self.keys(purpose), self.open.shape[1], torch.float64)

    def host_keys(self, purpose: str) -> Tensor:
        """Return the same keys as `keys`, on the CPU."""
        return fold(self.host_seeds, stream(self.number, purpose))

    def distributions(self) -> Tensor:
        """Return `log_probs` [N, V], or raise `RuntimeError` if the component's `needs` do not list it."""
        if self.log_probs is None:
            raise RuntimeError("a component reads the distributions, but its needs do not list log_probs; add it")
        return self.log_probs

    def spread(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Return the values [N] of the open positions as a tensor [A, L], with `fill` elsewhere."""
        dense = torch.full(self.open.shape, fill, dtype=values.dtype, device=values.device)
        return dense.masked_scatter_(self.open, values)

    def mean_open(self, dense: Tensor) -> Tensor:
        """Return the mean [A] over each row's open positions of values [A, L] that are 0 elsewhere."""
        return dense.sum(1) / self.open.sum(1).clamp(min=1)

    def measure(self, metric: Callable[[Tensor], Tensor]) -> Tensor:
        """Return an uncertainty metric of the distributions, [A, L], which is 0 where not open.

        The decoding order, tokens per step and stopping rule often share a metric, which is computed once.
        """
        for known, value in self._measured:
            if known is metric or known == metric:
                return value
        value = self.spread(metric(self.distributions()))
        self._measured.append((metric, value))
        return value

    def select(self, which: Tensor) -> Step:
        """Return the step for the rows with indices `which`, int64 on the CPU; call it before predictions are set."""
        there = which.to(self.tokens.device, non_blocking=True)
        changes = {name: getattr(self, name)[there] for name in ("rows", "tokens", "open", "free", "seeds")}
        on_host = ("total", "remaining", "closed", "max_steps", "host_seeds")
        changes |= {name: getattr(self, name)[which] for name in on_host}
        if not isinstance(self.remask_rate, float):
            changes["remask_rate"] = self.remask_rate[which]
        return attrs.evolve(self, **changes)
