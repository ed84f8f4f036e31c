"""WebDatasets made elsewhere: their documents, from anywhere and packed, and a sentence for whatever is wrong."""

import gzip
import io
import json
import tarfile

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset import TarWriter

from atat_zoo.data import SPLITS
from atat_zoo.data.build import build
from atat_zoo.data.corpora.webdataset import WebDatasetCorpus
from atat_zoo.data.tokenizers import BytesTokenizer, PretrainedTokenizer
from atat_zoo.errors import UserError
from atat_zoo.experiment import from_table
from tests.faulty_server import serving
from tests.limited import limited


def written(path, samples):
    """Write samples, tables of bytes, texts, tables and arrays by extension, as webdataset writes them."""
    with path.open("wb") as out, TarWriter(out) as tar:  # by its name, WDS_SECURE would refuse it
        for number, sample in enumerate(samples):
            content = {}
            for name, value in sample.items():
                if name.endswith("npy"):
                    file = io.BytesIO()
                    np.save(file, value)
                    value = file.getvalue()
                elif isinstance(value, dict):
                    value = json.dumps(value)
                content[name] = value.encode() if isinstance(value, str) else value
            tar.write({"__key__": f"a/{number:04d}", **content})
    return path


def corpus_of(*train, **changes):
    changes = {"validation_share": 0.0, "test_share": 0.0} | changes
    return WebDatasetCorpus(train=tuple(map(str, train)), **changes)


def texts_of(*train, **changes):
    return list(corpus_of(*train, **changes).documents("train"))


TEXTS = ["we the people", "naïve 日本 🙂", "two\nlines "]


@settings(max_examples=30)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\ufeff")), min_size=1, max_size=8),
    st.sampled_from(["txt", "json", "npy", "page.txt", "Txt"]),
    st.sampled_from(["tar", "tar.gz", "tgz", "tar.zst"]),
    st.integers(1, 3),
)
def test_what_webdataset_writes_is_read(tmp_path_factory, texts, extension, packed, shards):
    folder = tmp_path_factory.mktemp("wds")
    ids = {"npy": lambda text: np.frombuffer(text.encode(), np.uint8), "json": lambda text: {"text": text}}
    form = ids.get(extension, lambda text: text)
    for i in range(shards):
        tar = written(folder / f"part-{i}.x", [{extension: form(text), "cls": "3"} for text in texts[i::shards]])
        data = tar.read_bytes()
        tar.unlink()
        data = zstandard.compress(data) if packed.endswith("zst") else data
        data = gzip.compress(data) if packed.endswith("gz") else data
        (folder / f"part-{i}.{packed}").write_bytes(data)
    options = {"extension": "page.txt"} if extension == "page.txt" else {"tokenizer": "bytes"}
    wanted = [text for i in range(shards) for text in texts[i::shards] if text.strip()]
    if shards > len(texts):
        return  # some shard has no sample
    braces = f"{{0..{shards - 1}}}" if shards > 1 else "*"
    assert texts_of(f"{folder}/part-{braces}.{packed}", **options) == wanted
    assert texts_of(folder, **options) == wanted


def test_ids_are_cut_where_documents_end(tmp_path):
    bos, eos = 256, 257
    rows = np.array([[bos, *b"one", eos, *b"two"], [*b"and three", eos][:8]], np.int32)
    tar = written(
        tmp_path / "a.tar", [{"npy": rows}, {"npy": np.array([*b"four"], np.uint16)}, {"npy": np.array([], int)}]
    )
    assert texts_of(tar, tokenizer="bytes") == ["one", "two", "and thre", "four"]
    assert texts_of(written(tmp_path / "b.tar", [{"npy": np.array([0, eos])}]), tokenizer="bytes") == ["\0"]
    with pytest.raises(UserError, match=r"has the ids 0 to 258, and the tokenizer 0 to 257; name the one that made"):
        texts_of(written(tmp_path / "c.tar", [{"npy": np.array([0, 258])}]), tokenizer="bytes")


def test_ids_of_another_tokenizer_become_its_text(tmp_path):
    from atat_zoo.testing.examples import EXAMPLES

    table = EXAMPLES["tokenizer", "pretrained"](tmp_path)
    model = PretrainedTokenizer(**table).train(lambda: iter(()))
    text = "the people of this nation keep a just peace"
    tar = written(tmp_path / "a.tar", [{"npy": np.array([*model.encode(text), model.eos, *model.encode("all")])}])
    corpus = corpus_of(tar, tokenizer={"use": "pretrained", **table})
    assert list(corpus.documents("train")) == [text, "all"]
    assert corpus.fingerprint()["tokenizer_file"] == PretrainedTokenizer(**table).fingerprint()
    with pytest.raises(UserError, match=r"^corpus\.tokenizer: .* and the tokenizer 0 to 257; name the one"):
        texts_of(tar, tokenizer="bytes")
    with pytest.raises(UserError, match="'bpe' is trained on a text"):
        texts_of(tar, tokenizer="bpe")


