"""Importance estimators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from hypothesis import given
from torch import nn

from atat_zoo.testing.batches import VOCABULARY, built, close, holds, rows, tried

if TYPE_CHECKING:
    from atat_zoo.testing.batches import Rows


def check_estimator(estimator: Any, examples: int = 10) -> None:
    """Hold an estimator to its contract: importance in [0, 1] per token, row by row, blind to what is not maskable."""
    width = 8
    module = built(estimator, length=64, width=width)
    assert isinstance(module, nn.Module), "an estimator's build returns an nn.Module"
    module.eval()
    table = torch.randn(VOCABULARY, width, generator=torch.Generator().manual_seed(0))

    @tried(examples)
    @given(drawn=rows())
    def holds_range(drawn: Rows) -> None:
        shape = (drawn.rate.shape[0], min(drawn.importance.shape[-1], 64))
        tokens = (drawn.uniform(*shape) * VOCABULARY).long()
        maskable, t = drawn.maskable[:, : shape[1]], drawn.rate
        with torch.no_grad():
            importance = module(tokens, table[tokens], t, maskable)
            alone = module(tokens[7:8], table[tokens[7:8]], t[7:8], maskable[7:8])
        assert importance.dtype == torch.float32, f"importance is float32, not {importance.dtype}"
        assert importance.shape == shape, "importance has the shape of the tokens"
        holds((importance >= 0) & (importance <= 1), "importance is in [0, 1]")
        close(importance[7:8], alone, 1e-5, "a row does not depend on the others of its batch")

    holds_range()
