"""WebDatasets made elsewhere: their documents, from anywhere and packed; none is lost in silence, whatever happens."""

import gzip
import io
import json
import tarfile
import warnings

import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from webdataset import TarWriter

from atat_zoo.data import SPLITS
from atat_zoo.data.corpora.archives import members
from atat_zoo.data.corpora.webdataset import WebDatasetCorpus
from atat_zoo.data.tokenizers.components import BytesTokenizer, PretrainedTokenizer
from atat_zoo.system.errors import Note, UserError
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
IDS = {"tokenizer": "bytes"}


@pytest.mark.slow
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


def test_ids_of_another_tokenizer_become_its_text(tmp_path):
    from atat_zoo.testing.component_examples import EXAMPLES

    table = EXAMPLES["tokenizer", "pretrained"](tmp_path)
    model = PretrainedTokenizer(**table).train(lambda: iter(()))
    text = "the people of this nation keep a just peace"
    tar = written(tmp_path / "a.tar", [{"npy": np.array([*model.encode(text), model.eos, *model.encode("all")])}])
    corpus = corpus_of(tar, tokenizer={"use": "pretrained", **table})
    assert list(corpus.documents("train")) == [text, "all"]
    assert corpus.fingerprint()["tokenizer_file"] == PretrainedTokenizer(**table).fingerprint()


STORIES = ["we the people", "of this union\n" * 60, "x" * 512]
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LONG = "a/" * 70  # of a name that has a header of its own, or a pax header


