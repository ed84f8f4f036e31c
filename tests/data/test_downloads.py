"""Shards that lie elsewhere: the same samples as from the disk, in a cache that keeps its bound, and plain refusals."""

import fcntl
import itertools
import json
import multiprocessing
import os
import random
import shutil
import time
from collections import Counter
from itertools import islice
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from fsspec.registry import known_implementations
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import Memory, experiment_of, texts

from atat_zoo.cli import atat
from atat_zoo.data import downloads, shard_manifest
from atat_zoo.data.build import build
from atat_zoo.data.corpora import ShardsCorpus
from atat_zoo.data.sequences import held_out_sequences
from atat_zoo.data.shards import ShardRows, read
from atat_zoo.data.stream import TokenStream, train_loader
from atat_zoo.system import atomic_files
from atat_zoo.system.errors import UserError
from atat_zoo.system.locks import locked
from tests.faulty_server import serving
from tests.limited import full_disk, limited

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded:DeprecationWarning"
    ),
]

LANES = BATCH = 12
SIZE = 10_240  # bytes of each of the shards below
ORDER = {"seed": 17, "lanes": LANES, "batch_size": BATCH}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shards for 12 lanes, which 1, 2, 3 and 4 ranks can share."""
    spec = {"lanes": LANES, "sequences_per_shard": 4, "sequences_per_member": 2}
    return build(experiment_of(tmp_path_factory.mktemp("elsewhere"), corpus=Memory(train=texts(25)), **spec))


@pytest.fixture(scope="module")
def in_memory(folder):
    """The address of a copy of them in fsspec's memory."""
    store = fsspec.filesystem("memory")
    for path in folder.iterdir():
        store.pipe_file(f"/shards/{path.name}", path.read_bytes())
    return "memory://shards"


@pytest.fixture
def server(folder):
    with serving(folder) as server:
        yield server


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(downloads, "_PAUSE", 0.001)
    monkeypatch.setattr(downloads, "_LOOK", 0.002)


def corpus_of(path, cache, *, shards=1e6, **options):
    """Return the corpus of an address with a cache for so many shards."""
    return ShardsCorpus(path=path, cache=str(cache), cache_size=shards * SIZE / 1e9, **options)


def taken(cache):
    """Return the bytes of the shards in a cache, those that are being fetched included."""
    total = 0
    for path in (*cache.glob("*/*.tar"), *cache.glob("*/.*.part")):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # it has just left
            continue
    return total


def first_samples(folder, count=120, **options):
    samples = TokenStream(folder, **(ORDER | options)).samples()
    return [(sample["index"], sample["stored"].tobytes()) for sample in islice(samples, count)]


