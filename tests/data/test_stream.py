"""The stream: the same samples whatever the workers and ranks, and after a resume; sequences in memory."""

import itertools
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import Memory, experiment_of

from atat_zoo.data import shard_manifest
from atat_zoo.data.build import build
from atat_zoo.data.sample_order import Repetition, SampleOrder, key_of, permutation
from atat_zoo.data.sequences import corpus_sequences, held_out_sequences
from atat_zoo.data.shard_manifest import load, load_counts
from atat_zoo.data.shards import read
from atat_zoo.data.stream import TokenStream, copied_ahead, train_loader
from atat_zoo.data.tokenizers.components import BytesTokenizer
from atat_zoo.diffusion.ngram_prior import load_ngram_prior
from atat_zoo.registry import Zoo
from atat_zoo.system.errors import UserError

# More workers than the machine has cores, and workers that fork beside torch's threads (a warning since Python 3.12).
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded:DeprecationWarning"
)

ORDER = {"seed": 17, "lanes": 4, "batch_size": 12}
ROWS = 480  # compared: more than two epochs of the shards


def loader_of(folder, *, workers=0, device="cpu", **settings):
    return train_loader(TokenStream(folder, **settings), workers=workers, device=device)


def rows(loader, count):
    """Return (index, tokens) of the first samples of a loader."""
    size = loader.batch_size
    assert size is not None
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(count // size)]
    assert all(batch["tokens"].shape == (size, 16) for batch in batches)
    return torch.cat([b["index"] for b in batches]), torch.cat([b["tokens"] for b in batches])


@pytest.fixture(scope="module")
def expected(shards):
    """The stream by its definition, [ROWS, 16]."""
    found = shard_manifest.load(shards)
    record = found.splits["train"]
    contents = [read(shards, found, shard).astype(np.int64) for shard in record.shards]
    order = SampleOrder([s.sequences for s in record.shards], lanes=4, seed=17)
    assert 2 * record.sequences < ROWS
    return torch.from_numpy(np.stack([contents[p.shard][p.row] for p in map(order.locate, range(ROWS))]))


def test_a_worker_has_four_batches_ready(shards):
    """As many as `require` counts in memory."""
    assert loader_of(shards, workers=2, **ORDER).prefetch_factor == 4
    assert loader_of(shards, **ORDER).prefetch_factor is None


@pytest.mark.parametrize("workers", [0, 3])
def test_the_order_does_not_depend_on_the_workers(shards, expected, workers):
    loader = loader_of(shards, **ORDER, workers=workers)
    before = torch.get_rng_state()
    index, tokens = rows(loader, ROWS)
    assert torch.equal(torch.get_rng_state(), before)
    assert (index.dtype, tokens.dtype) == (torch.int64, torch.int64)
    assert index.tolist() == list(range(ROWS))
    assert torch.equal(tokens, expected)
    stream = loader.dataset
    stream.load_state_dict(stream.state_dict(60, True))
    index, tokens = rows(loader, 24)  # a loader can be resumed after it was iterated
    assert index.tolist() == list(range(60, 84))
    assert torch.equal(tokens, expected[60:84])
    with pytest.raises(TypeError):
        len(loader)


@pytest.mark.parametrize(("times", "spacing"), [(3, 1), (7, 1), (3, 2)])
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_serve_several_steps_are_those_of_the_order(shards, expected, times, spacing, workers):
    place = Repetition(ORDER["batch_size"], times, spacing).place(torch.arange(ROWS))
    settings = ORDER | {"repeats": times, "spacing": spacing}
    index, tokens = rows(loader_of(shards, **settings, workers=workers), ROWS)
    assert index.tolist() == list(range(ROWS))
    assert torch.equal(tokens, expected[place.row])
    half = TokenStream(shards, **settings, rank=1, world_size=2)
    half.load_state_dict(TokenStream(shards, **settings).state_dict(60, True))
    index, tokens = rows(train_loader(half, workers=workers), 36)
    assert torch.equal(index, torch.arange(61, 61 + 72, 2))
    assert torch.equal(tokens, expected[place.row[index]])


def test_rows_that_serve_several_steps_open_a_shard_once(shards, monkeypatch):
    """Also where a lane begins its next shard for some rows while the others still use the last one."""
    reads, orders = [], []
    read, find = TokenStream._open, SampleOrder._find
    monkeypatch.setattr(TokenStream, "_open", lambda self, number: reads.append(number) or read(self, number))
    monkeypatch.setattr(SampleOrder, "_find", lambda self, *place: orders.append(place) or find(self, *place))
    stream = TokenStream(shards, **ORDER, repeats=5)
    list(itertools.islice(stream.samples(), 5 * stream.manifest.splits["train"].sequences))
    assert max(len(reads), len(orders)) <= 2 * len(stream._shards)


def test_states_count_from_the_beginning_or_from_the_last_resume(shards):
    stream = TokenStream(shards, **ORDER)
    stream.load_state_dict(stream.state_dict(24, True))
    assert stream.state_dict(36, True)["sample"] == 36  # Composer counts over the whole epoch
    assert stream.state_dict(12, False)["sample"] == 36


@pytest.mark.parametrize("change", [{"seed": 18}, {"lanes": 2}, {"together": 2}, {"repeats": 2}])
def test_a_state_of_another_order_is_refused(shards, change):
    state = TokenStream(shards, **ORDER).state_dict(12, True)
    ((key, value),) = change.items()
    before = (ORDER | {"together": 1, "repeats": None})[key]
    said = f"saved with {'shuffled_shards' if key == 'together' else key} = {before}, but this"
    with pytest.raises(UserError, match=f"{said} run has {value}"):
        TokenStream(shards, **ORDER | change).load_state_dict(state)
    with pytest.raises(UserError, match="resume with the original settings and shards"):
        TokenStream(shards, **ORDER).load_state_dict(state | {"shards": "0" * 16})


def test_padding_is_not_maskable(tmp_path):
    corpus = Memory(train=("x" * 128, "yz"), validation=("abc",), test=("",))
    folder = build(experiment_of(tmp_path, corpus=corpus, remainder="pad"))
    tokens, maskable, _ = next(iter(loader_of(folder, seed=0, lanes=4, batch_size=40))).values()
    assert (~maskable.all(1)).any()
    assert maskable.any(1).all()
    assert not tokens[~maskable].any()
    assert tokens[maskable].all()
    with pytest.raises(UserError, match=r"the test split in .* has no sequence of 16 tokens"):
        held_out_sequences(folder, "test")
    tokens, maskable, _ = held_out_sequences(folder, "validation")
    assert tokens.tolist() == [[*b"abc", *[0] * 13]]
    assert maskable.tolist() == [[True] * 3 + [False] * 13]


def test_the_memory_is_a_shard_per_lane(shards, monkeypatch):
    reads = []
    read = TokenStream._open

    def counted(self, number):
        reads.append(number)
        return read(self, number)

    monkeypatch.setattr(TokenStream, "_open", counted)
    stream = TokenStream(shards, seed=17, lanes=4, batch_size=4)
    total = stream.manifest.splits["train"].sequences
    list(itertools.islice(stream.samples(), total))
    # About one read per shard and epoch: lanes of unequal length are up to a shard ahead or behind.
    assert len(reads) <= len(stream._shards) + 4


@pytest.mark.parametrize("workers", [0, 1])
def test_a_truncated_shard_says_so(shards, tmp_path, workers):
    folder = shutil.copytree(shards, tmp_path / "copy")
    loader = loader_of(folder, **ORDER, workers=workers)
    for path in folder.glob("train-*.tar"):
        path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(UserError) as error:
        next(iter(loader))
    assert str(error.value).startswith(f"shard {folder}/train-00000")
    assert f"; if the shards were built here, delete {folder} and run `atat data build` again" in str(error.value)
    with pytest.raises(UserError, match="is damaged"):
        loader_of(folder, **ORDER)


@pytest.mark.slow
@settings(max_examples=20)
@given(limit=st.integers(0, 250))
def test_held_out_is_spread_evenly(shards, limit):
    everything, maskable, _ = held_out_sequences(shards, "train")
    tokens, some, _ = held_out_sequences(shards, "train", limit)
    total = len(everything)
    assert maskable.all()
    assert some.shape == tokens.shape
    count = min(limit, total) if limit else total
    places = [i * total // count for i in range(count)]
    assert torch.equal(tokens, everything[places])


def test_the_next_batch_is_copied_during_the_use_of_this_one():
    told = []
    batches = [{"tokens": torch.tensor([i])} for i in range(3)]

    def copy(batch):
        told.append(f"copy {int(batch['tokens'])}")
        return {"tokens": batch["tokens"] + 10}

    def wait(copies):
        told.append(f"wait for {[int(each) for each in copies]}")

    for batch in copied_ahead(iter(batches), copy, wait):
        told.append(f"use {int(batch['tokens'])}")
    # Each batch is waited for before the next copy begins, so that the next one is not waited for.
    assert told == [
        *("copy 0", "wait for [10]", "copy 1", "use 10"),
        *("wait for [11]", "copy 2", "use 11"),
        *("wait for [12]", "use 12"),
    ]
    assert list(copied_ahead(iter([]), copy, wait)) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gets_the_same_batches(shards, expected):
    loader = loader_of(shards, **ORDER, workers=2, device="cuda")
    found = []
    for batch in itertools.islice(loader, ROWS // 12):
        assert all(value.is_cuda for value in batch.values())
        # Work that keeps the memory of this batch in use while the next one is copied.
        product = torch.rand(2000, 2000, device="cuda")
        for _ in range(5):
            product = product @ product / 1000
        found.append((batch["tokens"] + 0 * product.sum().nan_to_num(0, 0, 0).long()).cpu())
    assert torch.equal(torch.cat(found), expected)


@st.composite
def orders(draw):
    lanes = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 7), min_size=lanes, max_size=12))
    return sizes, {"lanes": lanes, "seed": draw(st.integers(0, 2**63 - 1)), "together": draw(st.integers(1, 4))}


