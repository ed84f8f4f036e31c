"""Denoisers that guide another one's predictions. B rows, L positions, N predictions, V tokens, K candidate tokens."""

import copy
import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from atat_zoo.diffusion.contracts import BlockDecoder, Denoiser, PredictAhead
from atat_zoo.diffusion.positions import Where, pairs
from atat_zoo.generation.classifiers import ClassifierModel, Differentiable
from atat_zoo.system.errors import UserError

Change = Callable[[Tensor, Tensor, Tensor | None, Where], Tensor]  # (log-probabilities, z, t, where) → the guided ones
Importance = Callable[[Tensor, Tensor], Tensor]  # as `Denoiser.importance`


class GuidedDenoiser(Denoiser):
    """A denoiser with modified log-probabilities and, optionally, modified importance.

    Order weights and the scores of visible tokens are the model's own.
    """

    def __init__(self, denoiser: Denoiser, change: Change | None = None, importance: Importance | None = None) -> None:
        self.denoiser, self.change, self.weigh = denoiser, change, importance
        self.mask_id, self.reads_time, self.window = denoiser.mask_id, denoiser.reads_time, denoiser.window
        self.block_size, self.frame = denoiser.block_size, denoiser.frame
        self.loss_by_mask_rate = denoiser.loss_by_mask_rate
        self.estimates_importance = importance is not None or denoiser.estimates_importance
        self.importance_reads = "x" if importance is not None else denoiser.importance_reads
        self.gives_order_weights = denoiser.gives_order_weights
        self.scores_visible_tokens = denoiser.scores_visible_tokens
        self.predicts_ahead = denoiser.predicts_ahead and not isinstance(change, Contrast)

    @override
    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        return self.guide(self.denoiser(tokens, t, where), tokens, t, where)

    def guide(self, log_probs: Tensor, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return the guided log-probabilities [N, V], computed from those of the denoiser."""
        return log_probs if self.change is None else self.change(log_probs, tokens, t, where)

    @override
    def time_at(self, rate: Tensor) -> Tensor:
        return self.denoiser.time_at(rate)

    @override
    def importance(self, tokens: Tensor, masked: Tensor) -> Tensor | None:
        return self.weigh(tokens, masked) if self.weigh else self.denoiser.importance(tokens, masked)

    @override
    def predict_with_order(self, tokens: Tensor, t: Tensor | None, where: Where) -> tuple[Tensor, Tensor]:
        log_probs, order_weights = self.denoiser.predict_with_order(tokens, t, where)
        return self.guide(log_probs, tokens, t, where), order_weights

    @override
    def score_visible(self, tokens: Tensor, t: Tensor | None, where: Where, visible: Where) -> tuple[Tensor, Tensor]:
        log_probs, own = self.denoiser.score_visible(tokens, t, where, visible)
        return self.guide(log_probs, tokens, t, where), own

    @override
    def predict_ahead(self, tokens: Tensor, steps: Tensor, first: Tensor, length: int) -> PredictAhead:
        predict = self.denoiser.predict_ahead(tokens, steps, first, length)

        def guided(tokens: Tensor, row: Tensor, position: Tensor, before: Tensor) -> Tensor:
            visible = tokens[row].masked_fill(steps[row] >= before[:, None], self.mask_id)
            where = torch.arange(len(row), device=row.device), position
            return self.guide(predict(tokens, row, position, before), visible, None, where)

        return guided

    @override
    def begin(self, batch: int, window: int) -> BlockDecoder:
        return GuidedBlockDecoder(self, batch, window)

    @override
    def begin_generation(self, tokens: Tensor) -> Denoiser:
        return self.wrap(lambda denoiser: denoiser.begin_generation(tokens))

    @override
    def select(self, rows: Tensor) -> Denoiser:
        guided = self.wrap(lambda denoiser: denoiser.select(rows))
        if isinstance(self.change, Opening):
            guided = copy.copy(guided)
            guided.change = self.change.select(rows)
        return guided

    def wrap(self, other: Callable[[Denoiser], Denoiser]) -> Self:
        """Return a copy that guides `other(denoiser)`, or `self` if `other` returns the same denoiser."""
        denoiser, change = other(self.denoiser), self.change
        if isinstance(change, Contrast):
            change = change.wrap(other)
        if denoiser is self.denoiser and change is self.change:
            return self
        guided = copy.copy(self)
        guided.denoiser, guided.change = denoiser, change
        return guided


class GuidedBlockDecoder(GuidedDenoiser, BlockDecoder):
    """A guided decoder for block-by-block generation, whose guidance also sees the finished blocks.

    It keeps the last `window` tokens and provides neither order weights nor scores of visible tokens.
    """

    def __init__(self, guided: GuidedDenoiser, batch: int, window: int) -> None:
        self.decoder = guided.denoiser.begin(batch, window)
        super().__init__(self.decoder, guided.change, guided.weigh)
        self.gives_order_weights = self.scores_visible_tokens = False
        self.seen, self.text = window, torch.full((batch, 0), self.mask_id)

    @override
    def begin_generation(self, tokens: Tensor) -> Denoiser:
        return self  # the generation is one of a block, but the guidance reads the whole text

    @override
    def select(self, rows: Tensor) -> Self:
        part = copy.copy(self)
        part.denoiser = part.decoder = self.decoder.select(rows)
        part.text = self.text[rows.to(self.text.device)]
        return part

    @override
    def guide(self, log_probs: Tensor, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        text, (row, position) = self.having(tokens), pairs(where)
        return super().guide(log_probs, text, t, (row, text.shape[1] - tokens.shape[1] + position))

    def having(self, tokens: Tensor) -> Tensor:
        """Return the finished blocks followed by `tokens`, [B, …], cut to the last `window` tokens."""
        return torch.cat([self.text.to(tokens.device), tokens], dim=1)[:, -self.seen :]

    @override
    def read(self, tokens: Tensor) -> None:
        self.decoder.read(tokens)
        self.text = self.having(tokens)


def normalised(scores: Tensor, log_probs: Tensor) -> Tensor:
    """Return the log-softmax of scores [N, V], −∞ where `log_probs` is; rows in which all are −∞ get `log_probs`."""
    scores = scores.masked_fill(log_probs == -torch.inf, -torch.inf)
    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.where(nothing, log_probs, scores.masked_fill(nothing, 0.0).log_softmax(-1))


class Opening:
    """Restricts the tokens at some positions to `allowed` ones, bool [V], unless all of these have probability 0.

    The positions of each row are int64 [B, K], filled up with −1, or [1, K] if all rows have the same.
    """

    def __init__(self, openings: Tensor, allowed: Tensor) -> None:
        self.openings, self.allowed = openings, allowed

    def select(self, rows: Tensor) -> Self:
        """Return the restriction for the given rows of the batch, int64 [A]."""
        return self if len(self.openings) == 1 else type(self)(self.openings[rows], self.allowed)

    def __call__(self, log_probs: Tensor, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return restricted log-probabilities [N, V]."""
        row, position = pairs(where)
        openings = self.openings if len(self.openings) == 1 else self.openings[row]
        here = (openings == position[:, None]).any(1, keepdim=True)
        return torch.where(here, normalised(log_probs.masked_fill(~self.allowed, -torch.inf), log_probs), log_probs)


class Contrast:
    """Classifier-free guidance with strength w: (1 + w) · log p(v | z, c) − w · log p(v | z, ∅), normalised."""

    def __init__(
        self, denoiser: Denoiser, ids: list[int], begin: int, *, strength: float, dropped: bool, text: str
    ) -> None:
        """Set the condition c, the `text` with tokens `ids` at position `begin`; ∅ masks or, if `dropped`, omits it."""
        self.denoiser, self.ids, self.begin, self.mask_id = denoiser, torch.tensor(ids), begin, denoiser.mask_id
        self.strength, self.dropped, self.text = strength, dropped, text
        self.seen: list[bool] = []  # shared with the contrasts around other denoisers

    def wrap(self, other: Callable[[Denoiser], Denoiser]) -> Self:
        """Return a copy with `other(denoiser)` for p(v | z, ∅), or `self` if `other` returns the same denoiser."""
        denoiser = other(self.denoiser)
        if denoiser is self.denoiser:
            return self
        contrast = copy.copy(self)
        contrast.denoiser = denoiser
        return contrast

    def __call__(self, log_probs: Tensor, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return guided log-probabilities [N, V]; the first call raises a `UserError` if no row begins with c."""
        self.ids, end = self.ids.to(tokens.device), self.begin + len(self.ids)
        first, there = tokens[:, self.begin : end], torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
        if first.shape[1] == len(self.ids):
            there = (first == self.ids).all(1)
        # Later sequences need not begin with the condition: the window of a long text may no longer include the
        # prompt.
        if not (self.seen or bool(there.any())):
            problem = f"guidance.condition: no sequence begins with {self.text!r}; begin every prompt with it"
            raise UserError(f"{problem}, as in atat sample --prompt {self.text!r}")
        self.seen.append(True)
        rows, positions = pairs(where)
        if self.dropped:  # rows that do not begin with the condition become all masks; they are not guided
            where = rows, (positions - len(self.ids)).clamp(min=0)
            bare = torch.cat([tokens[:, : self.begin], tokens[:, end:]], dim=1)
            bare = bare.masked_fill(~there[:, None], self.mask_id)
        else:
            bare = tokens.clone()
            bare[:, self.begin : end] = self.mask_id
        # log p of a token that only the condition makes possible would be −∞ here, and its guided log p infinite.
        empty = self.denoiser(bare, None, where).clamp(min=math.log(torch.finfo(log_probs.dtype).tiny))
        scores = log_probs + self.strength * (log_probs - empty.to(log_probs))
        return torch.where(there[rows, None], normalised(scores, log_probs), log_probs)


_AT_ONCE = 1 << 22  # tokens that the classifier scores at once
_LEAST = -1e4  # lower limit of log p(class | z), so that texts with probability 0 can still be compared


def by_candidates(model: ClassifierModel, tokens: Tensor, where: Where, ids: Tensor) -> Tensor:
    """Return how much each candidate, int64 [N, K], at `where` changes log p(class | z), [N, K]; −∞ if p becomes 0."""
    rows, positions = pairs(where)
    length, candidates = tokens.shape[1], ids.shape[1]
    # Never in bf16: a single token changes log f only a little.
    with torch.no_grad(), torch.autocast(tokens.device.type, enabled=False):
        before = model(tokens).clamp(min=_LEAST)[rows]
        scores = []
        step = max(1, _AT_ONCE // max(1, candidates * length))
        for start in range(0, len(rows), step):
            chunk = slice(start, start + step)
            texts = tokens[rows[chunk]].unsqueeze(1).repeat(1, candidates, 1)
            index = positions[chunk, None, None].expand(-1, candidates, 1)
            texts.scatter_(2, index, ids[chunk].unsqueeze(2))
            scores.append(model(texts.view(-1, length)).view(-1, candidates))
        after = torch.cat(scores) if scores else before.new_zeros(ids.shape)
        return after.clamp(min=_LEAST).masked_fill(after == -torch.inf, -torch.inf) - before[:, None]


def by_gradient(model: Differentiable, tokens: Tensor, where: Where) -> Tensor:
    """Return how much each token changes f = log p(class | z) to first order, [N, V]: ∇f · (embedding − the mask's)."""
    with torch.autocast(tokens.device.type, enabled=False):  # not in bf16, as above
        # Samplers run without gradients; this enables gradients for the copy of z that is made here.
        with torch.inference_mode(False), torch.set_grad_enabled(True):
            table = model.table.to(tokens.device).detach()
            x = table[tokens.clone()].requires_grad_()
            (gradient,) = torch.autograd.grad(model.embedded(x).sum(), x)
        return gradient[where] @ (table[:-1] - table[-1]).T