@settings(max_examples=4)
@given(st.integers(1, 4), st.integers(1, 4), st.floats(0.5, 20), st.integers(1, 3))
def test_an_epoch_is_every_sequence_once(folder, in_memory, tmp_path_factory, ranks, workers, held, together):
    cache = tmp_path_factory.mktemp("cache")
    here = corpus_of(in_memory, cache, shards=held).built()
    record = shard_manifest.load(folder).splits["train"]
    order = TokenStream(folder, together=together, **ORDER)._order()
    epoch = {n for n in range(4 * record.sequences) if order.locate(n).epoch == 0}
    batches = max(epoch) // BATCH + 1
    found = {}
    for rank in range(ranks):
        stream = TokenStream(here, rank=rank, world_size=ranks, together=together, **ORDER)
        readers = [iter(stream.samples(worker, workers)) for worker in range(workers)]
        for batch in range(batches):
            for sample in islice(readers[batch % len(readers)], BATCH // ranks):
                assert sample["index"] not in found
                found[sample["index"]] = sample["stored"].tobytes()
            assert taken(cache) <= round(max(held, 1) * SIZE)
    assert found.keys() == set(range(batches * BATCH))
    rows = Counter(row.tobytes() for shard in record.shards for row in read(folder, shard_manifest.load(folder), shard))
    assert Counter(found[n] for n in epoch) == rows


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_continues_inside_a_shard_of_a_faulty_server(folder, server, tmp_path, workers):
    server.faults["manifest.json"].extend(["drop", "503", "truncate"])
    server.faults["counts.npy"].extend(["corrupt", "delay"])
    here = corpus_of(server.address, tmp_path, shards=3).built()
    server.faults["train-000000.tar"].extend(["truncate", "drop", "corrupt", "503"])
    stream, expected = TokenStream(here, **ORDER), TokenStream(folder, **ORDER)
    for continued in (stream, expected):
        continued.load_state_dict(continued.state_dict(31, True))
    batches = zip(train_loader(stream, workers=workers), train_loader(expected), strict=True)
    for found, batch in islice(batches, 12):
        assert all(torch.equal(found[key], batch[key]) for key in batch)


def test_evaluation_and_counts_fetch_what_they_read(folder, server, tmp_path):
    here = corpus_of(server.address, tmp_path, shards=1).built()
    assert not list(here.glob("*.tar"))
    assert shard_manifest.verify(here, full=True) == shard_manifest.load(folder)
    for found, expected in zip(*(held_out_sequences(each, "validation")[:2] for each in (here, folder)), strict=True):
        assert torch.equal(found, expected)
    assert {name for name in server.asked if name.endswith(".tar")} <= {
        shard.name for shard in shard_manifest.load(folder).splits["validation"].shards
    }


def opened_each(here, *numbers):
    """Open training shards one after the other, and return all."""
    contents = shard_manifest.load(here)
    shards = contents.splits["train"].shards
    for number in numbers:
        ShardRows(here, contents, shards[number])
    return shards


def test_processes_share_a_cache_within_its_bound(in_memory, tmp_path):
    here = corpus_of(in_memory, tmp_path, shards=3).built()
    numbers = range(len(shard_manifest.load(here).splits["train"].shards))
    orders = [random.Random(i).sample(numbers, len(numbers)) for i in range(3)]
    processes = [multiprocessing.get_context("fork").Process(target=opened_each, args=(here, *o)) for o in orders]
    for process in processes:
        process.start()
    most = 0
    while any(process.is_alive() for process in processes):
        most = max(most, taken(tmp_path))
        time.sleep(0.001)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    # It is not one moment that is seen: a shard may get its name between the two lists, and so be counted twice.
    assert 2 * SIZE <= most <= 4 * SIZE
    assert taken(tmp_path) <= 3 * SIZE
    assert not list(here.glob(".*.part"))


def test_the_oldest_goes_first_and_leftovers_are_removed(in_memory, tmp_path):
    here = corpus_of(in_memory, tmp_path, shards=3).built()
    shards = opened_each(here, 0, 1, 2)
    os.utime(here / shards[1].name, (1, 1))
    left = [here / f".{shards[5].name}.{end}.part" for end in ("999999999", "7-5f", str(os.getppid()))]
    for part in left:  # of processes that were killed; the last one's number another process has now
        part.write_bytes(bytes(SIZE))
    opened, row = ShardRows(here, shard_manifest.load(here), shards[1]), np.empty(16, np.uint16)  # is now the newest
    os.utime(here / shards[0].name, (2, 2))
    opened_each(here, 3)
    assert {path.name for path in here.glob("*.tar")} == {shards[i].name for i in (1, 2, 3)}
    assert not any(part.exists() for part in left)
    opened_each(here, 4, 5, 6)
    assert not (here / shards[1].name).exists()
    opened.read(1, row)  # still open
    assert row.any()


@pytest.fixture
def no_wait(monkeypatch):
    monkeypatch.setattr(downloads, "_LOOK", -1)  # `sleep` refuses it


def test_nothing_leaves_for_what_cannot_come_yet(in_memory, tmp_path, no_wait):
    here = corpus_of(in_memory, tmp_path, shards=3).built()
    shards = opened_each(here, 0)
    with (here / f".{shards[5].name}.7-5f.part").open("wb") as part:
        part.truncate(SIZE * 5 // 2)
        fcntl.flock(part, fcntl.LOCK_EX)
        for number in (1, 5):  # which does not fit, and which is being fetched
            with pytest.raises(ValueError, match="sleep"):
                opened_each(here, number)
        assert (here / shards[0].name).exists()
    opened_each(here, 1)
    assert {path.name for path in here.glob("*.tar")} == {shards[0].name, shards[1].name}


def test_a_killed_process_leaves_nothing_to_wait_for(server, tmp_path, monkeypatch, request):
    here = corpus_of(server.address, tmp_path).built()
    server.faults["train-000000.tar"].append("hang")
    process = multiprocessing.get_context("fork").Process(target=opened_each, args=(here, 0), daemon=True)
    process.start()
    while "train-000000.tar" not in server.asked:
        assert process.is_alive()
        time.sleep(0.001)
    monkeypatch.setattr(atomic_files, "_running", lambda _: False)  # as where the other's numbers are not known
    (part,) = here.glob(".*.part")
    opened_each(here, 1)
    assert part.exists()
    process.kill()
    process.join()
    assert part.exists()
    request.getfixturevalue("no_wait")
    opened_each(here, 0)
    assert not part.exists()


def test_the_cache_is_not_locked_while_something_is_fetched(folder, in_memory, tmp_path, monkeypatch):
    copy, fetched = downloads.copy, []

    def free(address, *rest):
        with locked(tmp_path / "lock", pytest.fail):
            fetched.append(address.rpartition("/")[2])
        copy(address, *rest)

    monkeypatch.setattr(downloads, "copy", free)
    first_samples(corpus_of(in_memory, tmp_path).built())
    shards = [shard.name for shard in shard_manifest.load(folder).splits["train"].shards]
    assert set(fetched) == {"manifest.json", "tokenizer.json", "counts.npy", *shards}


def test_what_is_damaged_in_the_cache_is_fetched_again(folder, server, tmp_path):
    here = corpus_of(server.address, tmp_path).built()
    first_samples(here)
    before = len(server.asked)
    for name in ("train-000001.tar", "train-000002.tar"):
        content = bytearray((here / name).read_bytes())
        content[700] ^= 1
        (here / name).write_bytes(content[:-1] if name == "train-000002.tar" else content)
    assert first_samples(here) == first_samples(folder)
    assert sorted(server.asked[before:]) == ["train-000001.tar", "train-000002.tar"]


def test_mirrors_are_tried_in_turn_and_braces_expanded(folder, server, tmp_path):
    last = len(shard_manifest.load(folder).splits["train"].shards) - 1
    tars = f"train-{{000000..{last:06d}}}.tar"
    gone, here = f"http://127.0.0.1:9/{tars}", f"{server.address}/{tars}"
    server.faults["train-000002.tar"].append("404")
    given = corpus_of(str(folder), tmp_path, tars=(f"{gone}::{here}", here)).built()
    assert first_samples(given) == first_samples(folder)
    assert server.asked.count("train-000002.tar") == 2
    assert "manifest.json" not in server.asked  # which is in the folder


def test_a_changed_manifest_has_a_cache_of_its_own(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    first, same = (corpus_of(f"file://{copy}", tmp_path / "cache", retries=n).built() for n in (5, 1))
    (copy / shard_manifest.FILE).write_text(json.dumps(json.loads((copy / shard_manifest.FILE).read_text())))
    assert corpus_of(f"file://{copy}", tmp_path / "cache").built() != first == same


def refusal(path, cache, **options):
    """Return the sentence that an attempt at all training shards ends with."""
    with pytest.raises(UserError) as error:
        first_samples(corpus_of(path, cache, **({"retries": 1, "timeout": 5} | options)).built())
    assert "\n" not in str(error.value)
    return str(error.value)


def test_files_that_do_not_come(server, folder, tmp_path):
    again = "check that corpus.path and corpus.tars are correct, and raise corpus.retries or corpus.timeout if"
    wrong = refusal(f"{server.address}/elsewhere", tmp_path)
    assert wrong.startswith(
        f"manifest.json cannot be downloaded ({server.address}/elsewhere/manifest.json: HTTP 404 Not"
    )
    assert again in wrong
    assert len(server.asked) == 1  # another attempt would bring nothing else
    size = (folder / "manifest.json").stat().st_size
    for name, fault, said in (
        ("manifest.json", "503", "HTTP 503 Service Unavailable"),
        ("manifest.json", "truncate", f"manifest.json: its last {size - size // 2} bytes are missing)"),
        ("counts.npy", "corrupt", "counts.npy: its SHA-256 is "),
        ("train-000001.tar", "truncate", "are missing); check that"),
        ("train-000001.tar", "corrupt", "; restore the file that the manifest describes"),
    ):
        server.faults[name].extend([fault] * 2)
        told = refusal(server.address, tmp_path / fault)
        assert said in told
        assert told.startswith(f"{name} cannot be downloaded ({server.address}/{name}: ")
    server.faults["train-000003.tar"].extend(["hang"] * 2)
    assert "train-000003.tar: timed out)" in refusal(server.address, tmp_path / "hang", timeout=0.2)
    assert "No such file" in refusal(f"file://{folder}/nothing", tmp_path)
    assert "Connection refused" in refusal("http://127.0.0.1:9", tmp_path)
    (tmp_path / "manifest.json").write_text("<html>")
    told = refusal(f"file://{tmp_path}", tmp_path / "none")
    assert told.startswith(f"file://{tmp_path}/manifest.json is not readable JSON (")
    assert told.endswith("; change corpus.path")
    assert not (tmp_path / "none").exists()


def test_a_server_that_hardly_answers(server, tmp_path, monkeypatch):
    """Each of its bytes comes in time."""
    seconds = itertools.count()  # one at each look at the clock
    monkeypatch.setattr(downloads, "time", SimpleNamespace(monotonic=lambda: next(seconds), sleep=time.sleep))
    assert first_samples(corpus_of(server.address, tmp_path / "whole", timeout=9).built(), 1)
    server.faults["train-000000.tar"].extend(["drip"] * 2)
    told = refusal(server.address, tmp_path / "drip", timeout=9)
    assert "train-000000.tar: it arrives at less than 1,000 bytes per second)" in told


def test_a_cache_that_cannot_be_written(in_memory, tmp_path):
    here = corpus_of(in_memory, tmp_path).built()
    with full_disk(SIZE // 2), pytest.raises(UserError) as error:
        first_samples(here)
    used = f"corpus.cache: {tmp_path} cannot be used (File too large); free some space, lower corpus.cache_size, or set"
    assert str(error.value).startswith(used)
    assert not list(here.glob(".*.part"))
    assert first_samples(here)
    (tmp_path / "file").write_text("")
    assert "file cannot be used (Not a directory); make it writable" in refusal(in_memory, tmp_path / "file")
    (tmp_path / "link").mkdir()
    (tmp_path / "link/lock").symlink_to(tmp_path / "file")
    assert "link/lock is a symbolic link, but must be a regular file" in refusal(in_memory, tmp_path / "link")
    assert (tmp_path / "file").read_text() == ""


def test_what_has_no_end_is_given_up_at_a_bound(server, tmp_path, monkeypatch):
    server.faults["train-000000.tar"].extend(["endless"] * 9)
    shard = "train-000000.tar"

    def said(address=f"{server.address}/{shard}", largest=20.0, name=shard):
        with pytest.raises(UserError) as error:
            downloads.fetched(address, tmp_path / "to", 3, 5.0, "corpus.train", largest)
        assert not list((tmp_path / "to").glob("*.*"))
        assert str(error.value).startswith(f"{name} cannot be downloaded ({address}: ")
        return str(error.value).partition(": ")[2].partition(f"{name}: ")[2] or str(error.value)

    assert "it has more than 1,000,000 bytes, the limit of corpus.largest); check" in said(largest=1e-3)
    usage = SimpleNamespace(free=2_000_000)
    with monkeypatch.context() as patch:
        patch.setattr(downloads.shutil, "disk_usage", lambda _: usage)
        assert "it has more than 1,800,000 bytes, nine tenths of the free space); check" in said()
    assert server.asked == [shard] * 2, "another attempt would bring nothing else"
    # What is announced is refused before anything is written, and what no length is known of is no file.
    other = "train-000001.tar"
    with monkeypatch.context() as patch:
        patch.setattr(downloads, "_BLOCK", 1)
        assert "it has more than 10,000 bytes" in said(f"{server.address}/{other}", largest=1e-5, name=other)
    assert "it is of type 'other', not a file)" in said("file:///dev/zero", name="zero")
    told = refusal(server.address, tmp_path / "cache")
    assert f"{shard}: it is larger than expected); restore the file that the manifest describes" in told
    assert taken(tmp_path / "cache") == 0


BRACES = ["a", "a-{0..3}.tar", "{a..c}{07..10}", "{z..A..5}{B..b}", "{a,b,}{c,{d,e}{1..3}}", "{1..9..3}", "{9..1..0}"]
BRACES += ["{5..-5}", "{a}", "{a{1..2}}", "x::{1,2}::y{3..4}", r"\{a,b\}{c,d}", r"{a\,b,c}", "a,b", "{,}{,}", "{1..b}"]


BOMBS = ["{0..99999999}", "{0..9}" * 9, "{a,b}" * 40, "{a..z}" * 5, "{{0..9999}" + ",{0..9999}" * 999 + "}"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"path": "http://x/{1..2}"},
            r"^corpus\.path: .* is not the URL of one folder; name one, and list tar files in corpus\.tars",
        ),
        ({"tars": ("http://x/train-{0..3.tar",)}, r"^corpus\.tars: .* cannot be expanded \(.*\); correct its braces"),
        (
            {"tars": ("http://x/7.tar",)},
            r"^corpus\.tars: http://x/7\.tar does not contain the name of a shard, such as",
        ),
        ({"tars": ("pipe:cat train-000000.tar",)}, r"^corpus\.tars: pipe:cat train-000000\.tar would run a shell"),
        (
            {"tars": ("|cat train-000000.tar",)},
            r"shell command; .* `atat --allow-pipe …`, or set ATAT_ZOO_ALLOW_PIPE=1",
        ),
        ({"path": "nothing://x"}, r"^nothing://x/manifest\.json is not a valid URL \(Protocol not known"),
        ({"path": "lost://x"}, r"needs a package that is not installed; run `pip install no_such_package`$"),
    ],
)
def test_addresses_that_are_refused(options, message, tmp_path, monkeypatch):
    lost = {"class": "no_such_package.Store", "err": "Install it"}
    monkeypatch.setitem(known_implementations, "lost", lost)
    with pytest.raises(UserError, match=message):
        corpus_of(**({"path": "memory://shards"} | options), cache=tmp_path / "cache").built()
    assert not (tmp_path / "cache").exists()


def test_commands_run_where_the_person_allows_it(folder, tmp_path, monkeypatch):
    last = len(shard_manifest.load(folder).splits["train"].shards) - 1
    tars = (f"pipe:cat {folder}/train-{{000000..{last:06d}}}.tar",)
    monkeypatch.setenv(downloads.ALLOW, "")
    # Nor does it help that the cache says so.
    written = corpus_of(f"file://{folder}", tmp_path)
    origin = written.built() / shard_manifest.ORIGIN
    origin.write_text(json.dumps(json.loads(origin.read_text()) | {"tars": tars}))
    with pytest.raises(UserError, match=r"would run a shell command"):
        first_samples(origin.parent)
    assert CliRunner().invoke(atat, ["--allow-pipe", "zoo", "list"]).exit_code == 0
    assert first_samples(corpus_of(str(folder), tmp_path, tars=tars).built()) == first_samples(folder)
    broken = (f"|cat {folder}/train-{{000000..{last:06d}}}.tar; false",)
    assert ": the command exited with code 1)" in refusal(str(folder), tmp_path / "b", tars=broken)


def test_what_braces_stand_for():
    for text in BRACES:
        assert len(downloads.expanded(text, "x")) == sum(map(downloads._alternatives, text.split("::"))), text
    said = r"^corpus\.train: x-.* expands to [\d,]+ files, but the limit is 1,000,000; name fewer files$"
    for text in [*BOMBS, f"{{1..{'9' * 4000}}}"]:
        with limited(64 << 20), pytest.raises(UserError, match=said):
            downloads.expanded(f"x-{text}.tar", "corpus.train")
