"""Dropout whose mask is a function of (seed, step, row), not of a global generator."""

import torch
from torch import Tensor, nn

from atat_zoo.diffusion.randomness import bits32, fold


class Dropout(nn.Module):
    """Zero each entry with probability p, by keys set for the micro-batch with `set_keys`.

    Each 32 bits decide two entries, so p is rounded to
    1/65536; the scale uses the rounded p, so the expectation is exact.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.threshold = min(round(p * 65536), 65535)  # p < 1: not everything is dropped
        self.keys: Tensor | None = None
        self._call = 0

    @property
    def drops(self) -> bool:
        """Whether anything is dropped."""
        return self.training and self.threshold > 0

    def number(self, calls: int) -> int:
        """Return the number of the next of so many calls, which count as made: what recomputes them draws the same."""
        first = self._call + 1
        if self.drops:
            self._call += calls
        return first

    def forward(self, x: Tensor, call: int | None = None) -> Tensor:
        """Return x [B, …] with entries dropped in training, else x; `call` is the next one's number unless given."""
        if not self.drops:
            return x
        if self.keys is None:
            raise RuntimeError("dropout has no keys for this batch; call set_keys(module, keys) first")
        call = self.number(1) if call is None else call
        entries = x[0].numel()
        bits = bits32(fold(self.keys, call), (entries + 1) // 2)
        if torch.compiler.is_compiling():
            # The same 16 bits by shifts, which join what reads them: as another type they would be written to memory.
            shifts = torch.arange(0, 32, 16, device=x.device, dtype=torch.int32)
            retained = ((bits[..., None] >> shifts).flatten(1) & 0xFFFF ^ 0x8000) >= self.threshold
        else:
            retained = bits.view(torch.int16) >= self.threshold - 32768
        return x * retained[:, :entries].view(x.shape) * (65536 / (65536 - self.threshold))


def set_keys(module: nn.Module, keys: Tensor) -> None:
    """Give every dropout of `module` the keys of a micro-batch, int64 [B]; each layer derives its own."""
    number = 0
    for layer in module.modules():
        if isinstance(layer, Dropout) and layer.threshold:
            number += 1
            layer.keys = fold(keys, number)
            layer._call = 0