def lane_samples(sizes, lane, epochs, *, lanes, seed, together):
    """The definition, without cleverness."""
    found = []
    for epoch in range(epochs):
        shards = permutation(len(sizes), seed, epoch)[lane::lanes].tolist()
        while shards:
            group, shards = shards[:together], shards[together:]
            rows = [(epoch, shard, row) for shard in group for row in range(sizes[shard])]
            found += [rows[i] for i in permutation(len(rows), seed, epoch, *group).tolist()]
    return found


@given(orders())
def test_follows_the_definition(case):
    sizes, options = case
    order, lanes = SampleOrder(sizes, **options), options["lanes"]
    for lane in range(lanes):
        expected = lane_samples(sizes, lane, epochs=3, **options)
        found = [tuple(order.locate(q * lanes + lane)) for q in range(len(expected))]
        assert found == expected


@given(orders(), st.lists(st.integers(0, 2000), min_size=1, max_size=20))
def test_does_not_depend_on_what_was_asked_before(case, wanted):
    sizes, options = case
    order = SampleOrder(sizes, **options)
    assert [order.locate(n) for n in wanted] == [SampleOrder(sizes, **options).locate(n) for n in wanted]


def test_permutations_stay_what_they_were():
    # A run that was begun with an older version must find its order again.
    assert permutation(8, 17, 0).tolist() == [0, 1, 7, 2, 4, 5, 6, 3]
    assert key_of(17, 0, 3) == 6687265196499114412


