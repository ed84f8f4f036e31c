"""A denoiser whose log-probabilities are changed. B rows, L positions, N positions asked for, V predictable tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from atat_zoo.diffusion.places import pairs
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atat_zoo.diffusion.places import Where

    Change = Callable[[Tensor, Tensor, Tensor | None, Where], Tensor]
    from atat_zoo.diffusion.records import Denoiser
    from atat_zoo.generation.classifiers import ClassifierModel, Differentiable


class Guided:
    """A `Denoiser` around another one; whatever else the other one can do, it can too.

    Reverse weights and what the model thinks of tokens that are there stay those of the model.
    """

    def __init__(self, denoiser: Any, change: Change) -> None:
        """Take a denoiser, and what is to be made of its log-probabilities."""
        self.denoiser, self.change = denoiser, change
        # As attributes of their own, for whoever looks whether they are there.
        for name, mine in (("ordered", self._ordered), ("everywhere", self._everywhere), ("begin", self._begin)):
            if hasattr(denoiser, name):
                setattr(self, name, mine)
        if hasattr(denoiser, "block"):
            self.block = denoiser.block

    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return guided log-probabilities [N, V]; see `Denoiser`."""
        return self.change(self.denoiser(tokens, t, where), tokens, t, where)

    def _ordered(self, tokens: Tensor, t: Tensor | None, where: Where) -> tuple[Tensor, Tensor]:
        log_probs, order_weights = self.denoiser.ordered(tokens, t, where)
        return self.change(log_probs, tokens, t, where), order_weights

    def _everywhere(self, tokens: Tensor, t: Tensor | None, where: Where, drawn: Where) -> tuple[Tensor, Tensor]:
        log_probs, own = self.denoiser.everywhere(tokens, t, where, drawn)
        return self.change(log_probs, tokens, t, where), own

    def _begin(self, batch: int, window: int) -> GuidedReading:
        return GuidedReading(self.denoiser.begin(batch, window), self.change, window)


class GuidedReading:
    """The same for a text that is read block by block: a `Reading`.

    The network keeps what it has read; the tokens are kept here, for guidance that goes by them. It sees as many as
    the network does.
    """

    def __init__(self, reading: Any, change: Change, window: int, past: Tensor | None = None) -> None:
        """Take a reading that begins, or with the finished tokens of each row, int64 [B, P]."""
        self.reading, self.change, self.window, self.past = reading, change, window, past

    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return guided log-probabilities [N, V] of a block, int64 [B, S]."""
        log_probs = self.reading(tokens, t, where)
        if self.past is None:
            return self.change(log_probs, tokens, t, where)
        past = self.past[:, max(0, self.past.shape[1] + tokens.shape[1] - self.window) :]
        row, position = pairs(where)
        return self.change(log_probs, torch.cat([past, tokens], dim=1), t, (row, position + past.shape[1]))

    def read(self, tokens: Tensor) -> None:
        """Take in finished blocks; see `Reading`."""
        self.reading.read(tokens)
        self.past = tokens if self.past is None else torch.cat([self.past, tokens], dim=1)[:, -self.window :]

    def of(self, rows: Tensor) -> GuidedReading:
        """Return the denoiser of some of the rows, int64 [A]."""
        past = None if self.past is None else self.past[rows]
        return GuidedReading(self.reading.of(rows), self.change, self.window, past)


def normalised(scores: Tensor, log_probs: Tensor) -> Tensor:
    """Return log-softmax of scores [N, V], a token without probability having none afterwards either.

    Where the scores leave no token, the log-probabilities [N, V] stay as they are.
    """
    scores = scores.masked_fill(log_probs == -torch.inf, -torch.inf)
    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.where(nothing, log_probs, scores.masked_fill(nothing, 0.0).log_softmax(-1))


class Contrast:
    """From log p(v | z, c) to log p(v | z, c) · (1 + w) − log p(v | z, ∅) · w, normalised; one more pass."""

    def __init__(
        self, denoiser: Denoiser, ids: list[int], *, begin: int, mask_id: int, strength: float, dropped: bool, text: str
    ) -> None:
        """Take the condition: its tokens, where they begin, and as text for the message."""
        self.denoiser, self.ids = denoiser, torch.tensor(ids)
        self.begin, self.mask_id = begin, mask_id
        self.strength, self.dropped, self.text = strength, dropped, text
        self.seen = False

    def __call__(self, log_probs: Tensor, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return guided log-probabilities [N, V]; a `Change`.

        Raises:
            UserError: when no row of the first evaluation begins with the condition.
        """
        there = self.conditioned(tokens)
        if not self.seen:
            # Later ones may not: of a long text a window is seen, and the prompt has gone out of it.
            if not bool(there.any()):
                raise UserError(
                    f"guidance.condition: no text begins with {self.text!r}; let every text begin with it, "
                    f"as atat sample does by --prompt {self.text!r}"
                )
            self.seen = True
        rows, positions = pairs(where)
        bare = self.without(tokens, there)
        if self.dropped:
            where = rows, (positions - len(self.ids)).clamp(min=0)
        # log p of a token that only the condition makes possible would be −∞ here, and its guided log p infinite.
        empty = self.denoiser(bare, None, where).clamp(min=math.log(torch.finfo(log_probs.dtype).tiny))
        scores = log_probs + self.strength * (log_probs - empty.to(log_probs))
        return torch.where(there[rows, None], normalised(scores, log_probs), log_probs)

    def conditioned(self, tokens: Tensor) -> Tensor:
        """Return which rows begin with the condition, bool [B]."""
        if self.ids.device != tokens.device:
            self.ids = self.ids.to(tokens.device)
        first = tokens[:, self.begin : self.begin + len(self.ids)]
        return (
            (first == self.ids).all(1)
            if first.shape[1] == len(self.ids)
            else torch.zeros_like(tokens[:, 0], dtype=torch.bool)
        )

    def without(self, tokens: Tensor, there: Tensor) -> Tensor:
        """Return the rows without the condition; those that have none are all masks if tokens are dropped."""
        end = self.begin + len(self.ids)
        if self.dropped:
            bare = torch.cat([tokens[:, : self.begin], tokens[:, end:]], dim=1)
            return bare.masked_fill(~there[:, None], self.mask_id)
        bare = tokens.clone()
        bare[:, self.begin : end] = self.mask_id
        return bare


