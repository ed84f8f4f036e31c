"""Building: the same bytes from the same input, whatever happens in between."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import attrs
import numpy as np
import pytest
from in_memory import Memory, experiment_of, hashes, interrupted, killed, stages_of_a_second, texts

from atat_zoo.data import manifest, pack
from atat_zoo.data.build import build
from atat_zoo.data.corpora import ShardsCorpus
from atat_zoo.data.shards import read
from atat_zoo.data.tokenizers import BPETokenizer, PretrainedTokenizer
from atat_zoo.data.tokenizers.library import BytesModel
from atat_zoo.errors import UserError
from tests.limited import full_disk
from tests.tiny import folder_of

LONG = texts(2000)  # several batches of documents, several groups of shards
BIG = {"length": 64, "sequences_per_shard": 64}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(pack, "BATCH", 50)


def stored(folder, split="train"):
    contents = manifest.load(folder)
    return np.concatenate([read(folder, contents, shard) for shard in contents.splits[split].shards])


def test_the_shards_hold_the_text(experiment):
    made = experiment()
    folder = build(made)
    assert folder == folder_of(made)
    assert folder.name.startswith("memory-bytes-16-")
    found = manifest.verify(folder, full=True)
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


def test_a_finished_build_is_not_repeated(experiment):
    folder = build(experiment())
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    stages = []
    assert build(experiment(), progress=lambda stage, done, total: stages.append(stage)) == folder
    assert not stages
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_the_folder_follows_the_settings(experiment):
    changes = [
        *({"length": 17}, {"special": "document"}, {"rows": "document"}, {"remainder": "pad"}, {"dtype": "uint32"}),
        *({"sequences_per_member": 5}, {"sequences_per_shard": 9}, {"lanes": 3}, {"sequences": 20}),
        *({"corpus": Memory(train=texts(41))}, {"tokenizer": BPETokenizer(vocabulary_size=300)}),
    ]
    assert len({folder_of(experiment(**change)) for change in ({}, *changes)}) == len(changes) + 1
    assert folder_of(experiment(workers=2)) == folder_of(experiment())


@pytest.mark.parametrize(
    ("rows", "sizes"), [(9, [3, 2, 2, 2]), (32, [8] * 4), (34, [8] * 4 + [2]), (69, [8] * 8 + [2, 1, 1, 1])]
)
def test_sizes_of_the_shards(experiment, rows, sizes):
    folder = build(experiment(corpus=Memory(train=("x" * (16 * rows),))))
    assert [shard.sequences for shard in manifest.load(folder).splits["train"].shards] == sizes


@pytest.mark.parametrize("limit", [21, 500, 10**6])
def test_a_limit_holds_for_the_training_text_alone(tmp_path, limit):
    """The limit falls within the first group of shards, within a later one, and beyond the text."""
    corpus = Memory(train=LONG[:120], validation=("held out" * 40,))
    whole, part = (
        build(experiment_of(tmp_path / str(n), corpus=corpus, sequences=n, sequences_per_shard=25))
        for n in (None, limit)
    )
    kept = min(limit, manifest.load(whole).splits["train"].sequences)
    assert manifest.verify(part, full=True).splits["train"].sequences == kept
    # Sequences follow each other within a group of shards, whose cuts differ in the last one only.
    assert np.array_equal(stored(part), stored(whole)[:kept])
    assert np.array_equal(stored(part, "validation"), stored(whole, "validation"))
    assert manifest.load_counts(part).sum() == 16 * kept


def test_too_few_sequences_for_the_lanes(experiment):
    with pytest.raises(UserError, match=r"makes 3 sequences of data\.length = 16, fewer than data\.lanes = 4"):
        build(experiment(corpus=Memory(train=("x" * 60,))))


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
    encoded = Counter()
    encode_batch = BytesModel.encode_batch

    def counted(self, batch):
        encoded["characters"] += sum(map(len, batch))
        return encode_batch(self, batch)

    monkeypatch.setattr(BytesModel, "encode_batch", counted)
    assert build(made) == folder
    assert hashes(folder) == hashes(whole)
    total = sum(map(len, LONG))
    if when == "train":
        assert kept
        assert 0 < encoded["characters"] < total * 0.75  # what was done is not encoded again
    if when in ("validation", "test"):
        assert encoded["characters"] < 1000
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
    manifest.verify(folder_of(made), full=True)


def test_full_disk(tmp_path, whole):
    made = big(tmp_path)
    refused = r"\.partial/.* cannot be written: File too large; free some space"
    with full_disk(5_000), pytest.raises(UserError, match=refused):
        build(made)
    assert not [*tmp_path.glob("*.partial/*.tar*"), *tmp_path.glob("*.partial/.*")]  # no half shard
    assert hashes(build(made)) == hashes(whole)


def test_a_folder_that_is_something_else(experiment):
    made = experiment()
    folder = folder_of(made)
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match=r"exists but holds no manifest\.json; move it away or delete it"):
        build(made)
    assert (folder / "thesis.txt").read_text() == "years of work"


def test_shards_built_elsewhere(experiment, tmp_path):
    moved = Path(shutil.move(build(experiment()), tmp_path / "moved"))
    made = experiment(corpus=ShardsCorpus(path=str(moved)))
    assert build(made) == moved
    others = {"length": 17, "special": "document", "rows": "document", "tokenizer": BPETokenizer()}
    with pytest.raises(UserError) as caught:
        build(experiment(corpus=ShardsCorpus(path=str(moved)), **others))
    *of_data, of_tokenizer = str(caught.value).split("\n")
    assert of_data == [
        f"data.length: the shards in {moved} have 16, the experiment says 17",
        f'data.special: the shards in {moved} have "none", the experiment says "document"',
        f'data.rows: the shards in {moved} have "packed", the experiment says "document"',
    ]
    says = "have use = 'bytes', the experiment says use = 'bpe', vocabulary_size = 2048"
    assert of_tokenizer == f"tokenizer: the shards in {moved} {says}"
    with pytest.raises(UserError, match="corpus 'shards' holds tokens and no documents"):
        next(iter(ShardsCorpus(path=str(moved)).documents("train")))
    with pytest.raises(UserError, match=r"holds no manifest\.json"):
        build(experiment(corpus=ShardsCorpus(path=str(tmp_path / "nothing"))))
    assert ShardsCorpus(path=str(moved)).fingerprint() == manifest.load(moved).fingerprint


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
    folder, contents = tmp_path / "moved", manifest.load(tmp_path / "moved")
    for form in ({"indent": 5}, {"indent": None}):  # or as the one that built them has written it
        (folder / "tokenizer.json").write_text(json.dumps(written, **form))
        digest = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
        sha256 = contents.sha256 | {"tokenizer.json": digest}
        (folder / "manifest.json").write_text(attrs.evolve(contents, sha256=sha256).to_json())
        assert build(experiment(tokenizer=ours, **given)) == folder
    others = [
        (tokenizer("larger", 310, eos="<eos>"), "vocabulary size = 310"),
        (tokenizer("ours"), "eos = None"),
        (PretrainedTokenizer(path=str(tmp_path / "nowhere.json"), eos="<eos>"), "tokenizer.path: there is no file"),
    ]
    for other, said in others:
        with pytest.raises(UserError, match=said):
            build(experiment(tokenizer=other, **given))
    Path(theirs.path).unlink()  # the shards have it
    assert build(experiment(tokenizer=theirs, **given)) == tmp_path / "moved"
    tokenizer("theirs", 310)  # another one in the same place
    with pytest.raises(UserError, match=r"^tokenizer: the shards in .*moved have SHA-256 of tokenizer\.json = '"):
        build(experiment(tokenizer=theirs, **given))


def test_shards_of_other_settings_or_that_do_not_match_their_manifest(experiment):
    folder = build(experiment())
    path, text = folder / "train-000001.tar", (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(attrs.evolve(manifest.load(folder), settings="0" * 64).to_json())
    with pytest.raises(UserError, match="holds shards of other settings"):
        build(experiment())
    (folder / "manifest.json").write_text(text)
    path.write_bytes(path.read_bytes()[:-512])
    with pytest.raises(UserError, match=r"train-000001\.tar is damaged .* run `atat data build` again"):
        build(experiment())


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
