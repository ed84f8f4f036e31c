"""What an estimator learns from each target, where it is certain: independent tokens of known frequency.

The denoiser knows the frequencies from the start, and there is nothing else to know: the loss of a token v is
−log p(v) whatever surrounds it, so a token is the harder the rarer it is.
"""

import numpy as np
import pytest
import torch

from atat_zoo.diffusion.randomness import sequence_keys, uniform
from atat_zoo.diffusion.statistics import spearman
from atat_zoo.registry import Context
from tests.modeling.objectives.small_objectives import PARTS, assembled, full_batch

pytestmark = pytest.mark.slow  # it is a training
P = torch.tensor([0.55, 0.25, 0.15, 0.05], dtype=torch.float64)
L, N, STEPS = 16, 64, 80
CONTEXT = Context(
    vocabulary_size=len(P), length=L, width=16, steps=STEPS, counts=(P.numpy() * 1e6).astype(np.int64), seed=2
)


def text(first, rows):
    """Independent tokens, int64 [rows, L]; row number n is always the same."""
    u = uniform(sequence_keys(0, "text", torch.arange(first, first + rows)), L, torch.float64)
    return torch.searchsorted(P.cumsum(0), u).clamp(max=len(P) - 1)


def trained(target):
    torch.manual_seed(0)
    # Where the mask itself is the target, it is the only thing to learn.
    objective = {"use": "mdlm", "importance_loss_weight": 1.0}
    parts = {"estimator": PARTS["estimator"] | {"width": 16}, "masking": "uniform", "curriculum": "none"}
    module = assembled(
        objective, CONTEXT, N, backbone=PARTS["backbone"] | {"output_bias": "unigram"}, target=target, **parts
    )
    optimizer = torch.optim.AdamW(module.parameters(), lr=8e-3)
    for step in range(STEPS):
        batch = full_batch(text(step * N, N), step, progress=step / STEPS)
        optimizer.zero_grad()
        module.loss(batch)["loss"].backward()
        for group in optimizer.param_groups:
            group["lr"] = 8e-3 * (1 - step / STEPS)
        optimizer.step()
    return module


@torch.no_grad()
def importance(module):
    """Importance of fresh text, and the loss that its tokens have, both [M]."""
    tokens = text(10**6, 500)
    found = module.eval().importance(tokens, torch.ones_like(tokens, dtype=torch.bool), None)
    return tokens.flatten(), found.double().flatten(), -P.log()[tokens.flatten()]


def test_difficulty_learns_which_tokens_are_hard():
    tokens, found, loss = importance(trained("difficulty"))
    # The most that an importance without ties can reach of a loss with such large ones: its order is perfect.
    most = float(1 - P.pow(3).sum()) ** 0.5
    assert spearman(found, loss) > 0.99 * most
    # The optimum is known too. A row with n masked tokens, all n alike, gives token v the expected rank
    # (½ + (n − 1)·c)/n with c = Σ_{more frequent u} p(u) + p(v)/2; n ≥ 2 has an order.
    c = P.cumsum(0) - P / 2
    n = torch.arange(2, L + 1)[:, None]
    optimum = ((0.5 + (n - 1) * c) / n).mean(0)
    by_token = torch.stack([found[tokens == v].mean() for v in range(len(P))])
    assert by_token.tolist() == pytest.approx(optimum.tolist(), abs=0.06)
