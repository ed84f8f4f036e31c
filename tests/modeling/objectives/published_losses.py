"""The losses of SEDD and D3PM as their papers write them, with full matrices, one place at a time, in float64.

Tokens are 0 … V−1, the mask is V. Matrices have a row for where a step comes from and a column for where it goes.
"""

import math

import torch
from scipy.linalg import expm


def score_entropy(f, x, alpha, slope):
    """Denoising score entropy at a position whose state is the mask (Lou et al., arXiv:2310.16834, equation 7).

    Σ_{y ≠ z} Q_t(z, y) [ s_y − r_y log s_y + K(r_y) ] with r_y = p_t(y | x) / p_t(z | x), K(a) = a (log a − 1),
    Q_t = σ(t) Q with Q the absorbing rates, and p_t = exp(σ̄(t) Q) p_0.

    Args:
        f: head's output [V]; the score is s_y = e^f α/(1 − α), as their `scale_by_sigma` has it.
        x: clean token.
        alpha: α(t) = exp(−σ̄).
        slope: α'(t).
    """
    V = len(f)
    rates = torch.zeros(V + 1, V + 1, dtype=torch.float64)  # from y to the mask, at rate 1
    rates[:V, :V] = -torch.eye(V)
    rates[:V, V] = 1
    # torch.matrix_exp is good to 1e-10 only.
    marginal = torch.from_numpy(expm(-math.log(alpha) * rates.numpy()))[x]
    sigma = -slope / alpha
    r = marginal / marginal[V]
    total = 0.0
    for y in range(V):
        s = f[y].exp() * alpha / (1 - alpha)
        k = r[y] * (r[y].log() - 1) if r[y] > 0 else 0.0
        total += sigma * rates[y, V] * (s - (r[y] * s.log() if r[y] > 0 else 0.0) + k)
    return total


def transitions(alphas, V):
    """Return Q_0 … Q_T of the absorbing process, each [V + 1, V + 1], for α at 0, 1/T, …, 1; Q_0 leads to α(0)."""
    made = []
    for stay in alphas / torch.cat([torch.ones(1), alphas[:-1]]):
        q = torch.zeros(V + 1, V + 1, dtype=torch.float64)
        q[:V, :V] = stay * torch.eye(V)
        q[:V, V] = 1 - stay
        q[V, V] = 1
        made.append(q)
    return made


def d3pm_kl(prediction, x, i, alphas, *, joint):
    """KL(q(x_s | x_t, x) ‖ p_θ(x_s | x_t)) at a position whose state is the mask (Austin et al., arXiv:2107.03006).

    Args:
        prediction: p̃_θ(x_0 | x_t), [V + 1].
        x: clean token.
        i: number of the step, t = i/T.
        alphas: α at 0, 1/T, …, 1.
        joint: equation 4 as printed, p_θ(x_s | x_t) ∝ Σ q(x_s, x_t | x_0) p̃(x_0); or with the posterior of equation 3,
            Σ q(x_s | x_t, x_0) p̃(x_0).
    """
    V = len(prediction) - 1
    steps = transitions(alphas, V)
    before = torch.eye(V + 1, dtype=torch.float64)
    for q in steps[:i]:
        before = before @ q
    both = before * steps[i][:, V]  # q(x_s, x_t = m | x_0), a row for each x_0
    posterior = both / both.sum(1, keepdim=True)
    truth = posterior[x]
    model = prediction @ (both if joint else posterior)
    model = model / model.sum()
    return torch.where(truth > 0, truth * (truth / model).log(), 0.0).sum()
