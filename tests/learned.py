"""What unlimited capacity learns from masks q(M|x) and loss weights h, by enumeration on a toy.

The optimal prediction is p(x_i | z_M) ∝ Σ over texts that agree with z_M of P(x) q(M|x) h_i(x): the posterior only if
q·h does not vary with what is hidden.
"""

import itertools
from math import comb

import torch

from atat_zoo.diffusion.randomness import fold, to_unit


def masks(length):
    """Every mask with at least one hidden place, bool [2^L − 1, L]."""
    return torch.tensor(list(itertools.product([False, True], repeat=length))[1:])


def conditionals(joint, weights):
    """Return the learned p(v | z_M) for every text's z_M, float64 [M, S, L, V], and where it is learned, [M, S, L].

    `weights` are q(M|x) h_i(x), float64 [M, S, L]. Nothing is learned where no text that agrees is masked so.
    """
    tokens = torch.nn.functional.one_hot(joint.states, joint.vocabulary_size).double()
    learned = []
    for mask, weight in zip(masks(joint.length), weights, strict=True):
        agrees = ((joint.states[:, None] == joint.states) | mask).all(-1).double()
        learned.append(torch.einsum("xy,y,yi,yiv->xiv", agrees, joint.p, weight, tokens))
    found = torch.stack(learned)
    total = found.sum(-1, keepdim=True)
    return found / total.clamp(min=1e-300), (total.squeeze(-1) > 0) & masks(joint.length)[:, None]


def posteriors(joint):
    """Return the true p(v | z_M), float64 [M, S, L, V]."""
    every = masks(joint.length)
    return torch.stack([joint.marginals(torch.where(mask, joint.mask_id, joint.states)) for mask in every])


def bound(joint, learned):
    """Return the mean uniform bound of the predictions [M, S, L, V] in nats: all orders of the places alike."""
    total = 0.0
    for mask, p in zip(masks(joint.length), learned, strict=True):
        k = int(mask.sum())
        ce = -p.gather(-1, joint.states[..., None])[..., 0].log()
        total += float((joint.p * ce[:, mask].sum(1)).sum()) / (k * comb(joint.length, k))
    return total


def scores_of(z):
    """Arbitrary scores of the positions of z, by all that is visible, [B, 3]."""
    key = torch.zeros_like(z[:, 0])
    for i in range(z.shape[1]):
        key = fold(key, z[:, i])
    return to_unit(fold(key[:, None], torch.arange(z.shape[1])))
