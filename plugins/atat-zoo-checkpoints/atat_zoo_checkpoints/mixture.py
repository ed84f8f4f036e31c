"""The mixture of experts in `llada2`.

Shapes: N tokens, D width, E experts in G groups, k experts per token.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atat_zoo_checkpoints.llama_module import SwiGLU


class Mixture(nn.Module):
    """Mixture of routed experts and shared experts (DeepSeek-V3, arXiv:2412.19437)."""

    def __init__(
        self,
        *,
        width: int,
        experts: int,
        expert_inner: int,
        shared_experts: int,
        chosen: int,
        groups: int,
        chosen_groups: int,
        scaling: float,
        dtype: torch.dtype,
        **others: Any,  # parameters that this module does not use
    ) -> None:
        super().__init__()
        self.router = Router(width, experts, groups, chosen_groups, chosen, scaling, dtype)
        self.experts = nn.ModuleList(SwiGLU(width, expert_inner, dtype) for _ in range(experts))
        self.shared_experts = SwiGLU(width, expert_inner * shared_experts, dtype) if shared_experts else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the output [..., D] for x [..., D]."""
        tokens = x.reshape(-1, x.shape[-1])
        chosen, weight = self.router(tokens)
        found = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if len(token):
                found = found.index_add(0, token, expert(tokens[token]) * weight[token, place, None].to(x.dtype))
        return found.view(x.shape) + (0 if self.shared_experts is None else self.shared_experts(x))


class Router(nn.Module):
    """Router that chooses k experts for each token from the groups whose two best experts have the highest scores."""

    def __init__(
        self,
        width: int,
        experts: int,
        groups: int,
        chosen_groups: int,
        chosen: int,
        scaling: float,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.groups, self.chosen_groups = groups, chosen_groups
        self.chosen, self.scaling = chosen, scaling
        self.weight = nn.Parameter(torch.empty(experts, width, dtype=dtype))
        nn.init.normal_(self.weight, std=1.0 / math.sqrt(width))
        # Balances the load: the bias affects which experts are chosen, but not their weights.
        self.expert_bias = nn.Buffer(torch.zeros(experts))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of the experts for tokens [N, D], int64 [N, k], and their weights, float32 [N, k]."""
        scores = F.linear(tokens.float(), self.weight.float()).sigmoid()
        biased = (scores + self.expert_bias).view(len(tokens), self.groups, -1)
        best = biased.topk(2, dim=-1).values.sum(-1).topk(self.chosen_groups, dim=-1).indices
        open_ = torch.zeros(len(tokens), self.groups, dtype=torch.bool, device=tokens.device).scatter(1, best, True)
        biased = biased.masked_fill(~open_[..., None], -torch.inf).flatten(1)
        chosen = biased.topk(self.chosen, dim=-1).indices
        weight = scores.gather(1, chosen)
        if self.chosen > 1:
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        return chosen, weight * self.scaling
