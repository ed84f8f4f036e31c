"""Measure a model on held-out sequences: the nats of every token, under every bound of its objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from atat_zoo.diffusion.bounds import average
from atat_zoo.diffusion.randomness import row_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from atat_zoo.bounds import Bound
    from atat_zoo.objectives import Score


@attrs.frozen(kw_only=True, eq=False)
class Measurement:
    """A model measured on n sequences of L tokens."""

    rows: Tensor  # number of each sequence in the held-out set, int64 [n]
    tokens: Tensor  # int64 [n, L]
    maskable: Tensor  # bool [n, L]
    # the share of each token in each of the objective's bounds, by name, nats, float64 [n, L]
    contribution: Mapping[str, Tensor]
    # cross-entropy averaged over the draws that masked the token, NaN if none did, float64 [n, L]
    token_loss: Tensor
    # float32 [n, L], or None when the objective uses no estimator; of one that reads z the average over the draws that
    # masked the token, NaN if none did
    importance: Tensor | None
    # the requested scores by name: weighted sum over the masks and sum of weights of each sequence, float64 [n, 2]
    scores: Mapping[str, Tensor] = attrs.field(factory=dict)

    @staticmethod
    def join(pieces: Sequence[Measurement]) -> Measurement:
        """Join the measurements of several processes, in the order of the rows."""
        order = torch.cat([p.rows for p in pieces]).argsort()

        def joined(values: list[Any]) -> Any:
            if isinstance(values[0], dict):  # a process without rows has no bounds and no scores
                names = max(values, key=len)
                return {name: joined([value[name] for value in values if name in value]) for name in names}
            return None if values[0] is None else torch.cat(values)[order]

        fields = [f.name for f in attrs.fields(Measurement)]
        return Measurement(**{name: joined([getattr(p, name) for p in pieces]) for name in fields})


@torch.no_grad()
def measure(
    module: Any,
    tokens: Tensor,
    maskable: Tensor,
    rows: Tensor,
    *,
    seed: int,
    draws: int,
    batch_size: int,
    bound: Bound,
    scores: Mapping[str, Score] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Measurement:
    """Run an objective's bounds on held-out sequences.

    The masks are a function of (seed, row), so they are the same for every
    model, every number of processes and every batch size.

    The module is an `ObjectiveModule`. Tokens are int64 and maskable bool [n, L]; rows, int64 [n], number the sequences
    of the held-out set. `draws` are masks per sequence, `batch_size` sequences at once. `scores` are averaged
    over the same masks. `progress` is called with the completed and the total number of
    sequences.
    """
    training, device = module.training, next(module.parameters()).device
    denoiser = module.denoiser()
    estimates_importance = denoiser.estimates_importance
    module.eval()
    options = {"scores": scores} if scores else {}
    contribution: dict[str, list[Tensor]] = {}
    scored: dict[str, list[Tensor]] = {name: [] for name in scores or ()}
    losses, importance = [], []
    try:
        for first in range(0, len(tokens), batch_size):
            x, of_text = (a[first : first + batch_size].to(device) for a in (tokens, maskable))
            keys = row_keys(seed, "evaluation", rows[first : first + batch_size].to(device))
            estimates = module.bound(x, of_text, keys, draws, bound, **options)
            for name, estimate in estimates.items():
                if name in scored:
                    sums = (estimate.contribution.sum(1), estimate.weight.sum(1))
                    scored[name].append(torch.stack(sums, 1).cpu())
                else:
                    contribution.setdefault(name, []).append(estimate.contribution.cpu())
            # The losses of the first bound: the one under uniform masking, if that was estimated.
            estimate = next(iter(estimates.values()))
            losses.append((estimate.loss_sum / estimate.loss_count).cpu())
            if estimates_importance and denoiser.importance_reads == "z":
                importance.append(_importance_when_hidden(module, x, of_text, keys, draws, bound).cpu())
            elif estimates_importance:
                # A time-conditioned estimator is evaluated at the middle of the diffusion.
                t = torch.full((len(x),), 0.5, device=device)
                importance.append(module.importance(x, of_text, t).float().cpu())
            if progress:
                progress(first + len(x), len(tokens))
    finally:
        module.train(training)
    # A process has no rows if there are more processes than sequences.
    empty = torch.zeros(0, tokens.shape[1], dtype=torch.float64)
    return Measurement(
        rows=rows,
        tokens=tokens,
        maskable=maskable,
        contribution={name: torch.cat(values) for name, values in contribution.items()},
        token_loss=torch.cat([empty, *losses]),
        importance=torch.cat([empty.float(), *importance]) if estimates_importance else None,
        scores={name: torch.cat(values) for name, values in scored.items() if values},
    )


def _importance_when_hidden(module: Any, x: Tensor, maskable: Tensor, keys: Tensor, draws: int, bound: Bound) -> Tensor:
    """Return each token's importance by an estimator that reads z, averaged over the masks of the bound that hide it.

    Float32 [n, L]; NaN where none does.
    """

    def at_masked(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> dict[str, Tensor]:
        return {"importance": module.importance(z, maskable, t)[masked]}

    masks = module.masks(maskable, keys, draws, bound)
    found = average(at_masked, x, masks, module.denoiser().mask_id)["importance"]
    return (found.loss_sum / found.loss_count).float()
