"""Building: the same bytes from the same input, whatever happens in between, and never of another text."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import attrs
import numpy as np
import pytest
from in_memory import Memory, experiment_of, hashes, interrupted, killed, stages_of_a_second, texts

from atat_zoo.cli.data_command import joints
from atat_zoo.data import sequence_packing, shard_manifest
from atat_zoo.data.build import build
from atat_zoo.data.corpora import ShardsCorpus, Text8Corpus
from atat_zoo.data.corpora.text_files import FilesCorpus
from atat_zoo.data.shards import read
from atat_zoo.data.stream import refuse_sizes
from atat_zoo.data.tokenizers.components import BPETokenizer, PretrainedTokenizer
from atat_zoo.data.tokenizers.tokenizer_models import BytesModel, trained
from atat_zoo.system import digests, machine
from atat_zoo.system.errors import UserError
from tests.limited import full_disk, limited
from tests.tiny import folder_of

pytestmark = pytest.mark.slow

LONG = texts(2000)  # several batches of documents, several groups of shards
BIG = {"length": 64, "sequences_per_shard": 64}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(sequence_packing, "BATCH", 50)


def stored(folder, split="train"):
    contents = shard_manifest.load(folder)
    return np.concatenate([read(folder, contents, shard) for shard in contents.splits[split].shards])


def test_the_shards_hold_the_text(experiment):
    made = experiment()
    folder = build(made)
    assert folder == folder_of(made)
    assert folder.name.startswith("memory-bytes-16-")
    found = shard_manifest.verify(folder, full=True)
    assert bytes(stored(folder, "validation").reshape(-1).tolist()) == (b"held out" * 40)
    train = bytes(stored(folder).reshape(-1).tolist()).decode()
    there = [text for text in texts(40) if text in train]
    assert len(there) >= 39  # the last one may be cut
    places = [train.index(text) for text in there]
    assert places != sorted(places)  # in another order than the corpus has them
    record = found.splits["train"]
    assert record.documents == 40
    assert record.bytes == sum(len(text.encode()) for text in texts(40))
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["manifest.json", "tokenizer.json", "counts.npy", *(s.name for r in found.splits.values() for s in r.shards)]
    )


def test_the_folder_follows_the_settings(experiment):
    changes = [
        *(
            {"length": 17},
            {"special_tokens": "document"},
            {"packing": "document"},
            {"remainder": "pad"},
            {"dtype": "uint32"},
        ),
        *({"sequences_per_member": 5}, {"sequences_per_shard": 9}, {"lanes": 3}, {"sequences": 20}),
        *({"format": "chat"}, {"format": "chat", "packing": "document"}),
        *({"corpus": Memory(train=texts(41))}, {"tokenizer": BPETokenizer(vocabulary_size=300)}),
    ]
    assert len({folder_of(experiment(**change)) for change in ({}, *changes)}) == len(changes) + 1
    assert folder_of(experiment(workers=2)) == folder_of(experiment())


@pytest.mark.parametrize(
    ("rows", "sizes"), [(9, [3, 2, 2, 2]), (32, [8] * 4), (34, [8] * 4 + [2]), (69, [8] * 8 + [2, 1, 1, 1])]
)
def test_sizes_of_the_shards(experiment, rows, sizes):
    folder = build(experiment(corpus=Memory(train=("x" * (16 * rows),))))
    assert [shard.sequences for shard in shard_manifest.load(folder).splits["train"].shards] == sizes


@pytest.mark.parametrize("limit", [21, 500, 10**6])
def test_a_limit_holds_for_the_training_text_alone(tmp_path, limit):
    """The limit falls within the first group of shards, within a later one, and beyond the text."""
    corpus = Memory(train=LONG[:120], validation=("held out" * 40,))
    whole, part = (
        build(experiment_of(tmp_path / str(n), corpus=corpus, sequences=n, sequences_per_shard=25))
        for n in (None, limit)
    )
    kept = min(limit, shard_manifest.load(whole).splits["train"].sequences)
    assert shard_manifest.verify(part, full=True).splits["train"].sequences == kept
    # Sequences follow each other within a group of shards, whose cuts differ in the last one only.
    assert np.array_equal(stored(part), stored(whole)[:kept])
    assert np.array_equal(stored(part, "validation"), stored(whole, "validation"))
    assert shard_manifest.load_counts(part).sum() == 16 * kept


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same build without any interruption; its batches are larger, of which its bytes do not depend."""
    return build(big(tmp_path_factory.mktemp("whole")))