TEXT = "To be, or not to be: that is the question.\n" * 3


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    return Zoo.load().spec(
        "corpus", {"use": "files", "train": [str(tmp_path / "a.txt")], "validation_share": 0.0, "test_share": 0.0}
    )


def packed(corpus, **kwargs):
    given = {"length": 16, "special": "none", "limit": 0} | kwargs
    return corpus_sequences(corpus, BytesTokenizer().train(lambda: iter(())), given.pop("split", "train"), **given)


def test_all_of_a_corpus_is_the_text_of_every_split():
    corpus = Memory(train=("one",), validation=("two", "three"), test=("four",))
    tokens, maskable, _ = packed(corpus, split="all")
    assert bytes(tokens[maskable].tolist()) == b"onetwothreefour"


@pytest.mark.parametrize("special", ["none", "document", "sequence", "both"])
def test_documents_of_their_own_are_the_same_in_memory_and_in_shards(tmp_path, special):
    texts = tuple("to be, or not to be"[: i % 19] for i in range(1, 60))
    corpus = Memory(train=texts, validation=texts)
    folder = build(experiment_of(tmp_path, corpus=corpus, special_tokens=special, packing="document"))
    tokens, maskable, _ = held_out_sequences(folder, "validation")
    again = packed(corpus, split="validation", special=special, rows="document")
    assert torch.equal(tokens, again[0])
    assert torch.equal(maskable, again[1])
    assert len(tokens) == sum(map(bool, texts))
    ends = (special in ("sequence", "both")) + (special != "none")
    assert maskable.sum(1).tolist() == [min(16, len(text) + ends) for text in texts if text]
    assert (maskable.int().diff(dim=1) <= 0).all(), "padding is at the end"
    train = load(folder).splits["train"]
    assert train.tokens == load_counts(folder).sum() == load_ngram_prior(folder).tokens.sum() == maskable.sum()
    assert train.padded == (~maskable).sum()