def packed(files, form="ustar"):
    """Return a tar archive of files, tables of texts or of other members by name, without zeros beyond its end."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[form]) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.size = len(content.encode())
                tar.addfile(info, io.BytesIO(content.encode()))
            else:
                info.type, info.linkname = content
                tar.addfile(info)
        end = tar.offset
    return out.getvalue()[: end + 1024]


def three(form="ustar", folder="a/", first=0):
    return packed({f"{folder}{first + i}.txt": text for i, text in enumerate(STORIES)}, form)


ARCHIVES = [three("ustar"), three("gnu", LONG), three("pax", LONG)]


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
    data = packed({f"{i}.txt": text for i, text in enumerate(TEXTS)})
    zipped = gzip.compress(data)
    flipped = bytearray(zipped)
    flipped[-6] ^= 1
    forged = member("a.txt", bytes(4096), size=2**40)
    bomb = gzip.compress(member("a.txt", b"", size=4 << 30)) + gzip.compress(bytes(64 << 20), 1) * 64
    for name, content, said in (
        # At the end of a member, and within a text: the library alone would pass over the first.
        (
            "cut.tar",
            data[:1024],
            "cannot be read as a tar file (the end of the archive is missing; it may be truncated); download",
        ),
        ("cut.tar", data[: 1536 + 5], "unexpected end of data"),
        ("cut.tar.gz", zipped[:-20], "(Compressed file ended before the end-of-stream marker"),
        ("flipped.tar.gz", flipped, "CRC check failed"),
        ("cut.tar.zst", zstandard.compress(data)[:-9], "cannot be read as a tar file"),
        ("no.tar", b"no tar" * 1000, "(its header at byte 0 is damaged: invalid header)"),
        ("empty.tar", b"", "cannot be read as a tar file"),
        ("no.tar.gz", data, "Not a gzipped file"),
        ("nothing.tar", bytes(10240), "contains no samples"),
        ("forged.tar", forged, "unexpected end of data"),
        ("twice.tar", data[:1024] + data[:1024] + bytes(1024), "duplicate file name in tar file"),
        ("bomb.tar.gz", bomb, "larger than 1/16 of the memory"),
    ):
        assert said in damaged(tmp_path, name, content), name


@pytest.mark.parametrize(
    ("sample", "changes", "said"),
    [
        ({"txt": "a", "json": {"text": "b"}}, {}, "has several of txt, json, npy (it has json, txt); set corpus.ext"),
        ({"jpg": "a"}, {}, "has none of txt, json, npy (it has jpg); set corpus.extension to the one with the text"),
        ({"json": {}}, {"extension": "txt"}, "has no 'txt' (it has json); set it to one of these"),
        ({"json": {"texts": "a"}}, {}, "has no 'text'; did you mean 'texts'?; set corpus.text_field to the key of"),
        ({"json": "{"}, {}, "its json cannot be read (Expecting property name"),
        ({"txt": b"\xff\xfe"}, {}, "its txt cannot be read (invalid start byte); repair or remove it"),
        ({"npy": np.array([0.5])}, IDS, "its npy cannot be read (it holds float64 [1], not an integer vector"),
        ({"npy": np.zeros((1, 1, 1), int)}, IDS, "it holds int64 [1, 1, 1], not an integer"),
        ({"npy": np.array([-1, 5])}, IDS, "has ids from -1 to 5, but the tokenizer has 0 to 257; name the"),
        (
            {"npy": np.array([0, 258])},
            IDS,
            "has ids from 0 to 258, but the tokenizer has 0 to 257; name the tokenizer that produced",
        ),
        (
            {"npy": np.array([1, 5])},
            {},
            "contains token ids; set it to the `pretrained` or `run` tokenizer that produced the ids",
        ),
        ({"npy": np.array([1, 5])}, {"tokenizer": "bpe"}, "'bpe' is trained on the text"),
        ({"npy": np.array([{}])}, IDS, "its npy cannot be read ("),
    ],
)
def test_a_sample_without_a_document(tmp_path, sample, changes, said):
    tar = written(tmp_path / "a.tar", [sample])
    with limited(), pytest.raises(UserError) as error:
        texts_of(tar, **changes)
    assert said in str(error.value)
    assert str(tar) in str(error.value) or "bpe" in said
    assert "\n" not in str(error.value)


def test_names_that_mean_nothing(tmp_path):
    (tmp_path / "here").mkdir()
    for name, said in {
        "gone.tar": "file not found: gone.tar; paths are relative",
        "x-{0..": "corpus.train: x-{0.. cannot be expanded",
        str(tmp_path / "here"): "ends in .tar or .tgz",
        "pipe:cat a.tar": "corpus.train: pipe:cat a.tar would run a shell command",
    }.items():
        with pytest.raises(UserError) as error:
            texts_of(name)
        assert said in str(error.value)
    with pytest.raises(ValueError, match=r"extension = 'jpg' .* ends in txt, json, npy"):
        corpus_of("a.tar", extension="jpg")
    assert corpus_of("http://host/a-{0..3}.tar.zst").package == ("zstandard", "atat-zoo[zstd]")
    assert corpus_of("http://host/a-{0..3}.tar.gz").package is None


@pytest.fixture
def server(tmp_path):
    (tmp_path / "there").mkdir()
    for i in range(3):
        written(tmp_path / "there" / f"part-{i}.tar", [{"txt": f"text {i} {k}"} for k in range(20)])
    with serving(tmp_path / "there") as server:
        yield server


def test_addresses_are_fetched_once(server, tmp_path, monkeypatch):
    monkeypatch.setattr("atat_zoo.data.downloads._PAUSE", 0.01)
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
    said = f"gone.tar cannot be downloaded ({server.address}/gone.tar: HTTP 404 Not Found); check that corpus.train is"
    assert str(error.value).startswith(said)
    with pytest.raises(UserError, match=r"a\.tar cannot be downloaded \(http://127\.0\.0\.1:9/a\.tar: .*refused"):
        texts_of("http://127.0.0.1:9/a.tar", cache=str(tmp_path / "cache"), retries=0)
    assert not list((tmp_path / "cache").glob("*.part"))


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
    with pytest.raises(UserError, match=r"a\.tar contains a file larger than 1/16 of the memory; split the file$"):
        texts_of(path)


# Damaged archives


def read(folder, data):
    """Return the documents of an archive, or None where it is refused; what is left out counts as refused."""
    path = folder / "x.tar"
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Note)
        try:
            return texts_of(path)
        except (UserError, Note) as error:
            said = str(error)
    assert said.startswith("corpus")
    assert str(path) in said
    assert "\n" not in said
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tars")


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data(), st.sampled_from(ARCHIVES))
def test_a_flipped_bit_loses_no_document(folder, data, archive):
    inside = data.draw(st.sampled_from([range(len(archive)), *(range(at, at + 512) for at in headers(archive))]))
    at, bit = data.draw(st.sampled_from(inside)), data.draw(st.integers(0, 7))
    flipped = bytearray(archive)
    flipped[at] ^= 1 << bit
    found = read(folder, flipped)
    if found is not None:
        assert len(found) == len(STORIES)
        assert sum(one != other for one, other in zip(found, STORIES, strict=True)) <= 1
        if at in {byte for start in headers(archive) for byte in range(start, start + 512)}:
            assert found == STORIES


def headers(archive):
    """Return where the headers of an archive lie; those of long names are of the members after them."""
    return [at for at in range(0, len(archive), 512) if archive[at + 257 : at + 262] == b"ustar"]


@settings(max_examples=60)
@given(st.sampled_from(ARCHIVES), st.floats(0, 1))
@example(ARCHIVES[0], 1.0)
def test_a_cut_loses_no_document(folder, archive, share):
    at = round(share * len(archive))
    found = read(folder, archive[:at])
    assert found in (None, STORIES)
    assert (found is None) == (at < len(archive) and at != len(archive) - 512)


def test_a_document_of_zeros_is_no_end(folder):
    """The last 512 bytes of a cut archive may be zeros, too."""
    archive = packed({"0.txt": "a", "1.txt": "b" + "\0" * 1535, "2.txt": "c"})
    assert read(folder, archive[: 1024 + 512 + 1536]) is None


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["ustar", "gnu", "pax"]), min_size=2, max_size=4), st.integers(0, 30))
def test_joined_archives_are_read_to_their_end(folder, forms, zeros):
    several = [three(form, LONG, 3 * i) for i, form in enumerate(forms)]
    joined = bytes(512 * zeros).join(several) + bytes(512 * zeros)
    assert read(folder, joined) == STORIES * len(forms)
    flipped = bytearray(joined)
    flipped[len(several[0]) + 512 * zeros] ^= 1  # in the first header of the second
    assert read(folder, flipped) is None
    assert read(folder, joined[: len(joined) - 512 * zeros - 1024]) is None


@pytest.mark.parametrize("rest", [b"x", b"x" * 512, bytes(100), bytes(511) + b"\1", bytes(5120) + b"notes"])
def test_nothing_but_archives_may_follow_the_end(folder, rest):
    assert read(folder, ARCHIVES[0] + rest) is None


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"V"])
def test_a_document_that_is_a_link_is_not_passed_over(folder, kind):
    files = {"0.txt": "a", "1.txt": (kind, "0.txt"), "2": (tarfile.DIRTYPE, "")}
    assert read(folder, packed(files)) is None
    del files["1.txt"]
    assert read(folder, packed(files)) == ["a"]


def test_a_file_without_an_extension_is_told(tmp_path):
    files = {"README": "x", "__index__/0.txt": "y", "0.txt": "a", "x/LICENCE": "z"}
    (tmp_path / "x.tar").write_bytes(packed(files))
    with pytest.warns(Note, match=r"x\.tar contains 2 files without a name or an extension, such as README, which are"):
        assert texts_of(tmp_path / "x.tar") == ["a"]


@pytest.mark.parametrize(("kind", "size"), [*((bytes([kind]), 1 << 40) for kind in b"LKxgX"), (b"0", -512)])
def test_a_size_that_is_none(kind, size):
    info = tarfile.TarInfo("0.txt")
    info.type, info.size = kind, size
    forged = io.BufferedReader(io.BytesIO(info.tobuf(tarfile.GNU_FORMAT)))
    with pytest.raises(tarfile.ReadError, match=rf"at byte 0 is damaged: it declares {size:,} bytes"):
        next(members(forged))


def test_a_sparse_file_takes_no_memory(folder):
    for kind in (tarfile.GNUTYPE_SPARSE, tarfile.REGTYPE):
        info = tarfile.TarInfo("0.txt")
        info.type, info.size = kind, 5
        info.pax_headers = {"GNU.sparse.map": "0,5", "GNU.sparse.size": str(1 << 50)} if kind == b"0" else {}
        forged = info.tobuf(tarfile.PAX_FORMAT) + b"abcde".ljust(512, b"\0") + bytes(1024)
        assert read(folder, forged) is None
        why = "^0.txt is a sparse file" if kind == b"0" else "at byte 0 is damaged: it declares a sparse file"
        with pytest.raises(tarfile.ReadError, match=why):
            [opened() for _, opened in members(io.BufferedReader(io.BytesIO(forged)))]


def test_headers_without_an_end_are_refused():
    info = tarfile.TarInfo("0.txt")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 0
    for forged in (info.tobuf(tarfile.GNU_FORMAT) * 5000, info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)):
        with pytest.raises(tarfile.ReadError, match="at byte 0 is damaged"):
            next(members(io.BufferedReader(io.BytesIO(forged))))
