"""The exact value of the bound of T steps, by all masks of a toy."""

import attrs
import torch

from atat_zoo.diffusion.likelihood_bounds import all_masks, average, unmask_probability


def enumerate_discrete(losses, x, *, mask_id, alpha, steps, time_at=None):
    """Return the bound of T steps of every sequence, in nats, float64 [B]; see `discrete_t`."""
    i, L = torch.arange(1, steps + 1), x.shape[1]
    beta, visible = unmask_probability(i, steps, alpha), alpha(i.double() / steps)
    masks = []
    for mask in all_masks(x, time_at):
        k = int(mask.masked[0].sum())
        # `average` divides by the number of masks.
        weight = float((beta * (1 - visible) ** k * visible ** (L - k)).sum()) * (2**L - 1)
        masks.append(attrs.evolve(mask, weight=torch.full_like(mask.weight, weight)))
    return average(lambda *at: {"bound": losses(*at)}, x, masks, mask_id)["bound"].nelbo