@pytest.mark.parametrize(("start", "world_size", "workers"), [(1, 2, 0), (12, 1, 2), (37, 2, 2), (120, 4, 0)])
def test_a_resume_continues_on_the_next_sample_of_each_rank(shards, expected, start, world_size, workers):
    found = torch.full((ROWS, 16), -1)
    for rank in range(world_size):
        loader = loader_of(shards, **ORDER, rank=rank, world_size=world_size, workers=workers)
        loader.dataset.load_state_dict(TokenStream(shards, **ORDER).state_dict(start, True))
        index, tokens = rows(loader, 96 // world_size)
        assert (index % world_size == rank).all()
        # The rank's batch b is its part of the global batch b.
        assert torch.equal((index - start) // 12, torch.arange(96 // world_size) // (12 // world_size))
        found[index] = tokens
    assert torch.equal(found[start : start + 96], expected[start : start + 96])
    assert (found[:start] == -1).all()
    assert (found[start + 96 :] == -1).all()


def test_what_does_not_fit_is_refused(shards, monkeypatch):
    for wrong, message in (
        ({"world_size": 3}, r"data\.lanes = 4 is not a multiple of 3, the number of ranks; set it to 3,"),
        ({"world_size": 4, "batch_size": 10}, r"_size = 10 is not a multiple of 4, the number of ranks; set it to 8,"),
        (
            {"lanes": 64, "batch_size": 64},
            r"data\.lanes = 64 needs as many training shards, but there are only",
        ),
    ):
        with pytest.raises(UserError, match=message):
            TokenStream(shards, **ORDER | wrong)
    monkeypatch.setattr("resource.getrlimit", lambda _: (70, 70))
    TokenStream(shards, **ORDER)
    with pytest.raises(UserError, match=r"^data\.shuffled_shards = 9 and data\.lanes = 4 need 28 open shards at"):
        TokenStream(shards, **ORDER, together=9)


def test_a_text_in_memory_is_all_of_it_or_spread_over_it(corpus):
    every, maskable, _ = packed(corpus)
    assert bytes(every[maskable].tolist()).decode() == TEXT
    assert not maskable[-1].all()
    some, *_ = packed(corpus, limit=4)
    assert torch.equal(some, every[torch.arange(4) * len(every) // 4])
    assert torch.equal(packed(corpus, limit=10_000)[0], every)
    with pytest.raises(UserError, match=r"corpus 'files' has no text in its test split"):
        packed(corpus, split="test")