def big(root):
    return experiment_of(root, corpus=Memory(train=LONG), **BIG)


@pytest.mark.parametrize("when", ["tokenizer", "train", "validation", "test"])
def test_an_interrupted_build_goes_on(tmp_path, whole, when, monkeypatch):
    made = big(tmp_path)
    interrupted(build, made, at=when, after=75_001 if when == "train" else 0)
    folder = folder_of(made)
    assert not folder.exists()
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / f"{folder.name}.partial").glob("*.tar")}
    encoded, encode_batch = [], BytesModel.encode_batch
    counted = lambda self, batch: encoded.extend(batch) or encode_batch(self, batch)  # noqa: E731
    monkeypatch.setattr(BytesModel, "encode_batch", counted)
    assert build(made) == folder
    assert hashes(folder) == hashes(whole)
    characters = sum(map(len, encoded))
    if when == "train":  # what was done is not encoded again
        assert kept
        assert 0 < characters < sum(map(len, LONG)) * 0.75
    assert characters < 1000 or when in ("tokenizer", "train")
    assert {name: (folder / name).stat().st_mtime_ns for name in kept} == kept  # nor written again
    assert sorted(p.name for p in tmp_path.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_a_killed_build_goes_on(tmp_path, whole):
    killed(build, big(tmp_path), after=75_000)
    assert list(tmp_path.glob("*.partial/train-*.tar"))
    assert hashes(build(big(tmp_path))) == hashes(whole)


@pytest.mark.parametrize("damage", ["shard", "settings", "state"])
def test_a_damaged_rest_of_a_build_is_done_again(tmp_path, whole, damage):
    made = big(tmp_path)
    interrupted(build, made, at="validation")
    work = next(tmp_path.glob("*.partial"))
    target = work / {"shard": "train-000002.tar", "settings": "settings", "state": "train.state.npz"}[damage]
    target.write_bytes(b"x" * target.stat().st_size)
    assert hashes(build(made)) == hashes(whole)


def test_what_is_being_built_is_waited_for(tmp_path):
    made = experiment_of(tmp_path)
    assert stages_of_a_second(build, made) == ["waiting"]  # and then it finds what the first has built
    shard_manifest.verify(folder_of(made), full=True)


def test_full_disk(tmp_path, whole):
    made = big(tmp_path)
    refused = r"\.partial/.* cannot be written: File too large; free some space"
    with full_disk(5_000), pytest.raises(UserError, match=refused):
        build(made)
    assert not [*tmp_path.glob("*.partial/*.tar*"), *tmp_path.glob("*.partial/.*")]  # no half shard
    assert hashes(build(made)) == hashes(whole)


def test_shards_built_elsewhere(experiment, tmp_path):
    moved = Path(shutil.move(build(experiment()), tmp_path / "moved"))
    given = ShardsCorpus(path=str(moved))
    assert build(experiment(corpus=given)) == moved
    others = {"length": 17, "special_tokens": "document", "packing": "document", "tokenizer": BPETokenizer()}
    with pytest.raises(UserError) as caught:
        build(experiment(corpus=given, **others))
    says = "have use = 'bytes', but the experiment has use = 'bpe', vocabulary_size = 2048"
    assert str(caught.value).split("\n") == [
        f"data.length: the shards in {moved} have 16, but the experiment has 17",
        f'data.special_tokens: the shards in {moved} have "none", but the experiment has "document"',
        f'data.packing: the shards in {moved} have "packed", but the experiment has "document"',
        f"tokenizer: the shards in {moved} {says}",
    ]
    with pytest.raises(UserError, match=r"corpus 'shards' .* has tokens, not text"):
        next(iter(given.documents("train")))
    with pytest.raises(UserError, match=r"contains no manifest\.json"):
        build(experiment(corpus=ShardsCorpus(path=str(tmp_path / "nothing"))))
    assert given.fingerprint() == shard_manifest.load(moved).fingerprint


def test_shards_built_elsewhere_by_a_tokenizer_from_a_file(experiment, tmp_path):
    def tokenizer(name, vocabulary=300, **ends):
        (tmp_path / name).mkdir(exist_ok=True)
        BPETokenizer(vocabulary_size=vocabulary).train(lambda: iter(LONG[:50])).save(tmp_path / name)
        return PretrainedTokenizer(path=str(tmp_path / name / "tokenizer.json"), **ends)

    theirs = tokenizer("theirs", eos="<eos>")
    given = {"corpus": ShardsCorpus(path=str(shutil.move(build(experiment(tokenizer=theirs)), tmp_path / "moved")))}
    ours = tokenizer("ours", eos="<eos>")
    written = json.loads(Path(ours.path).read_text())
    Path(ours.path).write_text(json.dumps(written, indent=3))  # as another version of the library may write it
    assert build(experiment(tokenizer=ours, **given)) == tmp_path / "moved"
    folder, contents = tmp_path / "moved", shard_manifest.load(tmp_path / "moved")
    for form in ({"indent": 5}, {"indent": None}):  # or as the one that built them has written it
        (folder / "tokenizer.json").write_text(json.dumps(written, **form))
        digest = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
        sha256 = contents.sha256 | {"tokenizer.json": digest}
        (folder / "manifest.json").write_text(attrs.evolve(contents, sha256=sha256).to_json())
        assert build(experiment(tokenizer=ours, **given)) == folder
    others = [
        (tokenizer("larger", 310, eos="<eos>"), "vocabulary size = 310"),
        (tokenizer("ours"), "eos = None"),
        (PretrainedTokenizer(path=str(tmp_path / "nowhere.json"), eos="<eos>"), "tokenizer.path: file not found:"),
    ]
    for other, said in others:
        with pytest.raises(UserError, match=said):
            build(experiment(tokenizer=other, **given))
    Path(theirs.path).unlink()  # the shards have it
    assert build(experiment(tokenizer=theirs, **given)) == tmp_path / "moved"
    tokenizer("theirs", 310)  # another one in the same place
    with pytest.raises(UserError, match=r"^tokenizer: the shards in .*moved have SHA-256 of tokenizer\.json = '"):
        build(experiment(tokenizer=theirs, **given))


def test_building_needs_no_torch(tmp_path):
    script = """
import sys
sys.path.insert(0, sys.argv[2])
from in_memory import experiment_of
from atat_zoo.data.build import build
build(experiment_of(sys.argv[1]))
sys.exit("torch" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parent)], check=True)


LINES = texts(200)
FEW = {"sequences_per_shard": 4000}  # shards
OLD, NEW = "\n".join(LINES), "\n".join(reversed(LINES))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(OLD)
    return path


def of(path, root="data", **settings):
    return experiment_of(path.parent / root, corpus=FilesCorpus(train=(str(path),), document="line"), **FEW | settings)


def edit(path, text):
    """Write a text with the time of the old one, as `cp -p` and `rsync -t` do."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def editing(when, path, *contents):
    left = list(contents)

    def report(stage, done, total):
        while stage == when and left:
            edit(path, left.pop(0))

    return report


def nothing_kept(path):
    return [p.name for p in (path.parent / "data").iterdir() if not p.name.endswith(".lock")] == []


@pytest.mark.parametrize(("when", "back"), [("tokenizer", False), ("train", True), ("test", True)])
def test_text_edited_while_it_is_built_is_refused(path, when, back):
    contents = [NEW, OLD] if back else [NEW]
    with pytest.raises(UserError, match="changed during the build, so the shards were discarded; run"):
        build(of(path), progress=editing(when, path, *contents))
    assert nothing_kept(path)
    edit(path, OLD)
    assert hashes(build(of(path))) == hashes(build(of(path, "again")))


def test_text_edited_while_a_build_is_interrupted_begins_it_anew(path):
    edits = editing("tokenizer", path, NEW)

    def build_edited(progress):
        build(of(path), progress=lambda *report: (edits(*report), progress(*report)))

    interrupted(build_edited, at="test")
    edit(path, OLD)
    assert hashes(build(of(path))) == hashes(build(of(path, "again")))


def test_the_folder_of_small_texts_keeps_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(OLD)
    made = experiment_of(Path("data"), corpus=FilesCorpus(train=("text.txt",), document="line"))
    found = made.parts["corpus"].fingerprint()
    digest = hashlib.sha256(f"{len(OLD)}\0{OLD}".encode()).hexdigest()
    assert found == {"train": {"files": 1, "bytes": len(OLD), "sha256": digest}}
    assert folder_of(made).name == "files-bytes-16-37319cd0d9"


# -- large files ------------------------------------------------------------------------------------------------------

LARGE = 4 << 20


@pytest.fixture
def large(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "_HASHED_AT_ONCE", LARGE - 1)
    path = tmp_path / "large.txt"
    path.write_bytes(b"x" * LARGE)
    return path


@pytest.fixture
def counted(monkeypatch):
    """The files that were hashed."""
    hashed = []
    whole = digests._sha256

    def count(path, *rest):
        hashed.append(Path(path).name)
        return whole(path, *rest)

    monkeypatch.setattr(digests, "_sha256", count)
    monkeypatch.setattr(digests, "_of_this_process", {})
    return hashed


def test_the_hash_of_a_large_file_is_kept_until_it_changes(large, counted, monkeypatch):
    monkeypatch.setattr(digests, "_TICK", -(10**18))  # as if the file had been there for long
    corpus, root, reported = FilesCorpus(train=(str(large),)), large.parent / "data", []

    def fingerprint():
        digests._of_this_process.clear()
        with digests.kept_in(root, lambda *progress: reported.append(progress)):
            return corpus.fingerprint()

    first = fingerprint()
    assert fingerprint() == first
    assert counted == ["large.txt"]
    assert {stage for stage, _, _ in reported} == {"hashing"}
    assert reported[-1][1:] == (LARGE, LARGE)
    edit(large, "x" * (LARGE - 1) + "y")
    second = fingerprint()
    assert second != first
    assert counted == ["large.txt"] * 2
    for damaged in ("", "{", "[1]", '{"x": 5}', '{"x": []}', json.dumps({str(large): [0, "x"]}), "[" * 10_000):
        (root / "digests.json").write_text(damaged)
        assert fingerprint() == second
    assert len(counted) == 2 + 7


def test_a_batch_and_workers_that_are_too_many(monkeypatch):
    with pytest.raises(
        UserError, match=r"^train\.batch_size = 1099511627776 needs about 158,329\.7 GB just for the ids of"
    ):
        refuse_sizes(16, 2**40, 1, 0)
    refuse_sizes(16, 2**40, 2**36, 0)
    monkeypatch.setattr(machine, "memory", lambda: 10**9)
    with pytest.raises(UserError, match=r"^data\.workers = 1000 needs about 31\.5 GB just for its processes"):
        refuse_sizes(16, 4, 1, 1000)
    with pytest.raises(ValueError, match="workers must be at most 1024"):
        experiment_of(Path("data"), workers=2**40)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The state of an interrupted build, and the hashes of what comes of it."""
    root = tmp_path_factory.mktemp("interrupted")
    interrupted(build, experiment_of(root), at="test")
    state = next(root.glob("*.partial/train.state.npz")).read_bytes()
    return state, hashes(build(experiment_of(root)))


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def repacked(state, method=zipfile.ZIP_STORED, **changed):
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(state)) as old, zipfile.ZipFile(file, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, changed.get(name.removesuffix(".npy"), old.read(name)))
    return file.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda state: repacked(state, zipfile.ZIP_DEFLATED, waiting=bytes(3 * 10**8)),
        lambda state: repacked(state, waiting=npy(np.zeros(1)).replace(b"(1,)", b"(9" + b"9)")),
        lambda state: repacked(state, counts=npy(np.zeros(3, np.int64))),
        lambda state: repacked(state, table=npy(np.frombuffer(b'{"shards": [{}]}', np.uint8))),
        lambda state: b"",
    ],
)
def test_a_forged_state_of_a_build_begins_the_split_again(tmp_path, begun, change):
    state, expected = begun
    interrupted(build, experiment_of(tmp_path), at="test")
    next(tmp_path.glob("*.partial/train.state.npz")).write_bytes(change(state))
    with limited(256 << 20):
        assert hashes(build(experiment_of(tmp_path))) == expected


def test_a_finished_build_is_not_repeated_and_not_over_other_files(experiment):
    folder = build(experiment())
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert build(experiment(), progress=pytest.fail) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    path, text = folder / "train-000001.tar", (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(attrs.evolve(shard_manifest.load(folder), settings="0" * 64).to_json())
    with pytest.raises(UserError, match="holds shards built with different settings"):
        build(experiment())
    (folder / "manifest.json").write_text(text)
    path.write_bytes(path.read_bytes()[:-512])
    with pytest.raises(UserError, match=r"train-000001\.tar is damaged .* run `atat data build` again"):
        build(experiment())
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"exists but holds no manifest\.json; move it elsewhere or delete it"):
        build(experiment())
    assert path.exists()


def test_too_little_text_and_too_large_sizes(experiment, monkeypatch):
    for data, message in (
        ({"corpus": Memory(train=("x" * 60,))}, r"yields 3 sequences of data\.length = 16, fewer than data\.lanes = 4"),
        (
            {"length": 2**40, "remainder": "pad"},
            r"^data\.length = 1099511627776 needs about 17,592\.2 GB just for a single",
        ),
        (
            {"length": 2**30, "packing": "document"},
            r"^data\.length = 1073741824 needs about 17,592\.2 GB just for the rows of",
        ),
    ):
        with pytest.raises(UserError, match=message):
            build(experiment(**data))
    monkeypatch.setattr(machine, "memory", lambda: 100_000)
    with pytest.raises(UserError, match=r"^data\.sequences_per_shard = 4611686018427387904 for 4 lanes needs about"):
        build(experiment(sequences_per_shard=2**62, corpus=Memory(train=texts(1000))))
    build(experiment())


def test_a_text8_or_a_tokenizer_edited_while_it_is_used_is_refused(path, tmp_path):
    files = [trained(iter(LINES), size, ("<bos>", "<eos>")).to_str() for size in (300, 310)]
    (tmp_path / "tokenizer.json").write_text(files[0])
    tokenizer = PretrainedTokenizer(path=str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="or the tokenizer file changed"):
        build(of(path, tokenizer=tokenizer), progress=editing("train", tmp_path / "tokenizer.json", files[1]))
    assert nothing_kept(path)
    text8 = tmp_path / "text8"
    text8.write_text("we the people " * 300)
    made = experiment_of(tmp_path / "data", corpus=Text8Corpus(path=str(text8)))
    with pytest.raises(UserError, match="changed during the build"):
        build(made, progress=editing("validation", text8, "of the people " * 300))
    assert nothing_kept(path)


def test_a_hash_is_not_kept_of_a_file_that_was_just_written_and_needs_no_place(large, counted, monkeypatch):
    """It may be written again in the same tick of the clock, which here lasts longer than any test."""
    corpus = FilesCorpus(train=(str(large),))
    for tick, root, times in ((10**18, large.parent / "data", 2), (-(10**18), large, 1)):  # a file, not a folder
        counted.clear()
        monkeypatch.setattr(digests, "_TICK", tick)
        with digests.kept_in(root, lambda *_: None):
            assert corpus.fingerprint() == corpus.fingerprint()
        assert counted == ["large.txt"] * times
    assert not (large.parent / "data").exists()


def test_what_stands_between_documents_is_named():
    for special, bos in {"none": False, "document": False, "sequence": True, "both": True}.items():
        for packing in ("packed", "document") if bos else ("packed",):
            assert ("BOS" in joints(special, packing, "text")) is bos
