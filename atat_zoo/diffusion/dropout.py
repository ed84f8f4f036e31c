"""Dropout whose mask depends on (seed, step, row), not on torch's global generator."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from atat_zoo.diffusion.randomness import bits32, fold
from atat_zoo.system.devices import move_to


class Dropout(nn.Module):
    """Dropout with probability p, drawn from keys that `set_keys` sets for each micro-batch.

    Each 32 random bits decide two entries, so p is rounded to a multiple of 1/65536. The scale uses the rounded p, so
    the expectation is exact.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.threshold = min(round(p * 65536), 65535)  # p < 1: not everything is dropped
        self.keys: Tensor | None = None
        self._call = 0

    @property
    def drops(self) -> bool:
        """Whether the layer drops anything, that is, during training with p > 0."""
        return self.training and self.threshold > 0

    def number(self, calls: int) -> int:
        """Return the number of the next call of `forward`, and reserve `calls` numbers, to pass when recomputing."""
        first = self._call + 1
        if self.drops:
            self._call += calls
        return first

    def forward(self, x: Tensor, call: int | None = None, keys: Tensor | None = None) -> Tensor:
        """Return x [B, …]; during training, with entries set to 0 at random, and the others scaled up.

        `call` defaults to the next number, and `keys` [B] to those from `set_keys`, without which dropout raises a
        `RuntimeError`. Activation checkpointing passes both, so that a recomputation drops the same entries.
        """
        if not self.drops:
            return x
        keys = self.keys if keys is None else keys
        if keys is None:
            raise RuntimeError("dropout has no keys for this batch; call set_keys(module, keys) first")
        call = self.number(1) if call is None else call
        if torch.compiler.is_compiling():
            apply: Any = _Masked.apply
            return apply(x, keys, call, self.threshold)
        entries = x[0].numel()
        bits = bits32(fold(keys, call), (entries + 1) // 2)
        retained = bits.view(torch.int16)[:, :entries] >= self.threshold - 32768
        return _scaled(x, retained, self.threshold)


class _Masked(torch.autograd.Function):
    """Dropout for `torch.compile`, fused with the next operation: the backward pass draws the mask again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, call: int, threshold: int) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.call, ctx.threshold = call, threshold
        return _scaled(x, _retained(keys, call, x[0].numel(), threshold), threshold)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (keys,) = ctx.saved_tensors
        # Negated twice, these are different operations to torch, which otherwise would recognise the mask and keep it.
        retained = _retained(keys.neg().neg(), ctx.call, gradient[0].numel(), ctx.threshold)
        return _scaled(gradient, retained, ctx.threshold), None, None, None


def _retained(keys: Tensor, call: int, entries: int, threshold: int) -> Tensor:
    """Return the mask from bit shifts, which can be fused; viewing the bits as a different dtype could not."""
    bits = bits32(fold(keys, call), (entries + 1) // 2)
    shifts = torch.arange(0, 32, 16, device=keys.device, dtype=torch.int32)
    return ((bits[..., None] >> shifts).flatten(1)[:, :entries] & 0xFFFF ^ 0x8000) >= threshold


def _scaled(x: Tensor, retained: Tensor, threshold: int) -> Tensor:
    return x * retained.view(x.shape) * (65536 / (65536 - threshold))


def set_keys(module: nn.Module, keys: Tensor) -> None:
    """Set the keys of a micro-batch, int64 [B], in every dropout layer of `module`; each layer derives its own."""
    number = 0
    for layer in module.modules():
        if isinstance(layer, Dropout) and layer.threshold:
            number += 1
            layer.keys = fold(keys, number)
            layer._call = 0


def groups_of_sequences(module: nn.Module, groups: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield each group of row indices, int64 [A], with dropout set to those rows' keys: grouping changes no mask."""
    drops = [layer for layer in module.modules() if isinstance(layer, Dropout) and layer.drops]
    before = {layer: (layer.keys, layer._call) for layer in drops}
    for rows in groups:
        for layer, (keys, call) in before.items():
            assert keys is not None
            layer.keys, layer._call = keys[move_to(rows, keys.device)], call
        yield rows
    for layer, (keys, _) in before.items():
        layer.keys = keys