def member(name, content, size=None):
    """Return a file as it is in a tar, whose header may claim another size than it has."""
    info = tarfile.TarInfo(name)
    info.size = len(content) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def damaged(tmp_path, name, data, **changes):
    (tmp_path / name).write_bytes(data)
    with limited(), pytest.raises(UserError) as error:
        texts_of(tmp_path / name, **changes)
    return str(error.value)


def test_what_is_wrong_with_a_shard(tmp_path):
    data = b"".join(member(f"{i}.txt", text.encode()) for i, text in enumerate(TEXTS)) + bytes(1024)
    cut = r"cannot be read as a tar file \(it has no end of an archive; it may be cut off\); fetch or make it again"
    # At the end of a member, within a header, and within a text: the library alone would pass over the first two.
    for at, said in ((1024, cut), (1300, cut), (1536 + 5, "unexpected end of data")):
        assert said.replace("\\", "") in damaged(tmp_path, "cut.tar", data[:at])
    packed = gzip.compress(data)
    assert "(Compressed file ended before the end-of-stream marker" in damaged(tmp_path, "cut.tar.gz", packed[:-20])
    flipped = bytearray(packed)
    flipped[-6] ^= 1
    assert "CRC check failed" in damaged(tmp_path, "flipped.tar.gz", flipped)
    assert "cannot be read as a tar file" in damaged(tmp_path, "cut.tar.zst", zstandard.compress(data)[:-9])
    assert "(its header at byte 0 is damaged: invalid header)" in damaged(tmp_path, "no.tar", b"no tar" * 1000)
    assert "cannot be read as a tar file" in damaged(tmp_path, "empty.tar", b"")
    assert "Not a gzipped file" in damaged(tmp_path, "no.tar.gz", data)
    assert "has no samples" in damaged(tmp_path, "nothing.tar", bytes(10240))
    forged = member("a.txt", bytes(4096), size=2**40)
    assert "unexpected end of data" in damaged(tmp_path, "forged.tar", forged)
    bad = bytearray(data)
    bad[1024 + 2] ^= 1  # in the name of the second of three
    damage = "cannot be read as a tar file (its header at byte 1,024 is damaged: bad checksum); fetch or make it again"
    assert damage in damaged(tmp_path, "bad.tar", bad)
    twice = data[:1024] + data[:1024] + bytes(1024)
    assert "duplicate file name in tar file" in damaged(tmp_path, "twice.tar", twice)
    packed = gzip.compress(member("a.txt", b"", size=4 << 30)) + gzip.compress(bytes(64 << 20), 1) * 64
    assert "more than this machine can hold" in damaged(tmp_path, "bomb.tar.gz", packed)


@pytest.mark.parametrize(
    ("sample", "changes", "said"),
    [
        (
            {"txt": "a", "json": {"text": "b"}},
            {},
            "has several of txt, json, npy (it has json, txt); set corpus.extension",
        ),
        ({"jpg": "a"}, {}, "has none of txt, json, npy (it has jpg); set corpus.extension to the one with the text"),
        ({"json": {}}, {"extension": "txt"}, "has no 'txt' (it has json); name one that it has"),
        (
            {"json": {"texts": "a"}},
            {},
            "has no 'text'; did you mean 'texts'?; set corpus.text_field to the key of the text",
        ),
        ({"json": {"text": 3}}, {}, "'text' is no text: 3"),
        ({"json": "{"}, {}, "its json cannot be read (Expecting property name"),
        ({"txt": b"\xff\xfe"}, {}, "its txt cannot be read (invalid start byte); mend it or leave it out"),
        (
            {"npy": np.array([0.5])},
            {"tokenizer": "bytes"},
            "its npy cannot be read (it holds float64 [1], and token ids are integers",
        ),
        ({"npy": np.zeros((1, 1, 1), int)}, {"tokenizer": "bytes"}, "it holds int64 [1, 1, 1], and token ids"),
        (
            {"npy": np.array([-1, 5])},
            {"tokenizer": "bytes"},
            "has the ids -1 to 5, and the tokenizer 0 to 257; name the",
        ),
        (
            {"npy": np.array([1, 5])},
            {},
            "has token ids; name the tokenizer that made the ids, as `pretrained` or `run`",
        ),
        ({"npy": np.array([{}])}, {"tokenizer": "bytes"}, "its npy cannot be read ("),
    ],
)
def test_a_sample_without_a_document(tmp_path, sample, changes, said):
    tar = written(tmp_path / "a.tar", [sample])
    with limited(), pytest.raises(UserError) as error:
        texts_of(tar, **changes)
    assert said in str(error.value)
    assert str(tar) in str(error.value)
    assert "\n" not in str(error.value)


