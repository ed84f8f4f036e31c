"""The mixture of two estimators."""

from __future__ import annotations

from torch import Tensor, nn


class Mix(nn.Module):
    """mix · a + (1 − mix) · b."""

    def __init__(self, a: nn.Module, b: nn.Module, mix: float) -> None:
        super().__init__()
        self.a, self.b, self.mix = a, b, mix
        self.reads_time = bool(a.reads_time or b.reads_time)

    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return importance [B, L]."""
        a = self.a(tokens, embedded, t, maskable)
        b = self.b(tokens, embedded, t, maskable)
        return self.mix * a + (1 - self.mix) * b
