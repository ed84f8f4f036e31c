"""The sampling loop that all samplers share.

A decoding step runs the tokens-per-step component, the network, the order, the stopping rule, token sampling and
remasking. If tokens per step does not read the predictions, it runs before the network, which then evaluates only the
sequences that change in this step. If the order does not read them either, the network predicts only the chosen
positions. Each random draw depends only on the seed of the sequence, the step number and the position.

Open positions are counted on the CPU, so sequences and positions are selected without reading from the device, which
would make the host wait. If a component decides on the device, the host reads from the device once per step.

Shapes: B rows in the batch, A rows that take part in a step, L positions, N open positions of these rows.
"""

import warnings
from typing import Any

import attrs
import torch
from torch import Tensor

from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.diffusion.decoding_step import Step
from atat_zoo.diffusion.positions import Where, positions, to_host
from atat_zoo.diffusion.randomness import fold
from atat_zoo.generation.samplers import Observer, Sample
from atat_zoo.generation.samplers.sampler_choices import SamplerChoices
from atat_zoo.generation.samplers.teacher_forcing import TeacherForcing
from atat_zoo.system.errors import Note, UserError

BLOCKS = (
    "this model predicts block by block from left to right, but the sampler needs more than one block at once; "
    'use the sampler "semi_autoregressive" or "left_to_right"'
)
_MANY = 100  # steps per masked token above which a note is shown


def run(
    parts: SamplerChoices,
    denoiser: Denoiser,
    tokens: Tensor,
    seeds: Tensor,
    *,
    fill: Tensor | None = None,
    observe: Observer | None = None,
    forced: TeacherForcing | None = None,
) -> Sample:
    """Return a `Sample` with all masks, or those in `fill`, bool [B, L], filled with sampled or `forced` tokens.

    Raises:
        UserError: if the components are incompatible, or the model cannot make the predictions that they need.
    """
    if problems := list(parts.incompatibilities()):
        raise UserError("\n".join(map(str, problems)))
    with torch.no_grad():
        fill = torch.ones_like(tokens, dtype=torch.bool) if fill is None else fill
        return _Run(parts, denoiser, tokens.clone(), seeds, fill, observe, forced).sample()