def test_names_that_mean_nothing(tmp_path):
    (tmp_path / "here").mkdir()
    for name, said in {
        "gone.tar": "there is no file gone.tar; name tar files that are there",
        "x-{0..": "cannot be expanded",
        str(tmp_path / "here"): "ends in .tar or .tgz",
        "pipe:cat a.tar": "corpus.train: pipe:cat a.tar would run a command in a shell",
    }.items():
        with pytest.raises(UserError) as error:
            texts_of(name)
        assert said in str(error.value)
    with pytest.raises(ValueError, match=r"extension = 'jpg' ends in none of txt, json, npy"):
        corpus_of("a.tar", extension="jpg")


@pytest.fixture
def server(tmp_path):
    (tmp_path / "there").mkdir()
    for i in range(3):
        written(tmp_path / "there" / f"part-{i}.tar", [{"txt": f"text {i} {k}"} for k in range(20)])
    with serving(tmp_path / "there") as server:
        yield server


def test_addresses_are_fetched_once(server, tmp_path, monkeypatch):
    monkeypatch.setattr("atat_zoo.data.remote._PAUSE", 0.01)
    server.faults["part-1.tar"].extend(["truncate", "drop", "503"])
    changes = {"cache": str(tmp_path / "cache"), "validation_share": 0.1, "test_share": 0.1}
    corpus, here = (corpus_of(f"{at}/part-{{0..2}}.tar", **changes) for at in (server.address, tmp_path / "there"))
    before = corpus.stamp()
    assert not server.asked  # `atat check` asks for nothing
    for split in SPLITS:
        assert list(corpus.documents(split)) == list(here.documents(split))
    assert corpus.fingerprint() == here.fingerprint()
    assert corpus.size() == here.size()
    assert corpus.stamp() == before
    assert sorted(server.asked) == ["part-0.tar", *["part-1.tar"] * 4, "part-2.tar"]
    assert len(list((tmp_path / "cache").glob("*.tar"))) == 3
    assert not list((tmp_path / "cache").glob("*.part"))
    assert "cache" not in corpus.identity()


def test_what_cannot_be_fetched(server, tmp_path):
    with pytest.raises(UserError) as error:
        texts_of(f"{server.address}/gone.tar", cache=str(tmp_path / "cache"))
    said = (
        f"gone.tar cannot be fetched ({server.address}/gone.tar: HTTP 404 Not Found); see whether corpus.train is right"
    )
    assert str(error.value).startswith(said)
    with pytest.raises(UserError, match=r"a\.tar cannot be fetched \(http://127\.0\.0\.1:9/a\.tar: .*refused"):
        texts_of("http://127.0.0.1:9/a.tar", cache=str(tmp_path / "cache"), retries=0)
    assert not list((tmp_path / "cache").glob("*.part"))


def test_its_shards_are_those_of_the_same_text_in_files(tmp_path):
    draw = [f"document {i} " * 9 for i in range(60)]
    written(tmp_path / "a.tar", [{"txt": text} for text in draw])
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in draw))

    def shards(corpus):
        data = {"root": str(tmp_path / "shards"), "length": 16, "lanes": 2}
        folder = build(from_table({"name": "x", "corpus": corpus, "tokenizer": "bytes", "data": data}))
        return {path.name: path.read_bytes() for path in folder.glob("*.tar")}

    found = shards({"use": "webdataset", "train": [str(tmp_path / "a.tar")]})
    assert len(found) > 2
    assert shards({"use": "files", "train": [str(tmp_path / "a.jsonl")]}) == found


def test_what_packed_shards_need():
    assert corpus_of("http://host/a-{0..3}.tar.zst").package == ("zstandard", "atat-zoo[zstd]")
    assert corpus_of("http://host/a-{0..3}.tar.gz").package is None


def test_an_edited_shard_is_another_text(tmp_path):
    tar = written(tmp_path / "a.tar", [{"txt": text} for text in TEXTS])
    corpus = corpus_of(tar)
    one, stamp = corpus.fingerprint(), corpus.stamp()
    written(tar, [{"txt": text} for text in TEXTS[:2]])
    assert corpus.fingerprint() != one
    assert corpus.stamp() != stamp
    assert "tokenizer" not in corpus.identity()
    assert corpus_of(tar, tokenizer="bytes").identity()["tokenizer"] == BytesTokenizer().identity()


def test_a_file_may_take_a_sixteenth_of_the_memory(tmp_path, monkeypatch):
    path = written(tmp_path / "a.tar", [{"txt": "x" * 20}])
    monkeypatch.setattr("atat_zoo.data.corpora.webdataset.memory", lambda: 16 * 20)
    assert texts_of(path) == ["x" * 20]
    monkeypatch.setattr("atat_zoo.data.corpora.webdataset.memory", lambda: 16 * 19)
    with pytest.raises(UserError, match=r"a\.tar has a file that is more than this machine can hold; divide it$"):
        texts_of(path)
