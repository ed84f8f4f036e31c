"""Counter-based random numbers: uniform, independent, and a function of nothing but their key.

Seeds are fixed, so these tests never fail by chance.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atat_zoo.diffusion.randomness import (
    _GOLDEN,
    bits32,
    fold,
    interval_index,
    mix,
    mix_int,
    sequence_keys,
    stratified,
    stream,
    to_unit,
    uniform,
)

ints = st.integers(-(2**63), 2**63 - 1)
ALL = 2**64 - 1


def test_the_mixing_function_is_splitmix64():
    # The first outputs of the reference implementation for the seed 1234567.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [mix_int(1234567 + _GOLDEN * (i + 1)) & ALL for i in range(3)] == expected


@given(x=ints)
def test_one_integer_is_mixed_as_a_tensor_is(x):
    assert mix(torch.tensor([x])).item() == mix_int(x)
    assert mix_int(x) == mix_int(x + 2**64) == mix_int(x & ALL)


@given(key=ints, counter=st.integers(-(2**62), 2**62))
def test_a_number_folds_as_a_tensor_does(key, counter):
    keys = torch.tensor([key])
    assert torch.equal(fold(keys, counter), fold(keys, torch.tensor([counter])))


def test_every_input_bit_flips_every_output_bit_half_of_the_time():
    x = sequence_keys(0, "avalanche", torch.arange(4000))
    bits = torch.arange(64)
    for bit in range(64):
        changed = mix(x) ^ mix(x ^ (1 << bit if bit < 63 else -(2**63)))
        share = (changed[:, None] >> bits & 1).double().mean(0)
        assert (share - 0.5).abs().max() < 5 * 0.5 / math.sqrt(4000)


@pytest.mark.parametrize(
    ("seed", "purpose", "dtype"),
    [(0, "time", torch.float64), (17, "mask", torch.float32), (2**63 - 1, "", torch.float64)],
)
def test_numbers_are_uniform(seed, purpose, dtype):
    u = uniform(sequence_keys(seed, purpose, torch.arange(200)), 500, dtype)
    assert u.dtype == dtype
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u.flatten().double().numpy(), "uniform").pvalue > 1e-3
    # Along the rows and along the counters by themselves, too.
    for line in (u[0], u[:, 0], u[-1], u[:, -1]):
        assert stats.kstest(line.double().numpy(), "uniform").pvalue > 1e-4


def test_the_ends_of_the_unit_interval():
    for dtype in (torch.float32, torch.float64):
        assert to_unit(torch.tensor([0]), dtype).item() == 0.0
        largest = to_unit(torch.tensor([-1]), dtype)
        assert largest.dtype == dtype
        assert largest.item() == 1 - torch.finfo(dtype).eps / 2


def grid(a, b, cells=16):
    """χ² test of independence of two uniform samples."""
    counts = torch.zeros(cells * cells)
    index = (a * cells).long() * cells + (b * cells).long()
    counts.scatter_add_(0, index, torch.ones_like(index, dtype=counts.dtype))
    return stats.chisquare(counts.double().numpy()).pvalue


def draw(seed, purpose, first=0, n=20_000):
    return uniform(sequence_keys(seed, purpose, torch.arange(first, first + n)), 4, torch.float64)


def test_rows_counters_purposes_and_seeds_are_independent():
    u = draw(17, "mask")
    pairs = {
        "neighbouring counters": (u[:, 0], u[:, 1]),
        "counters apart": (u[:, 0], u[:, 3]),
        "neighbouring rows": (u[:-1, 0], u[1:, 0]),
        "rows 64 apart": (u[:-64, 0], u[64:, 0]),
        "a row and the next counter of the next row": (u[:-1, 0], u[1:, 1]),
        "neighbouring seeds": (u[:, 0], draw(18, "mask")[:, 0]),
        "seeds that differ in one high bit": (u[:, 0], draw(17 + 2**40, "mask")[:, 0]),
        "purposes": (u[:, 0], draw(17, "time")[:, 0]),
        "a purpose and its beginning": (u[:, 0], draw(17, "mas")[:, 0]),
        "a key and its fold": (
            u[:, 0],
            uniform(fold(sequence_keys(17, "mask", torch.arange(20_000)), 1), 1, u.dtype)[:, 0],
        ),
        "folds": tuple(
            uniform(fold(sequence_keys(17, "mask", torch.arange(20_000)), j), 1, u.dtype)[:, 0] for j in (0, 1)
        ),
    }
    for name, (a, b) in pairs.items():
        assert grid(a, b) > 1e-4, name
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 4 / math.sqrt(len(a)), name


@given(
    seed=st.integers(0, 2**63 - 1),
    rows=st.lists(st.integers(0, 2**62), min_size=1, max_size=6),
    count=st.integers(1, 9),
)
def test_a_row_does_not_depend_on_its_batch(seed, rows, count):
    together = uniform(sequence_keys(seed, "mask", torch.tensor(rows)), count)
    for i, row in enumerate(rows):
        assert torch.equal(uniform(sequence_keys(seed, "mask", torch.tensor([row])), count)[0], together[i])
    # Nor on how many numbers are asked for, nor on the shape.
    assert torch.equal(uniform(sequence_keys(seed, "mask", torch.tensor(rows)), count + 3)[:, :count], together)
    assert torch.equal(uniform(sequence_keys(seed, "mask", torch.tensor([rows])), count)[0], together)


def test_numbers_that_are_never_to_change():
    """A change of these breaks the exact resume of every run that is under way."""
    assert stream(17, "mask") == -4489805648497393052
    keys = sequence_keys(17, "mask", torch.tensor([0, 1, 3]))
    assert keys[:2].tolist() == [-630394027826506850, 7294173680347601762]
    assert uniform(keys, 2, torch.float64)[2].tolist() == [0.9468959845578017, 0.9727252527355357]
    assert uniform(keys, 2)[2].tolist() == [0.946895956993103, 0.9727252125740051]


@given(rows=st.integers(1, 300), key=ints)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stratified_numbers_fall_one_into_each_part(rows, key, dtype):
    u = stratified(key, torch.arange(rows), rows, dtype)
    assert u.dtype == dtype
    assert u.min() >= 0
    assert u.max() < 1
    gaps = torch.cat([u.double().sort().values, u.double().min()[None] + 1]).diff()
    torch.testing.assert_close(gaps, torch.full_like(gaps, 1 / rows), atol=1e-6, rtol=0)
    # A rank or a micro-batch takes its rows of the same numbers.
    assert torch.equal(stratified(key, torch.arange(rows)[1::2], rows, dtype), u[1::2])
    keys = torch.full((rows,), mix_int(key))
    assert torch.equal(stratified(keys, torch.arange(rows), rows, dtype), u)
    # Each row by itself is uniform: else a sequence would be measured in one part of the diffusion, by its place.
    many = stratified(sequence_keys(key, "time", torch.arange(2000)), torch.tensor(rows // 2), rows, torch.float64)
    assert abs(float(many.mean()) - 0.5) < 5 / math.sqrt(12 * 2000)


def test_a_number_is_in_the_part_that_ends_after_it():
    unit, ends = torch.tensor([0.0, 0.25, 0.3, 0.5, 0.99], dtype=torch.float64), [0.25, 0.5, 0.5]
    assert torch.equal(interval_index(unit, ends), torch.bucketize(unit, torch.tensor(ends), right=True))
    assert interval_index(unit, []).tolist() == [0] * 5


@given(key=ints, count=st.integers(1, 5))
def test_bits_of_dropout_are_lowbias32(key, count):
    def expected(counter):
        x = ((key & 0xFFFFFFFF) + counter * 0x9E3779B9) & 0xFFFFFFFF
        x = ((x ^ x >> 16) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ x >> 15) * 0x846CA68B) & 0xFFFFFFFF
        return x ^ x >> 16 ^ (key >> 32 & 0xFFFFFFFF)

    assert [bits & 0xFFFFFFFF for bits in bits32(torch.tensor(key), count).tolist()] == list(
        map(expected, range(count))
    )