@attrs.define(eq=False, slots=False)
class _Run:
    """The state of one run; a `Step` holds copies of some rows of `z`, int64 [B, L].

    The counts of each row are int64 [B] on the host: `total`, the positions open at the start; `remaining`, the open
    positions; `closed`, the masks that this run does not fill; `max_steps`, the allowed steps; and `nfe`.
    """

    parts: SamplerChoices
    denoiser: Denoiser
    z: Tensor
    seeds: Tensor
    fill: Tensor
    observe: Observer | None
    forced: TeacherForcing | None

    def __attrs_post_init__(self) -> None:
        parts, tokens = self.parts, self.z
        # With remasking, tokens have no fixed step, so the denoiser treats all visible tokens as given.
        denoiser = self.denoiser = self.denoiser if parts.remasking.active else self.denoiser.begin_generation(tokens)
        self.mask_id = denoiser.mask_id
        masked = tokens == self.mask_id
        self.free = masked & self.fill
        self.rows = torch.arange(len(tokens), device=tokens.device)
        self.memory: dict[str, Tensor] = {}
        # Rows that the stopping rule has finished: remasking does not mask their tokens.
        self.stopped = torch.zeros_like(self.rows, dtype=torch.bool)
        self.given_up: set[int] = set()  # rows that the observer has abandoned

        facts = torch.stack([self.seeds, self.free.sum(1), masked.sum(1), self.gaps(masked)])
        self.host_seeds, self.total, masks, gaps = to_host(facts)
        if gaps.any():
            raise UserError(BLOCKS)
        self.closed, self.remaining, self.nfe = masks - self.total, self.total.clone(), torch.zeros_like(self.total)
        longest = int(self.total.max()) if len(tokens) else 0
        self.max_steps = torch.tensor(
            [parts.tokens_per_step.max_steps_for(n) if longest else 0 for n in self.total.tolist()], dtype=torch.int64
        )
        self.steps = parts.tokens_per_step.max_steps_for(longest) if longest else 0
        self.max_nfe = parts.max_nfe(longest)
        if self.steps > _MANY * (100 + longest):
            asked = f"the sampler uses {self.steps:,} steps to fill {longest:,} masked tokens"
            warnings.warn(f"{asked}, which takes a long time; reduce its number of steps", Note, stacklevel=1)
        self.needs, self.needs_all_logits = parts.needs, parts.needs_all_logits(denoiser.importance_reads)
        self.remembers = not self.needs.isdisjoint({"confidence", "rescored"})
        self.weighs = "importance" in self.needs and denoiser.estimates_importance
        # An estimator of complete texts needs a draft of all masks, including those that this run does not fill.
        self.drafts = self.weighs and denoiser.importance_reads == "x" and "no_draft" not in self.needs
        # The probability that each token had when it was drawn; 1 elsewhere.
        self.confidence = torch.ones(tokens.shape, device=tokens.device)
        # The mean of max p_θ over open positions, for each evaluation.
        evaluations = self.max_nfe if "history" in self.needs else 0
        self.history = torch.full((len(tokens), evaluations), torch.nan, dtype=torch.float64, device=tokens.device)

    def gaps(self, masked: Tensor) -> Tensor:
        """Return 1 for each row in which a position to fill follows a block with masks that stay, int64 [B]."""
        turn = self.denoiser.step_of(torch.arange(masked.shape[1], device=masked.device))
        if turn is None or self.parts.causal:
            return torch.zeros_like(self.rows)
        return (torch.where(self.free, turn, -1) > torch.where(masked, turn, len(turn)).amin(1, True)).any(1).long()

    def sample(self) -> Sample:
        """Run the steps."""
        for number in range(self.steps):
            if not self.parts.remasking.active and not self.remaining.any():
                break
            everyone = self.step(number)
            step, rows, count = self.take_part(everyone)
            if len(rows):
                self.advance(step, rows, count)
            if self.parts.remasking.active and not everyone.final:
                self.remasking(everyone)
        return Sample(tokens=self.z, nfe=self.nfe.to(self.z.device, non_blocking=True), max_nfe=self.max_nfe)

    def step(self, number: int) -> Step:
        """Return the step for all rows."""
        step = Step(
            number=number,
            final=number == self.steps - 1,
            batch=len(self.z),
            rows=self.rows,
            tokens=self.z,
            open=(self.z == self.mask_id) & self.free,
            free=self.free,
            total=self.total,
            remaining=self.remaining,
            closed=self.closed,
            max_steps=self.max_steps,
            seeds=self.seeds,
            host_seeds=self.host_seeds,
            memory=self.memory,
            denoiser=self.denoiser,
            rates=self.parts.tokens_per_step.rates(number),
        )
        if self.parts.remasking.active and not step.final:
            step.remask_rate = self.parts.remasking.rate(step)
        return step

    def take_part(self, step: Step) -> tuple[Step, Tensor, Tensor]:
        """Return the step for the rows that fill positions, their indices, and their numbers of positions, int64 [A].

        If tokens per step depends on the predictions, the numbers are those of the open positions.
        """
        count = self.remaining
        if not step.final and not self.parts.tokens_per_step.needs:
            count = self.parts.tokens_per_step.num_to_unmask(step).clamp(min=0).minimum(count)
        rows = (count > 0).nonzero().squeeze(1)
        # If no row or every row takes part, selecting rows would be an unnecessary copy to the device.
        return (step if len(rows) in (0, len(count)) else step.select(rows)), rows, count[rows]

    def advance(self, step: Step, rows: Tensor, count: Tensor) -> None:
        """Evaluate the network, choose `count` positions of the rows, and fill them."""
        self.nfe[rows] += 1
        step.denoiser = self.denoiser.select(step.rows)
        path = self.predict_then_choose if step.final or self.needs_all_logits else self.choose_then_predict
        chosen, count, where, log_probs = path(step, rows, count)
        tokens = self.tokens(step, log_probs, *where) if step.drawn is None else step.drawn[step.among_open(*where)]
        step.tokens = step.tokens.masked_scatter(chosen, tokens)
        self.z = self.z.index_copy(0, step.rows, step.tokens)
        self.remaining = self.remaining.index_copy(0, rows, step.remaining - count)
        row, position = step.rows[where[0]], where[1]
        if self.remembers:
            self.confidence[row, position] = log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1).exp().float()
        if self.observe is not None:
            filled = {"rows": row, "positions": position, "tokens": tokens}
            self.tell({"step": step.number} | {key: values.tolist() for key, values in filled.items()})

    def choose_then_predict(self, step: Step, rows: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Where, Tensor]:
        """Choose positions from z, and evaluate the network only at these positions.

        Returns the positions, bool [A, L], their number, int64 [A] on the CPU, their indices, and log-probabilities,
        [M, V].
        """
        self.weigh(step)
        chosen = first_of(self.rank(step), count)
        where = positions(chosen, count)
        return chosen, count, where, step.denoiser(step.tokens, self.times(step), where)

    def predict_then_choose(self, step: Step, rows: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Where, Tensor]:
        """Evaluate the network at all open positions, and choose from its predictions, or fill all in the last step."""
        log_probs = step.log_probs = self.predict(step, rows)
        if "history" in self.needs:
            confidence = step.mean_open(step.spread(log_probs.amax(-1).double().exp())).unsqueeze(1)
            step.history = torch.cat([self.history[step.rows, 1:], confidence], dim=1)
            self.history[step.rows] = step.history
        if step.final:
            return step.open, count, step.where, log_probs
        if "drawn" in self.needs:
            step.drawn = self.tokens(step, log_probs, *step.where)
            step.drawn_log_probs = log_probs.gather(1, step.drawn.unsqueeze(1)).squeeze(1)
        chosen, count = self.choose(step, count)
        where = positions(chosen, count)
        return chosen, count, where, log_probs[step.among_open(*where)]

    def tokens(self, step: Step, log_probs: Tensor, row: Tensor, position: Tensor) -> Tensor:
        """Return sampled or forced tokens, int64 [M], at rows and positions [M], from log-probabilities [M, V]."""
        if self.forced is not None:
            return self.forced.take(self.parts.token_sampling.log_prob, log_probs, step, row, position)
        # The key is the kind's earlier name: a different key would change the texts of each seed.
        return self.parts.token_sampling(log_probs, fold(step.keys("draw")[row], position), step, row)

    def times(self, step: Step) -> Tensor | None:
        return self.parts.tokens_per_step.times(step) if self.denoiser.reads_time else None

    def weigh(self, step: Step) -> None:
        """Set the step's importance with an estimator that is given z, which needs no forward pass of the network."""
        if self.weighs and not self.drafts:
            step.importance = step.denoiser.importance(step.tokens, step.tokens == self.mask_id)

    def predict(self, step: Step, rows: Tensor) -> Tensor:
        """Return the log-probabilities [N, V] at the open positions, and set the step fields that components need."""
        if step.final:
            return step.denoiser(step.tokens, self.times(step), step.where)
        self.weigh(step)
        masked, where = step.open, step.where
        among: Tensor | slice = slice(None)
        if self.drafts and bool(self.closed.any()):
            masked = step.tokens == self.mask_id
            where = positions(masked, step.remaining + self.closed[rows])
            row, position = step.where
            among = (masked.flatten().cumsum(0) - 1)[row * masked.shape[1] + position]
        t = self.times(step)
        if "order_weights" in self.needs:
            if not step.denoiser.gives_order_weights:
                raise UserError(
                    "the decoding order 'learned' needs reverse weights, which this model does not have; "
                    'train it with objective.use = "adaptive", or choose a different sampler'
                )
            log_probs, weights = step.denoiser.predict_with_order(step.tokens, t, where)
            step.order_weights = weights[among]
        elif "rescored" in self.needs:
            if not step.denoiser.scores_visible_tokens:
                raise UserError(
                    "this sampler's remasking needs the probabilities of visible tokens, which this model or its "
                    "guidance does not provide; choose a different sampler, such as remdm_conf"
                )
            row, position = positions(step.free & ~step.open, step.total - step.remaining)
            log_probs, own = step.denoiser.score_visible(step.tokens, t, where, (row, position))
            self.confidence[step.rows[row], position] = own.exp().float()
        else:
            log_probs = step.denoiser(step.tokens, t, where)
        if self.drafts:
            draft = step.tokens.masked_scatter(masked, log_probs.argmax(-1))
            step.importance = step.denoiser.importance(draft, masked)
        return log_probs[among]

    def choose(self, step: Step, count: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions to fill, bool [A, L], and their number, int64 [A] on the CPU."""
        tokens_per_step, stop = self.parts.tokens_per_step, self.parts.stopping_rule
        ranking = self.rank(step)
        if tokens_per_step.needs:
            step.ranking = ranking
            taken = tokens_per_step.num_to_unmask(step)
            chosen = (taken if taken.dtype == torch.bool else first_of(ranking, taken)) & step.open
        else:
            chosen = first_of(ranking, count)
        if stop.active:
            stopped = stop(step)
            self.stopped[step.rows] = stopped
            chosen = chosen | (stopped.unsqueeze(1) & step.open)
        return chosen, to_host(chosen.sum(1)) if tokens_per_step.needs or stop.active else count

    def rank(self, step: Step) -> Tensor:
        """Return the positions sorted by the order, int64 [A, L]."""
        scores = self.parts.order(step)
        # An open position comes before all others, even with a score of −∞.
        scores = torch.where(step.open, scores.clamp(min=torch.finfo(scores.dtype).min), -torch.inf)
        # A stable sort: among equal scores the leftmost comes first, in any batch and on every device.
        return scores.sort(dim=1, descending=True, stable=True).indices

    def remasking(self, everyone: Step) -> None:
        """Remask tokens in all sequences that had open positions."""
        masked = self.z == self.mask_id
        open_, fresh = masked & self.free, everyone.open & ~masked
        after = attrs.evolve(everyone, tokens=self.z, open=open_, remaining=self.remaining, fresh=fresh)
        after.confidence = self.confidence if self.remembers else None
        remasked = self.parts.remasking(after) & self.free & ~after.open & ~self.stopped.unsqueeze(1)
        self.z = self.z.masked_fill(remasked, self.mask_id)
        self.remaining = to_host(((self.z == self.mask_id) & self.free).sum(1))
        self.confidence = self.confidence.masked_fill(remasked, 1.0)
        if self.observe is not None:
            row, position = (t.tolist() for t in remasked.nonzero().unbind(1))
            if row:
                self.tell({"step": everyone.number, "hidden": {"rows": row, "positions": position}})

    def tell(self, record: dict[str, Any]) -> None:
        """Call the observer, and fill the masks of the rows that it abandons, which take part in no further steps."""
        assert self.observe is not None
        # Of several batches, it may name rows of another one.
        rows = {row for row in self.observe(record) or () if 0 <= row < len(self.z)} - self.given_up
        if rows:
            self.given_up |= rows
            gone = torch.zeros_like(self.stopped)
            gone[list(rows)] = True
            self.z = self.z.masked_fill(gone.unsqueeze(1) & self.free & (self.z == self.mask_id), 0)
            self.free = self.free & ~gone.unsqueeze(1)
            self.remaining = self.remaining.index_fill(0, torch.tensor(list(rows)), 0)


def first_of(ranking: Tensor, count: Tensor) -> Tensor:
    """Return a mask, bool [A, L], of the first `count` positions in each row of a ranking.

    The ranking is int64 [A, L], and `count` int64 [A].
    """
    there = count.to(ranking.device, non_blocking=True)
    first = torch.arange(ranking.shape[1], device=ranking.device) < there.unsqueeze(1)
    return torch.zeros_like(first).scatter_(1, ranking, first)
