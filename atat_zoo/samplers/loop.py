"""The one loop of all samplers.

A step is: pace, network, order, stop, draw, remask. A part that reads nothing
of the network is asked before it, so that the network is asked only for the
rows that change in this step, and where the order reads nothing either, only at
the positions that were chosen.

What each row draws is a function of its seed, the number of the step and the
position, so it depends neither on the other rows nor on who sits out. How much
is left is counted on the CPU, so rows come and go, and chosen positions are
picked out, without asking the device, which would make the host wait for it.
Where a stop, a remask or a pace decides on the device, it is asked once a step.

Legend: B rows in the batch, A rows of a step, L positions, N open positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from atat_zoo.diffusion.positions import positions, to_host
from atat_zoo.diffusion.randomness import fold
from atat_zoo.diffusion.steps import Step
from atat_zoo.errors import UserError
from atat_zoo.samplers import Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atat_zoo.diffusion.contracts import Denoiser
    from atat_zoo.diffusion.positions import Where
    from atat_zoo.samplers.parts import SamplerParts


def run(
    parts: SamplerParts,
    denoiser: Denoiser,
    tokens: Tensor,
    seeds: Tensor,
    *,
    fill: Tensor | None = None,
    observe: Callable[[dict[str, Any]], None] | None = None,
) -> Sample:
    """Fill the masks.

    Args:
        parts: the four choices and the draw.
        denoiser: p_θ.
        tokens: int64 [B, L].
        seeds: int64 [B].
        fill: bool [B, L], which masks are filled; the others stay, for samplers that go block by block. All if None.
        observe: called with a record of each step; see `Sampler.sample`.
    """
    parts.refuse_misfits()
    with torch.no_grad():
        return _Run(parts, denoiser, tokens, seeds, fill, observe).sample()


class _Run:
    """The state of one run. `z` is [B, L]; a `Step` holds copies of some of its rows."""

    def __init__(
        self,
        parts: SamplerParts,
        denoiser: Denoiser,
        tokens: Tensor,
        seeds: Tensor,
        fill: Tensor | None,
        observe: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        self.parts, self.denoiser, self.mask_id = parts, denoiser, denoiser.mask_id
        self.needs = parts.needs
        self.z = tokens.clone()
        self.free = tokens == self.mask_id
        if fill is not None:
            self.free &= fill
        # Without `fill` every mask is open, which saves an operation a step.
        self.partial = fill is not None
        self.seeds = seeds
        self.rows = torch.arange(len(tokens), device=tokens.device)
        masked = tokens == self.mask_id
        known = to_host(torch.stack([seeds, self.free.sum(1), masked.sum(1), self.gaps(masked)]))
        self.host_seeds, self.total = known[0], known[1]
        # Masks that stay.
        self.closed = known[2] - known[1]
        if known[3].any():
            raise UserError(
                "this model predicts a text block by block from the text before, and the sampler asks for more than "
                'one block at once; choose the sampler "semi_autoregressive", or "left_to_right"'
            )
        self.remaining = self.total.clone()
        self.nfe = torch.zeros_like(self.total)
        n = int(self.total.max()) if len(tokens) else 0
        self.most = parts.pace.most(n) if n else 0
        each = [parts.pace.most(n) if n else 0 for n in self.total.tolist()]
        self.most_each = torch.tensor(each, dtype=torch.int64)
        self.max_nfe = parts.max_nfe(n)
        self.memory: dict[str, Tensor] = {}
        self.confidence = torch.ones(tokens.shape, device=tokens.device) if "confidence" in self.needs else None
        self.history = (
            torch.full((len(tokens), self.max_nfe), torch.nan, dtype=torch.float64, device=tokens.device)
            if "history" in self.needs
            else None
        )
        # Rows that a stop has finished: what is drawn there stays, whatever the remask says.
        self.stopped = torch.zeros_like(self.rows, dtype=torch.bool)
        self.observe = observe

    def gaps(self, masked: Tensor) -> Tensor:
        """Return for each row whether a denoiser that reads block by block would be asked behind a gap, int64 [B]."""
        size = self.denoiser.block_size
        if size is None or self.parts.causal:
            return torch.zeros_like(self.rows)
        block = torch.arange(masked.shape[1], device=masked.device) // size
        return (torch.where(self.free, block, -1) > torch.where(masked, block, len(block)).amin(1, True)).any(1).long()

    def sample(self) -> Sample:
        for number in range(self.most):
            if not self.parts.remask.active and not self.remaining.any():
                break
            whole = self.step(number)
            step, count, some = self.take_part(whole)
            fresh = self.advance(step, count, some) if len(step.rows) else None
            if self.parts.remask.active and not whole.final:
                self.hide(number, whole, step, fresh)
        return Sample(tokens=self.z, nfe=self.nfe.to(self.z.device, non_blocking=True), max_nfe=self.max_nfe)

    def step(self, number: int) -> Step:
        """Return the step for the whole batch."""
        open_ = self.z == self.mask_id
        step = Step(
            number=number,
            final=number == self.most - 1,
            batch=len(self.z),
            rows=self.rows,
            tokens=self.z,
            open=open_ & self.free if self.partial else open_,
            free=self.free,
            total=self.total,
            remaining=self.remaining,
            most=self.most_each,
            seeds=self.seeds,
            host_seeds=self.host_seeds,
            memory=self.memory,
            denoiser=self.denoiser,
            rates=self.parts.pace.rates(number),
        )
        if self.parts.remask.active and not step.final:
            step.remask_rate = self.parts.remask.rate(step)
        return step

    def take_part(self, step: Step) -> tuple[Step, Tensor | None, Tensor | None]:
        """Decide which rows take part.

        Returns:
            The step for these rows; how many positions each unmasks, if that is known; and which rows they
            are, int64 on the CPU, or None when they are all.
        """
        count = None
        if step.final:
            count = self.remaining
        elif not self.parts.pace.needs:
            count = self.parts.pace.take(step).clamp(min=0).minimum(self.remaining)
        which = (self.remaining if count is None else count) > 0
        if bool(which.all()):
            return step, count, None
        some = which.nonzero().squeeze(1)
        return step.select(some), None if count is None else count[some], some

    def advance(self, step: Step, count: Tensor | None, some: Tensor | None) -> Tensor:
        """Ask the network, choose and draw; return what was filled, bool [A, L]."""
        if some is None:
            self.nfe += 1
        else:
            self.nfe[some] += 1
        step.denoiser = self.denoiser.of(step.rows)
        log_probs = None
        if step.final or self.parts.looks:
            log_probs = self.look(step, some)
            chosen, taken = (step.open, step.remaining) if step.final else self.choose(step, count)
        else:
            assert count is not None
            chosen, taken = self.ranked(step, self.rank(step), count), count
        row, position = step.where if chosen is step.open else positions(chosen, taken)
        if log_probs is None:
            log_probs = step.denoiser(step.tokens, self.times(step), (row, position))
        elif chosen is not step.open:
            log_probs = log_probs[step.among_open(row, position)]
        if step.drawn is not None:
            drawn = step.drawn[step.among_open(row, position)]
        else:
            drawn = self.draw(step, log_probs, row, position)
        self.write(step, chosen, drawn, taken, some)
        if self.confidence is not None:
            own = log_probs.gather(1, drawn.unsqueeze(1)).squeeze(1)
            self.confidence[step.rows[row], position] = own.exp().float()
        if self.observe is not None:
            self.observe(record(step, row, position, drawn))
        return chosen

    def times(self, step: Step) -> Tensor | None:
        return self.parts.pace.times(step) if self.denoiser.reads_time else None

    def look(self, step: Step, some: Tensor | None) -> Tensor:
        """Ask the network at the open positions and fill in what the parts read of it."""
        # The estimator reads a whole text, so for it even the masks that are not to be filled need a draft.
        drafted = "importance" in self.needs and self.denoiser.estimates_importance and not step.final
        widely = drafted and self.partial
        masked = step.tokens == self.mask_id if widely else step.open
        closed = self.closed if some is None else self.closed[some]
        where = positions(masked, step.remaining + closed) if widely else step.where
        if "order_weights" in self.needs and not step.final:
            log_probs, order_weights = self.ordered(step)(step.tokens, self.times(step), where)
        elif "rescored" in self.needs and not step.final:
            log_probs, order_weights = self.rescore(step, where), None
        else:
            log_probs, order_weights = step.denoiser(step.tokens, self.times(step), where), None
        if drafted:
            step.importance = step.denoiser.importance(step.tokens.masked_scatter(masked, log_probs.argmax(-1)), masked)
        if widely:
            row, position = step.where
            among = (masked.flatten().cumsum(0) - 1)[row * masked.shape[1] + position]
            log_probs = log_probs[among]
            order_weights = order_weights[among] if order_weights is not None else None
        step.log_probs, step.order_weights = log_probs, order_weights
        if self.history is not None:
            confidence = step.mean_open(step.spread(log_probs.amax(-1).double().exp())).unsqueeze(1)
            step.history = torch.cat([self.history[step.rows, 1:], confidence], dim=1)
            self.history[step.rows] = step.history
        if "drawn" in self.needs and not step.final:
            step.drawn = self.draw(step, log_probs, *step.where)
            step.drawn_log_probs = log_probs.gather(1, step.drawn.unsqueeze(1)).squeeze(1)
        return log_probs

    def ordered(self, step: Step) -> Callable[[Tensor, Tensor | None, Where], tuple[Tensor, Tensor]]:
        """Return the denoiser that gives log ŵ as well.

        Raises:
            UserError: when the model has no such weights.
        """
        if not step.denoiser.gives_order_weights:
            raise UserError(
                "the order learned takes its order from the model's own reverse weights, and this model has none; "
                'train it with objective.use = "adaptive", or choose another sampler'
            )
        return step.denoiser.ordered

    def rescore(self, step: Step, where: Where) -> Tensor:
        """Return the log-probabilities, and renew the confidence in what was drawn in the same evaluation.

        Raises:
            UserError: when the model cannot say it.
        """
        if not step.denoiser.scores_visible_tokens:
            raise UserError(
                "this sampler's remask asks the model for its probability of tokens that are already there, which this "
                "model, or its guidance, cannot tell; choose another sampler, such as remdm_conf"
            )
        assert self.confidence is not None
        row, position = positions(step.free & ~step.open, step.total - step.remaining)
        log_probs, own = step.denoiser.everywhere(step.tokens, self.times(step), where, (row, position))
        self.confidence[step.rows[row], position] = own.exp().float()
        return log_probs

    def rank(self, step: Step) -> Tensor:
        """Return the positions in the order in which they come, int64 [A, L]."""
        scores = self.parts.order(step)
        # An open position comes before all others, even with a score of −∞.
        scores = torch.where(step.open, scores.clamp(min=torch.finfo(scores.dtype).min), -torch.inf)
        # Stable: equal scores go left first, whatever the batch, and on every device.
        return scores.sort(dim=1, descending=True, stable=True).indices

    def ranked(self, step: Step, ranking: Tensor, count: Tensor) -> Tensor:
        """Return the first `count` of a ranking, bool [A, L]."""
        there = count.to(ranking.device, non_blocking=True)
        first = torch.arange(ranking.shape[1], device=ranking.device) < there.unsqueeze(1)
        return torch.zeros_like(step.open).scatter_(1, ranking, first)

    def choose(self, step: Step, count: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what is filled, bool [A, L], with the distributions at hand, and how many, int64 [A] on the CPU."""
        ranking = self.rank(step)
        if count is None:
            step.ranking = ranking
            taken = self.parts.pace.take(step)
            if taken.dtype == torch.bool:
                # A rule about single positions may find none; the first of the order goes then.
                chosen = taken & step.open
                none = ~chosen.any(1, keepdim=True)
                chosen |= none & self.ranked(step, ranking, torch.ones_like(step.rows))
            else:
                chosen = self.ranked(step, ranking, taken.clamp(min=1)) & step.open
        else:
            chosen = self.ranked(step, ranking, count)
        if self.parts.stop.active:
            stopped = self.parts.stop(step)
            self.stopped[step.rows] = stopped
            chosen = chosen | (stopped.unsqueeze(1) & step.open)
        if count is None or self.parts.stop.active:
            count = to_host(chosen.sum(1))
        return chosen, count

    def draw(self, step: Step, log_probs: Tensor, row: Tensor, position: Tensor) -> Tensor:
        return self.parts.draw(log_probs, fold(step.keys("draw")[row], position), step, row)

    def write(self, step: Step, chosen: Tensor, drawn: Tensor, taken: Tensor, some: Tensor | None) -> None:
        """Put the tokens into the step and the batch, and count what is left."""
        step.tokens = step.tokens.masked_scatter(chosen, drawn)
        left = step.remaining - taken
        if some is None:
            self.z, self.remaining = step.tokens, left
        else:
            self.z = self.z.index_copy(0, step.rows, step.tokens)
            self.remaining = self.remaining.index_copy(0, some, left)

    def hide(self, number: int, whole: Step, step: Step, fresh: Tensor | None) -> None:
        """Let the remask hide tokens again, in all rows that had something to fill."""
        filled = torch.zeros_like(self.free)
        if fresh is not None:
            filled[step.rows] = fresh
        after = attrs.evolve(
            whole,
            tokens=self.z,
            open=(self.z == self.mask_id) & self.free,
            remaining=self.remaining,
            confidence=self.confidence,
            fresh=filled,
        )
        hidden = self.parts.remask(after) & self.free & ~after.open & ~self.stopped.unsqueeze(1)
        self.z = self.z.masked_fill(hidden, self.mask_id)
        self.remaining = to_host(((self.z == self.mask_id) & self.free).sum(1))
        if self.confidence is not None:
            self.confidence = self.confidence.masked_fill(hidden, 1.0)
        if self.observe is not None:
            row, position = (t.tolist() for t in hidden.nonzero().unbind(1))
            if row:
                self.observe({"step": number, "hidden": {"rows": row, "positions": position}})


def record(step: Step, row: Tensor, position: Tensor, drawn: Tensor) -> dict[str, Any]:
    """Return what was filled in a step, as observers get it."""
    return {
        "step": step.number,
        "rows": step.rows[row].tolist(),
        "positions": position.tolist(),
        "tokens": drawn.tolist(),
    }
