"""The one loop of all samplers.

A step is: pace, network, order, stop, draw, remask. A part that does not read
the predictions runs before the network, which then evaluates only the rows that
change in this step. If the order does not read them either, it evaluates only
the chosen positions.

Each draw is a function of the row's seed, the number of the step and the
position, so it does not depend on the other rows or on which rows skip a step.
Open positions are counted on the CPU, so rows and positions are selected
without reading from the device, which would make the host wait. If a stop, a
remask or a pace decides on the device, the host reads from it once per step.

Legend: B rows in the batch, A rows of a step, L positions, N open positions.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import attrs
import torch

from atat_zoo.diffusion.positions import positions, to_host
from atat_zoo.diffusion.randomness import fold
from atat_zoo.diffusion.steps import Step
from atat_zoo.errors import Note, UserError
from atat_zoo.samplers import Observer, Sample
from atat_zoo.samplers.providers import providers

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.contracts import Denoiser
    from atat_zoo.samplers.parts import SamplerParts
    from atat_zoo.samplers.revealed import Revealed


BLOCKS = (
    "this model predicts a text block by block from the text before, and the sampler asks for more than one block at "
    'once; choose the sampler "semi_autoregressive", or "left_to_right"'
)
CLASSES = (
    "this model predicts a text class by class, and the sampler asks for a class before the earlier ones are complete; "
    'choose the sampler "strided"'
)


_MANY = 100  # steps for each masked token: with more, it is said that they are many


def run(
    parts: SamplerParts,
    denoiser: Denoiser,
    tokens: Tensor,
    seeds: Tensor,
    *,
    fill: Tensor | None = None,
    observe: Observer | None = None,
    revealed: Revealed | None = None,
) -> Sample:
    """Fill the masks; see `Sampler.sample`.

    With `fill`, bool [B, L], only some of them are filled, for samplers that go block by block. With `revealed` they
    are filled with its tokens; see `Sampler.reveal`.
    """
    if problems := list(parts.misfits()):
        raise UserError("\n".join(problems))
    if revealed is not None and parts.uncovered:
        raise UserError(f"the policy bound does not cover this sampler: {parts.uncovered}; choose another")
    with torch.no_grad():
        return _Run(parts, denoiser, tokens, seeds, fill, observe, revealed).sample()


@attrs.define(eq=False)
class Counts:
    """Counts for each row on the host, int64 [B] each, so that counting never waits for the device.

    Attributes:
        seeds: a row's seed.
        total: positions that were open at the start.
        closed: masks that this run does not fill.
        most: the largest number of steps that the pace allows this row.
        remaining: positions that are open.
        nfe: evaluations that the row took part in.
    """

    seeds: Tensor
    total: Tensor
    closed: Tensor
    most: Tensor
    remaining: Tensor
    nfe: Tensor


class _Run:
    """The state of one run: `counts` on the host, all other tensors on the device.

    `z` is [B, L]; a `Step` holds copies of some of its rows.
    """

    def __init__(
        self,
        parts: SamplerParts,
        denoiser: Denoiser,
        tokens: Tensor,
        seeds: Tensor,
        fill: Tensor | None,
        observe: Observer | None,
        revealed: Revealed | None,
    ) -> None:
        self.parts, self.denoiser, self.mask_id, self.observe = parts, denoiser, denoiser.mask_id, observe
        self.revealed = revealed
        self.z, self.seeds = tokens.clone(), seeds
        masked = tokens == self.mask_id
        # Without `fill` every mask is open, which saves an operation per step.
        self.partial = fill is not None
        self.free = masked if fill is None else masked & fill
        self.rows = torch.arange(len(tokens), device=tokens.device)
        self.memory: dict[str, Tensor] = {}
        # Rows that a stop has finished: the remask does not hide their tokens.
        self.stopped = torch.zeros_like(self.rows, dtype=torch.bool)

        facts = torch.stack([seeds, self.free.sum(1), masked.sum(1), self.gaps(masked)])
        host_seeds, total, masks, gaps = to_host(facts)
        if gaps.any():
            raise UserError(BLOCKS if denoiser.stride is None else CLASSES)
        longest = int(total.max()) if len(tokens) else 0
        most = [parts.pace.most(n) if longest else 0 for n in total.tolist()]
        self.counts = Counts(
            seeds=host_seeds,
            total=total,
            closed=masks - total,
            most=torch.tensor(most, dtype=torch.int64),
            remaining=total.clone(),
            nfe=torch.zeros_like(total),
        )
        self.most = parts.pace.most(longest) if longest else 0
        self.max_nfe = parts.max_nfe(longest)
        if self.most > _MANY * (100 + longest):
            asked = f"{self.most:,} steps are asked for to fill {longest:,} masked tokens"
            warnings.warn(f"{asked}, which takes long; lower the sampler's steps", Note, stacklevel=1)
        self.providers = providers(parts, denoiser, tokens, self.max_nfe)
        self.looks = parts.looks(denoiser.importance_reads)

    def gaps(self, masked: Tensor) -> Tensor:
        """Return whether a denoiser with an order would have to predict behind a gap, int64 [B]."""
        turn = self.denoiser.turn(torch.arange(masked.shape[1], device=masked.device))
        if turn is None or (self.denoiser.block_size is not None and self.parts.causal):
            return torch.zeros_like(self.rows)
        return (torch.where(self.free, turn, -1) > torch.where(masked, turn, len(turn)).amin(1, True)).any(1).long()

    def sample(self) -> Sample:
        """Run the steps."""
        for number in range(self.most):
            if not self.parts.remask.active and not self.counts.remaining.any():
                break
            everyone = self.step(number)
            step, count, some = self.take_part(everyone)
            fresh = self.advance(step, count, some) if len(step.rows) else None
            if self.parts.remask.active and not everyone.final:
                self.hide(everyone, step, fresh)
        return Sample(tokens=self.z, nfe=self.counts.nfe.to(self.z.device, non_blocking=True), max_nfe=self.max_nfe)

    def step(self, number: int) -> Step:
        """Return the step for all rows."""
        open_ = self.z == self.mask_id
        step = Step(
            number=number,
            final=number == self.most - 1,
            batch=len(self.z),
            rows=self.rows,
            tokens=self.z,
            open=open_ & self.free if self.partial else open_,
            free=self.free,
            total=self.counts.total,
            remaining=self.counts.remaining,
            most=self.counts.most,
            seeds=self.seeds,
            host_seeds=self.counts.seeds,
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
            The step for these rows; how many positions each unmasks, if that is known; and the indices of
            the rows, int64 on the CPU, or None for all rows.
        """
        count, remaining = None, self.counts.remaining
        if step.final:
            count = remaining
        elif not self.parts.pace.needs:
            count = self.parts.pace.take(step).clamp(min=0).minimum(remaining)
        which = (remaining if count is None else count) > 0
        if bool(which.all()):
            return step, count, None
        some = which.nonzero().squeeze(1)
        return step.select(some), None if count is None else count[some], some

    def advance(self, step: Step, count: Tensor | None, some: Tensor | None) -> Tensor:
        """Evaluate the network, choose and draw; return the filled positions, bool [A, L]."""
        self.counts.nfe[slice(None) if some is None else some] += 1
        step.denoiser = self.denoiser.of(step.rows)
        log_probs = None
        if not step.final:
            for provider in self.providers:
                provider.ahead(step)
        if step.final or self.looks:
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
        if step.drawn is None:
            drawn = self.draw(step, log_probs, row, position)
        else:
            drawn = step.drawn[step.among_open(row, position)]
        self.write(step, chosen, drawn, taken, some)
        for provider in self.providers:
            provider.written(step, log_probs, drawn, (row, position))
        if self.observe is not None:
            filled = {"rows": step.rows[row], "positions": position, "tokens": drawn}
            self.observe({"step": step.number} | {key: values.tolist() for key, values in filled.items()})
        return chosen

    def times(self, step: Step) -> Tensor | None:
        return self.parts.pace.times(step) if self.denoiser.reads_time else None

    def look(self, step: Step, some: Tensor | None) -> Tensor:
        """Evaluate the network at the open positions, [N, V], and let the providers fill in the fields of the step."""
        asked = [provider for provider in self.providers if provider.final or not step.final]
        masked, where = step.open, step.where
        among: Tensor | slice = slice(None)
        if self.partial and any(provider.everywhere for provider in asked):
            masked = step.tokens == self.mask_id
            closed = self.counts.closed if some is None else self.counts.closed[some]
            where = positions(masked, step.remaining + closed)
            row, position = step.where
            among = (masked.flatten().cumsum(0) - 1)[row * masked.shape[1] + position]
        own = next((provider for provider in asked if provider.asks), None)
        if own is None:
            log_probs = step.denoiser(step.tokens, self.times(step), where)
        else:
            log_probs = own.ask(step, self.times(step), where, among)
        for provider in asked:
            provider.draft(step, log_probs, masked)
        step.log_probs = log_probs = log_probs[among]
        for provider in asked:
            provider.provide(step, lambda: self.draw(step, log_probs, *step.where))
        return log_probs

    def rank(self, step: Step) -> Tensor:
        """Return the positions sorted by the order, int64 [A, L]."""
        scores = self.parts.order(step)
        # An open position comes before all others, even with a score of −∞.
        scores = torch.where(step.open, scores.clamp(min=torch.finfo(scores.dtype).min), -torch.inf)
        # Stable: of equal scores the leftmost comes first, in any batch and on every device.
        return scores.sort(dim=1, descending=True, stable=True).indices

    def ranked(self, step: Step, ranking: Tensor, count: Tensor) -> Tensor:
        """Return the first `count` positions of a ranking, bool [A, L]."""
        there = count.to(ranking.device, non_blocking=True)
        first = torch.arange(ranking.shape[1], device=ranking.device) < there.unsqueeze(1)
        return torch.zeros_like(step.open).scatter_(1, ranking, first)

    def choose(self, step: Step, count: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the positions to fill, bool [A, L], and their number, int64 [A] on the CPU, from the distributions."""
        ranking = self.rank(step)
        if count is None:
            step.ranking = ranking
            taken = self.parts.pace.take(step)
            if taken.dtype == torch.bool:
                # A rule about single positions may select none; then the first of the order is filled.
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
        return chosen, to_host(chosen.sum(1)) if count is None or self.parts.stop.active else count

    def draw(self, step: Step, log_probs: Tensor, row: Tensor, position: Tensor) -> Tensor:
        if self.revealed is not None:
            return self.revealed(self.parts.draw, log_probs, step, row, position)
        return self.parts.draw(log_probs, fold(step.keys("draw")[row], position), step, row)

    def write(self, step: Step, chosen: Tensor, drawn: Tensor, taken: Tensor, some: Tensor | None) -> None:
        """Write the tokens into the step and the batch, and update the counts."""
        step.tokens = step.tokens.masked_scatter(chosen, drawn)
        left = step.remaining - taken
        if some is None:
            self.z, self.counts.remaining = step.tokens, left
        else:
            self.z = self.z.index_copy(0, step.rows, step.tokens)
            self.counts.remaining = self.counts.remaining.index_copy(0, some, left)

    def hide(self, everyone: Step, step: Step, fresh: Tensor | None) -> None:
        """Let the remask hide tokens again, in all rows that had open positions."""
        filled = torch.zeros_like(self.free)
        if fresh is not None:
            filled[step.rows] = fresh
        after = attrs.evolve(
            everyone,
            tokens=self.z,
            open=(self.z == self.mask_id) & self.free,
            remaining=self.counts.remaining,
            fresh=filled,
        )
        for provider in self.providers:
            provider.after(after)
        hidden = self.parts.remask(after) & self.free & ~after.open & ~self.stopped.unsqueeze(1)
        self.z = self.z.masked_fill(hidden, self.mask_id)
        self.counts.remaining = to_host(((self.z == self.mask_id) & self.free).sum(1))
        for provider in self.providers:
            provider.hidden(hidden)
        if self.observe is not None:
            row, position = (t.tolist() for t in hidden.nonzero().unbind(1))
            if row:
                self.observe({"step": everyone.number, "hidden": {"rows": row, "positions": position}})
