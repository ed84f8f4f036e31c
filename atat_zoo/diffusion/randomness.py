"""Counter-based random numbers: every draw is a function of (seed, purpose, row, counter).

A key is one int64 per row, derived from the seed, the name of the purpose and the row number; it determines any number
of uniform numbers. There is no generator state, so resuming, the number of ranks, the micro-batch size and the other
rows of a batch do not change a row's draws. Integer arithmetic is exact, so CPU and GPU draw the same numbers.

The mixing function is the 64-bit finaliser of MurmurHash3 (Appleby) with the constants of Stafford's variant 13, as
in SplitMix64 (Steele et al., OOPSLA 2014), applied to the Weyl sequence of the golden ratio.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MUL_1 = 0xBF58476D1CE4E5B9
_MUL_2 = 0x94D049BB133111EB
_ALL = (1 << 64) - 1
_GOLDEN_32 = 0x9E3779B9 - (1 << 32)


def _signed(value: int) -> int:
    """Return the int64 with the same bits."""
    value &= _ALL
    return value - (1 << 64) if value >> 63 else value


def _shift(x: Tensor, bits: int) -> Tensor:
    """Return a logical right shift, since torch shifts int64 arithmetically."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """Return scrambled int64 numbers, in which each input bit flips each output bit half of the time."""
    x = (x ^ _shift(x, 30)) * _signed(_MUL_1)
    x = (x ^ _shift(x, 27)) * _signed(_MUL_2)
    return x ^ _shift(x, 31)


def mix_int(x: int) -> int:
    """Return `mix` of a Python integer, as an int64."""
    x &= _ALL
    x = ((x ^ (x >> 30)) * _MUL_1) & _ALL
    x = ((x ^ (x >> 27)) * _MUL_2) & _ALL
    return _signed(x ^ (x >> 31))


def bits32(keys: Tensor, count: int) -> Tensor:
    """Return 32 random bits for each key and counter, int32 `keys.shape + (count,)`; fast enough for dropout.

    Counters, spread by the golden ratio from the key's low half, are scrambled by Wellons' lowbias32 and combined with
    the key's high half. This takes a fraction of the instructions of `mix`, so on a GPU, memory traffic hides its time.
    """
    low, high = keys.to(torch.int32), (keys >> 32).to(torch.int32)
    x = torch.arange(count, device=keys.device, dtype=torch.int32) * _GOLDEN_32 + low.unsqueeze(-1)
    x = (x ^ (x >> 16 & 0xFFFF)) * 0x7FEB352D
    x = (x ^ (x >> 15 & 0x1FFFF)) * (0x846CA68B - (1 << 32))
    return x ^ (x >> 16 & 0xFFFF) ^ high.unsqueeze(-1)


def stream(seed: int, purpose: str) -> int:
    """Return the key of a purpose, such as `"time"`, `"mask"` or `"dropout"`, under a seed."""
    key = mix_int(seed + _GOLDEN)
    for byte in purpose.encode():
        key = mix_int((key ^ byte) + _GOLDEN)
    return key


def sequence_keys(seed: int, purpose: str, rows: Tensor) -> Tensor:
    """Return a key for each row number, int64, in the shape of `rows`."""
    return fold(torch.full_like(rows, stream(seed, purpose)), rows)


def fold(keys: Tensor, counters: Tensor | int) -> Tensor:
    """Return new keys from keys and numbers (a step, a draw, a position), which are broadcast.

    A number and a tensor with that value give the same keys.
    """
    if isinstance(counters, int):
        return mix(keys ^ mix_int((counters + 1) * _GOLDEN))
    return mix(keys ^ mix((counters + 1) * _signed(_GOLDEN)))


def uniform(keys: Tensor, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return uniform numbers in [0, 1), `keys.shape + (count,)`, with 24 bits in float32 and 53 in float64."""
    counters = torch.arange(count, device=keys.device, dtype=torch.int64)
    return to_unit(fold(keys.unsqueeze(-1), counters), dtype)


def to_unit(bits: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return int64 bits as numbers in [0, 1), exactly representable in `dtype`."""
    if dtype == torch.float64:
        return _shift(bits, 11).to(torch.float64) * 2.0**-53
    return _shift(bits, 40).to(torch.float32) * 2.0**-24


def interval_index(unit: Tensor, ends: Iterable[float]) -> Tensor:
    """Return the index of the interval of [0, 1) that contains each value, int64; `ends` are the interior boundaries.

    The ends are Python numbers, because copying a tensor to the device would make the host wait.
    """
    part = torch.zeros_like(unit, dtype=torch.int64)
    for end in ends:
        part += unit >= end
    return part


def stratified(keys: Tensor | int, row: Tensor, rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return (u + row/rows) mod 1, with the same u in [0, 1) for equal keys: low-discrepancy times over a batch.

    Each of `rows` equal intervals of [0, 1) gets one row, and each single row is uniform on [0, 1) (Kingma et al.,
    Variational Diffusion Models, 2021, appendix I.1). The keys, one number or int64 [B], are equal for all rows of a
    batch of `rows`, and `row`, int64 [B], is the index of each row in it.
    """
    if isinstance(keys, int):
        keys = torch.tensor(mix_int(keys), device=row.device)
    unit = (to_unit(keys, torch.float64) + row.to(torch.float64) / rows) % 1.0
    # The result stays below 1 even where float32 would round up to 1.
    return unit.to(dtype).clamp(max=1 - torch.finfo(dtype).eps / 2)
