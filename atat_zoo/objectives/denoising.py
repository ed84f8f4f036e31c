"""Common code of objectives with a denoiser p_θ(x_i | z). B rows of a micro-batch, N of the global batch, L tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atat_zoo.backbones.prior import neighbours_of
from atat_zoo.diffusion.bounds import average
from atat_zoo.diffusion.contracts import Denoiser, Masked, StatefulPart
from atat_zoo.diffusion.dropout import set_keys
from atat_zoo.diffusion.randomness import row_keys, stratified, uniform
from atat_zoo.objectives import NO_SCORES
from atat_zoo.objectives.chunks import in_chunks, rows_for, weighted_sum, wide
from atat_zoo.rates import NoiseRates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from atat_zoo.bounds import Bound
    from atat_zoo.diffusion.bounds import Estimate, WeightedMask
    from atat_zoo.diffusion.contracts import Levels
    from atat_zoo.diffusion.positions import Where
    from atat_zoo.objectives import Batch, Scores
    from atat_zoo.registry import Context

    Losses = Callable[..., dict[str, Tensor]]


class States(NamedTuple):
    """What the head reads of places, [B, L] or [N]; R is the reach of the backbone's prior."""

    hidden: Tensor  # [..., D]
    neighbours: Tensor | None = None  # the visible ones, int64 [..., 2R], as `neighbours_of` has them; None without

    def at(self, where: Where) -> States:
        """Return those of some places; `where` is anything that indexes a tensor."""
        return States(self.hidden[where], None if self.neighbours is None else self.neighbours[where])