# Tokens that the classifier is handed at once.
_AT_ONCE = 1 << 22


# log f is held above this, so that a text which a classifier thinks impossible can still be compared with another.
_LEAST = -1e4


def by_candidates(model: ClassifierModel, tokens: Tensor, where: Where, ids: Tensor) -> Tensor:
    """Return log f(z with a candidate in its place) − log f(z), [N, K]; −∞ where f of the candidate is 0.

    Args:
        model: the classifier.
        tokens: z, int64 [B, L].
        where: N positions, bool [B, L] or a pair of index tensors.
        ids: the candidates, int64 [N, K].
    """
    rows, positions = pairs(where)
    length, candidates = tokens.shape[1], ids.shape[1]
    # Not in bf16, whatever the network computes in: one token changes log f by little, and that is to be seen.
    with torch.no_grad(), torch.autocast(tokens.device.type, enabled=False):
        before = model(tokens).clamp(min=_LEAST)[rows]
        found = []
        step = max(1, _AT_ONCE // max(1, candidates * length))
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            texts = tokens[rows[some]].unsqueeze(1).repeat(1, candidates, 1)
            place = positions[some, None, None].expand(-1, candidates, 1)
            texts.scatter_(2, place, ids[some].unsqueeze(2))
            found.append(model(texts.view(-1, length)).view(-1, candidates))
        after = torch.cat(found) if found else before.new_zeros(ids.shape)
        return after.clamp(min=_LEAST).masked_fill(after == -torch.inf, -torch.inf) - before[:, None]


def by_gradient(model: Differentiable, tokens: Tensor, where: Where) -> Tensor:
    """Return the same for all tokens to first order, [N, V]: ∇ log f at the place · (token's embedding − mask's)."""
    # Not in bf16 either.
    with torch.autocast(tokens.device.type, enabled=False):
        # Samplers run without gradients; a copy of z made here may take part in one all the same.
        with torch.inference_mode(False), torch.set_grad_enabled(True):
            table = model.table.to(tokens.device).detach()
            x = table[tokens.clone()].requires_grad_()
            (gradient,) = torch.autograd.grad(model.embedded(x).sum(), x)
        return gradient[where] @ (table[:-1] - table[-1]).T
