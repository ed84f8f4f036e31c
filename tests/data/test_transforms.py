"""Transforms of the stream: pure functions of a sequence and its key, so the samples stay a function of their
number.
"""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import Memory, experiment_of

from atat_zoo.data import shard_manifest
from atat_zoo.data.build import build
from atat_zoo.data.sample_order import SampleOrder, key_of, uniforms
from atat_zoo.data.shards import read
from atat_zoo.data.stream import _TRANSFORMS, TokenStream, train_loader
from atat_zoo.data.transforms import MinimumLengthTransform, RandomLengthTransform, RepetitionTransform, Transform
from atat_zoo.experiment import from_table
from atat_zoo.registry import Context, component, param
from atat_zoo.system.errors import UserError

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded:DeprecationWarning"
)

CONTEXT = Context(vocabulary_size=258, length=16)
ORDER: dict[str, Any] = {"seed": 17, "lanes": 4, "batch_size": 12, "context": CONTEXT}


@component
class Sometimes(Transform):
    """Refuses by the tokens and by the key, and marks what it passes with a number of the key."""

    name = "sometimes"
    summary = "for tests"
    share: float = param(0.05, help="share refused by the tokens, and of the rest by the key")

    def apply(self, tokens, key, context):
        if int(tokens.sum()) % 100 < 100 * self.share or uniforms(1, key)[0] < self.share:
            return None
        tokens[0] = key % 256
        return tokens


@component
class Bad(Transform):
    """Returns what it is told to."""

    name = "bad"
    summary = "for tests"
    made: Any = param(None, help="what it returns")

    def apply(self, tokens, key, context):
        return self.made


def expected(folder, transforms, together, count):
    """Return the samples by the definition, [count, 16] as they are stored."""
    contents = shard_manifest.load(folder)
    shards = contents.splits["train"].shards
    rows = [read(folder, contents, shard) for shard in shards]
    order = SampleOrder([shard.sequences for shard in shards], lanes=4, seed=17, together=together)
    found = []
    for n in range(count):
        for attempt, location in enumerate([order.locate(n), *order.others(n)]):
            tokens = rows[location.shard][location.row].astype(np.int64)
            for position, transform in enumerate(transforms):
                key = key_of(key_of(_TRANSFORMS, 17, position), n, attempt)
                tokens = None if tokens is None else transform.apply(tokens, key, CONTEXT)
            if tokens is not None:
                found.append(np.pad(tokens, (0, 16 - len(tokens)), constant_values=65535))
                break
    return np.stack(found)


TRANSFORMS = (Sometimes(), RandomLengthTransform(probability=0.5, min_tokens=2), Sometimes(share=0.03))