class DenoisingModule(nn.Module):
    """An `ObjectiveModule` without its loss: times, uniform masks, the denoiser under SUBS and its bound."""

    def __init__(self, context: Context, parts: Mapping[str, Any], batch_size: int) -> None:
        super().__init__()
        self.context, self.batch_size = context, batch_size
        self.backbone, self.noise = parts["backbone"], parts["noise"]
        self.rates: Any = parts.get("rates", NoiseRates())
        # The importance of tokens, in objectives that use an estimator.
        self.estimator: Any = None
        self.stride = golden_stride(batch_size)
        self.stateful = StatefulParts()

    def importance(self, tokens: Tensor, maskable: Tensor, t: Tensor | None) -> Tensor:
        """See `ObjectiveModule`; only where there is an estimator."""
        importance: Tensor = self.estimator(tokens, self.backbone.embedding(tokens).detach(), t, maskable)
        return importance

    def begin(self, batch: Batch) -> None:
        """Give the dropout layers their keys for a training step."""
        if self.training:
            set_keys(self, row_keys(self.context.seed, "dropout", batch.index))

    def times(self, index: Tensor) -> Tensor:
        """Return t_j = 1 − ((u + j/N) mod 1), float32 [B] in (0, 1]; one u in [0, 1) for all rows of a step.

        An objective with rates draws these by the same numbers. Rows take the strata j in strides of about N/φ, so the
        times of every micro-batch cover (0, 1]: the number of masked positions, and so the memory for logits, is about
        the same in each.
        """
        step, row = index // self.batch_size, index * self.stride % self.batch_size
        keys = row_keys(self.context.seed, "time", step)
        return (1 - stratified(keys, row, self.batch_size, torch.float64)).float()

    def levels(self, u: Tensor, batch: Batch) -> Levels:
        """Return the rates that u, [B] or [B, K] in (0, 1], draws at the progress of the batch; see `Rates.levels`."""
        levels: Levels = self.rates.levels(u, self.noise, batch.progress)
        return levels

    def masked(self, batch: Batch, masked: Tensor, t: Tensor, p: Tensor, rate: Tensor | None = None) -> Masked:
        """Return a step for a mask drawn with probabilities p, both [B, L]; the rate is 1 − α(t) unless given."""
        z = torch.where(masked, self.context.mask_id, batch.tokens)
        rate = 1 - self.noise.alpha(t) if rate is None else rate
        return Masked(x=batch.tokens, z=z, masked=masked, maskable=batch.maskable, t=t, rate=rate, p=p)

    def masked_uniformly(self, batch: Batch, t: Tensor, rate: Tensor | None = None) -> Masked:
        """Mask every maskable token with the same probability, [B], by its row's key: 1 − α(t) unless given."""
        rate = 1 - self.noise.alpha(t) if rate is None else rate
        p = rate[:, None] * batch.maskable
        keys = row_keys(self.context.seed, "mask", batch.index)
        return self.masked(batch, uniform(keys, p.shape[1]) < p, t, p, rate)

    def hidden(self, z: Tensor, t: Tensor | None) -> Tensor:
        """Return the backbone's hidden states [B, L, D]; if t is None, it follows from the share of masked tokens."""
        if not self.backbone.reads_time:
            return self.backbone(z)
        if t is None:
            t = self.noise.time_at((z == self.context.mask_id).float().mean(1))
        return self.backbone(z, t.float())

    @property
    def prior(self) -> Any:
        """The backbone's `NeighbourPrior`, or None."""
        return getattr(self.backbone, "prior", None)

    def neighbours(self, z: Tensor, reach: int) -> Tensor:
        """Return the tokens beside each place that its prediction may read, int64 [B, L, 2R], V where there is none."""
        return neighbours_of(z, reach, self.context.mask_id)

    def states(self, z: Tensor, t: Tensor | None) -> States:
        """Return what the head reads at every place, [B, L]."""
        return States(self.hidden(z, t), None if self.prior is None else self.neighbours(z, self.prior.reach))

    def score(self, states: States, x: Tensor | None = None) -> Tensor:
        """Return logits of N places, float32 or wider, [N, V].

        Args:
            states: of the places, [N].
            x: their true tokens in a training, [N]: those that the prior has counted, and leaves out.
        """
        logits = wide(self.backbone.head(states.hidden))
        return logits if states.neighbours is None else self.prior(logits, states.neighbours, x)

    def places(self, z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> States:
        """Return what the head reads at the masked positions of z, [N].

        Args:
            z: noisy tokens, int64 [B, L].
            t: diffusion time [B], or None.
            masked: bool [B, L] with N true entries.
            x: clean tokens, int64 [B, L]; read only by models that see the clean text of earlier positions.
        """
        return self.states(z, t).at(masked)

    def each(self, states: States, x: Tensor, losses: Losses, *known: Tensor) -> dict[str, Tensor]:
        """Return functions of the logits of N places, [N] by name, a bounded number of places at a time.

        Args:
            states: of the places, [N].
            x: their true tokens, int64 [N].
            losses: from logits [n, V], tokens [n], hidden states [n, D] and `known` [n] of some places to tensors [n]
                by name.
            known: what else the losses read of the places, [N] each.
        """
        rows = rows_for(self.context.vocabulary_size, x.device)
        return in_chunks(self.scored(losses), rows, states.hidden, states.neighbours, x, *known)

    def scored(self, losses: Losses) -> Losses:
        """Return the losses as a function of hidden states, neighbours, tokens and what is known of some places."""

        def some(hidden: Tensor, neighbours: Tensor | None, x: Tensor, *known: Tensor) -> dict[str, Tensor]:
            return losses(self.score(States(hidden, neighbours), self.counted(x)), x, hidden, *known)

        return some

    def minimised(
        self, states: States, step: Masked, weight: Tensor, batch: Batch, losses: Losses | None = None, *known: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return Σ weight · loss / Σ maskable, as `normalised` has it, and the cross-entropy [B, L] without gradient.

        That the weights are known before the losses makes it as fast in chunks as without: see `weighted_sum`.

        Args:
            states: of the masked places, [N].
            step: the masked batch.
            weight: of each loss, [B, L], without a gradient.
            batch: for its size.
            losses: as in `each`, which name a `"loss"` and a `"cross_entropy"`; the cross-entropy is both if None.
            known: as in `each`, without a gradient.
        """
        where, losses = step.masked, losses or cross_entropy
        x, rows = step.x[where], rows_for(self.context.vocabulary_size, where.device)
        if len(x) <= rows or not torch.is_grad_enabled():
            found = {name: dense(where, each) for name, each in self.each(states, x, losses, *known).items()}
            return normalised(weight * found["loss"], batch), found["cross_entropy"].detach()
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
        others = (states.neighbours, x, *known)
        total, found = weighted_sum(self.scored(losses), rows, weight[where], learned, states.hidden, *others)
        return total / len(where) / batch.mean_maskable, dense(where, found["cross_entropy"])

    def counted(self, x: Tensor) -> Tensor | None:
        """Return the true tokens in a training, whose text the prior has counted; None for other text."""
        return x if self.training else None

    def cross_entropy(self, z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> Tensor:
        """See `ObjectiveModule`; float32 or wider, under SUBS: visible tokens cost nothing."""
        return self.at_places(self.places(z, t, masked, x), x[masked])

    def at_places(self, states: States, x: Tensor) -> Tensor:
        """Return −log p_θ(x_i | z) of N places, nats, float32 or wider [N], from what the head reads of them."""
        return self.each(states, x, cross_entropy)["cross_entropy"]

    def of_step(self, step: Masked) -> States:
        """Return what the head reads at the masked positions of a step, [N]."""
        return self.places(step.z, step.t, step.masked, step.x)

    def dense_cross_entropy(self, step: Masked) -> Tensor:
        """Return the cross-entropy of a step with its gradient, float32 [B, L], zero where nothing is masked.

        For losses whose weights depend on it; with weights that are known before, `minimised` is faster.
        """
        return dense(step.masked, self.cross_entropy(step.z, step.t, step.masked, step.x))

    def denoiser(self) -> Denoiser:
        """See `ObjectiveModule`."""
        return Predictor(self)

    def masks(self, maskable: Tensor, keys: Tensor, draws: int, method: Bound) -> Iterable[WeightedMask]:
        """Return the masks that the bound is averaged over; see `Bound.masks`."""
        return method.masks(maskable, keys, draws, self.noise)

    def token_bounds(self, logits: Tensor, x: Tensor, quantity: str) -> dict[str, Tensor]:
        """Return the losses of the masked tokens x [N], nats [N], by the name of the bound; logits are [N, V]."""
        return {quantity: F.cross_entropy(logits, x, reduction="none")}

    def bound(
        self, tokens: Tensor, maskable: Tensor, keys: Tensor, draws: int, method: Bound, scores: Scores = NO_SCORES
    ) -> dict[str, Estimate]:
        """See `ObjectiveModule`: the bound of p_θ under uniform masking, the scores, and `own_bounds`."""

        def at_masked(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> dict[str, Tensor]:
            return self.each(self.places(z, t, masked, x), x[masked], of_logits)

        def of_logits(logits: Tensor, true: Tensor, _: Tensor) -> dict[str, Tensor]:
            asked = {name: score(logits, true) for name, score in scores.items()}
            return self.token_bounds(logits, true, method.quantity) | asked

        averages = average(at_masked, tokens, self.masks(maskable, keys, draws, method), self.context.mask_id)
        return averages | self.own_bounds(tokens, maskable, keys, draws)

    def own_bounds(self, tokens: Tensor, maskable: Tensor, keys: Tensor, draws: int) -> dict[str, Estimate]:
        """Return the bounds under the objective's own forward process, by name; none by default."""
        return {}

    def stage(self, progress: float) -> str:
        """See `ObjectiveModule`: there is one stage."""
        return "train"

    def curriculum_strength(self, progress: float) -> float | None:
        """See `ObjectiveModule`: there is none."""
        return None

    def begin_step(self) -> None:
        """See `ObjectiveModule`."""
        self.stateful.totals.clear()

    def end_step(self, reduce: Callable[[Tensor], None], progress: float) -> None:
        """See `ObjectiveModule`."""
        self.stateful.end_step(reduce, progress)


class StatefulParts:
    """The stateful parts of an objective, and their statistics of the current step."""

    def __init__(self, **parts: Any) -> None:
        self.parts = {name: part for name, part in parts.items() if isinstance(part, StatefulPart)}
        self.totals: dict[str, Tensor] = {}

    def observe(self, step: Masked, ce: Tensor) -> None:
        """Add the statistics of a micro-batch, with its cross-entropy [B, L]."""
        for name, part in self.parts.items():
            seen = part.statistics(step, ce.detach())
            self.totals[name] = self.totals[name] + seen if name in self.totals else seen

    def end_step(self, reduce: Callable[[Tensor], None], progress: float) -> None:
        """Update the parts with the sums over micro-batches and, by `reduce`, over ranks."""
        for name, part in self.parts.items():
            total = self.totals.pop(name, None)
            if total is not None:
                reduce(total)
                part.update(total, progress)


class Predictor(Denoiser):
    """p_θ(x_i | z) of a module, which scores visible tokens and has the importance of the module's estimator."""

    scores_visible_tokens = True

    def __init__(self, module: DenoisingModule) -> None:
        self.module = module
        self.mask_id, self.window = module.context.mask_id, module.context.length
        self.reads_time = module.backbone.reads_time
        self.estimates_importance = module.estimator is not None
        if module.estimator is not None:
            self.importance_reads = module.estimator.reads

    def time_at(self, rate: Tensor) -> Tensor:
        """See `Denoiser`."""
        t: Tensor = self.module.noise.time_at(rate)
        return t

    def importance(self, tokens: Tensor, masked: Tensor) -> Tensor | None:
        """See `Denoiser`; all tokens count as maskable."""
        if not self.estimates_importance:
            return None
        t = self.time_at(masked.float().mean(1)) if self.module.estimator.reads_time else None
        return self.module.importance(tokens, torch.ones_like(masked), t)

    def states(self, tokens: Tensor, t: Tensor | None) -> States:
        """Return what the head reads at every place, [B, L]."""
        return self.module.states(tokens, t)

    def log_probs(self, states: States) -> Tensor:
        """Return log-probabilities of N places, [N, V]."""
        return self.module.score(states).log_softmax(-1)

    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return SUBS log-probabilities [N, V]."""
        return self.log_probs(self.states(tokens, t).at(where))

    def everywhere(self, tokens: Tensor, t: Tensor | None, where: Where, visible: Where) -> tuple[Tensor, Tensor]:
        """Return the same, and the head's log-probability of M visible tokens [M], in one pass of the backbone."""
        states = self.states(tokens, t)
        logits = self.module.score(states.at(visible))
        return self.log_probs(states.at(where)), -F.cross_entropy(logits, tokens[visible], reduction="none")


def cross_entropy(logits: Tensor, x: Tensor, _: Tensor) -> dict[str, Tensor]:
    """Return −log p(x) of N places, nats [N], from logits [N, V]; it is the loss, too."""
    ce = F.cross_entropy(logits, x, reduction="none")
    return {"loss": ce, "cross_entropy": ce}


def golden_stride(strata: int) -> int:
    """Return the smallest stride from N/φ upwards that visits all N strata."""
    golden = round(strata * 0.618034)
    return next(s for s in range(max(1, golden), 2 * strata + 1) if math.gcd(s, strata) == 1)


def dense(where: Tensor, values: Tensor) -> Tensor:
    """Return [N] values at the N true positions of `where` [B, L], zero elsewhere."""
    return torch.zeros(where.shape, dtype=values.dtype, device=values.device).masked_scatter(where, values)


def normalised(losses: Tensor, batch: Batch) -> Tensor:
    """Return Σ losses / Σ maskable over the global batch, as this micro-batch's mean over rows, from [B, L]."""
    return losses.sum(1).mean() / batch.mean_maskable


def importance_loss(importance: Tensor, target: Tensor, counted: Tensor) -> Tensor:
    """Return the squared distance of the importance to its target over the tokens that count, all [B, L].

    A mean over rows of means within rows: the same whatever the micro-batch.
    """
    squared = torch.where(counted, importance - target, 0.0).square().sum(1)
    return (squared / counted.sum(1).clamp(min=1)).mean()


def metrics(step: Masked, ce: Tensor, diffusion_loss: Tensor, loss: Tensor | None = None) -> dict[str, Tensor]:
    """Return the metrics of a step.

    Args:
        step: the masked batch.
        ce: cross-entropy, float32 [B, L], zero where nothing is masked.
        diffusion_loss: the loss of p_θ.
        loss: the total loss, if it has other terms.
    """
    ce = ce.detach()
    masked, maskable = step.masked.sum(), step.maskable.sum().clamp(min=1)
    return {
        "loss": diffusion_loss if loss is None else loss,
        "diffusion_loss": diffusion_loss.detach(),
        "cross_entropy": ce.sum() / masked.clamp(min=1),
        "mask_rate": masked / maskable,
        "mask_rate_target": (step.rate * step.maskable.sum(1)).sum() / maskable,
        "rates": step.rate,
        "token_loss": ce,
        "masked": step.masked,
        "maskable": step.maskable,
    }