@pytest.mark.parametrize(("together", "workers", "ranks", "start"), [(1, 0, 1, 0), (3, 2, 1, 36), (2, 0, 2, 61)])
def test_samples_are_a_function_of_their_number(shards, together, workers, ranks, start):
    wanted = expected(shards, TRANSFORMS, together, 300)
    seen = {}
    for rank in range(ranks):
        stream = TokenStream(shards, transforms=TRANSFORMS, together=together, rank=rank, world_size=ranks, **ORDER)
        stream.load_state_dict(stream.state_dict(start, True))
        for batch in islice(train_loader(stream, workers=workers), 180 // 12):
            assert batch["tokens"].shape == (12 // ranks, 16)
            for i, row in zip(batch["index"], torch.where(batch["maskable"], batch["tokens"], 65535), strict=True):
                seen[int(i)] = row.numpy()
    assert sorted(seen) == list(range(start, start + 180))
    for n, row in seen.items():
        np.testing.assert_array_equal(row, wanted[n])


def test_what_is_refused_is_replaced_by_what_is_shuffled_with_it(shards):
    transform = RepetitionTransform(n=1, min_distinct=0.5)
    plain, staged = (TokenStream(shards, transforms=transforms, **ORDER) for transforms in ((), (transform,)))
    order, contents = plain._order(), plain.manifest
    rows = [read(shards, contents, shard) for shard in plain._shards]
    replaced = 0
    for before, after in islice(
        zip(plain.samples(), staged.samples(), strict=True), contents.splits["train"].sequences
    ):
        refused = len({*before["stored"].tolist()}) < 8
        replaced += refused
        group = rows[order.locate(after["index"]).shard] if refused else before["stored"][None]
        assert (group == after["stored"]).all(1).any()
        assert len({*after["stored"].tolist()}) >= 8
    assert replaced > 5


def test_what_is_no_sequence_is_refused(shards):
    for made, said in (
        ([], r"float64 \[0\], but a sequence must be integers, \[1\] to \[16\]"),
        ([1] * 17, r"int64 \[17\], but a"),
        ([[1]], r"int64 \[1, 1\], but a"),
        ([1.0], r"float64 \[1\], but a"),
        ([3, 258], r"ids from 3 to 258, outside 0 … 257"),
        ([-1], r"ids from -1 to -1, outside"),
    ):
        for workers in {0, int(made == [-1])}:
            stream = TokenStream(shards, transforms=(Bad(made=made),), **ORDER)
            with pytest.raises(UserError, match=rf"^data\.transforms: 'bad' returned {said}.*; correct or remove the"):
                next(iter(train_loader(stream, workers=workers)))
    stream = TokenStream(shards, transforms=(Sometimes(share=0.0), MinimumLengthTransform(min_tokens=17)), **ORDER)
    with pytest.raises(UserError, match=r"^data\.transforms: 'minimum_length' refuses every sequence in the shards"):
        next(iter(train_loader(stream)))


def test_a_state_of_other_stages_is_refused(shards):
    plain, staged = TokenStream(shards, **ORDER), TokenStream(shards, transforms=(RandomLengthTransform(),), **ORDER)
    for one, other in ((plain, staged), (staged, plain), (TokenStream(shards, transforms=TRANSFORMS, **ORDER), staged)):
        with pytest.raises(UserError, match=r"^the checkpoint was saved with transforms = \["):
            other.load_state_dict(one.state_dict(12, True))


def test_what_is_damaged_and_skipped_is_not_shown_to_stages(tmp_path):
    folder = build(experiment_of(tmp_path, corpus=Memory(train=tuple("abcdefgh" * 20 for _ in range(8)))))
    content = bytearray((folder / "train-000001.tar").read_bytes())
    content[700] ^= 1
    (folder / "train-000001.tar").write_bytes(content)
    (batch,) = islice(
        train_loader(
            TokenStream(
                folder, skip=True, transforms=(MinimumLengthTransform(min_tokens=16),), **ORDER | {"batch_size": 40}
            )
        ),
        1,
    )
    assert 0 < (~batch["maskable"].any(1)).sum() < 40
    assert batch["maskable"].any(1).sum() == batch["maskable"].all(1).sum()


@settings(max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=6, max_size=12), st.integers(1, 3), st.integers(1, 4), st.integers(0, 300))
def test_others_are_each_location_of_the_group_but_its_own(sizes, lanes, together, n):
    order = SampleOrder(sizes, lanes=lanes, seed=3, together=together)
    own = order.locate(n)
    others = list(order.others(n))
    assert order.locate(n) == own
    shards = {each.shard for each in [own, *others]}
    assert len(shards) <= together
    every = {(own.epoch, shard, row) for shard in shards for row in range(sizes[shard])}
    assert {tuple(each) for each in others} == every - {tuple(own)}
    assert len(others) == len(every) - 1


def test_samples_that_follow_each_other_are_not_replaced_by_the_same():
    order = SampleOrder([64], lanes=1, seed=3)
    steps = {(next(order.others(n)).row, n) for n in range(62)}
    following = {(order.locate(n + 1).row, n) for n in range(62)}
    assert len(steps & following) < 10
    assert len({row for row, _ in steps}) > 32


def test_uniforms_by_hand():
    # SplitMix64's next two after the state key_of(1, 2).
    assert uniforms(2, 1, 2).tolist() == uniforms(3, 1, 2)[:2].tolist() == GOLDEN
    many = uniforms(100_000, 5)
    assert ((many >= 0) & (many < 1)).all()
    assert abs(many.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(many[1:], many[:-1])[0, 1]) < 0.01


GOLDEN = [0.9006109088931584, 0.28014258045387286]


def test_random_lengths_are_uniform_of_the_share():
    transform, tokens = RandomLengthTransform(probability=0.25, min_tokens=3), np.arange(10)
    found = [transform.apply(tokens, key_of(i), CONTEXT) for i in range(20_000)]
    assert all(np.array_equal(each, tokens[: len(each)]) for each in found)
    counts = np.bincount([len(each) for each in found], minlength=11)
    assert not counts[:3].any()
    cut = 20_000 * 0.25 / 8  # of each length from 3 to 10
    assert np.abs(counts[3:10] - cut).max() < 5 * cut**0.5
    assert len(transform.apply(tokens[:2], 1, CONTEXT)) == 2


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 4), st.floats(0.05, 1))
def test_repetition_counts_distinct_n_grams(tokens, n, distinct):
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    passes = not grams or len(set(grams)) >= distinct * len(grams)
    found = RepetitionTransform(n=n, min_distinct=distinct).apply(np.array(tokens), 0, CONTEXT)
    assert (found is not None) == passes


def test_stages_of_an_experiment():
    table = {
        "name": "x",
        "data": {"length": 32, "transforms": ["random_length", {"use": "minimum_length", "min_tokens": 33}]},
    }
    with pytest.raises(
        UserError, match=r"data\.transforms: minimum_length\.min_tokens = 33 is more than data\.length = 32"
    ):
        from_table(table)
    table["data"]["transforms"][1]["min_tokens"] = 32
    experiment = from_table(table)
    assert experiment.data.transforms == (RandomLengthTransform(), MinimumLengthTransform(min_tokens=32))
    assert from_table(experiment.to_table()) == experiment
