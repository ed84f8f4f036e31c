"""The estimate before a build, held to what the build then takes; and `atat data build` with it."""

import gzip
import json
import shutil
from hashlib import sha256

import pytest
from in_memory import Memory, experiment_of, texts

from atat_zoo.data import shard_manifest
from atat_zoo.data.build import BuildEstimate, build, estimate
from atat_zoo.data.corpora.text_files import FilesCorpus
from atat_zoo.data.tokenizers.components import BPETokenizer
from atat_zoo.system.errors import UserError

TEXTS = tuple(sha256(text.encode()).hexdigest() * 2 for text in texts(3000))  # a gzip file reads ahead


def written(folder, form):
    """Return a corpus of files of a form, one of them held out."""
    for name, part in (("a", TEXTS[:2000]), ("b", TEXTS[2000:])):
        lines = [json.dumps({"text": text, "id": "x" * 90}) if "jsonl" in form else text for text in part]
        if form == "csv":
            lines = ["text,id", *(f'"{text}",{"x" * 90}' for text in part)]
        content = "".join(f"{line}\n" for line in lines).encode()
        (folder / f"{name}.{form}").write_bytes(gzip.compress(content) if form.endswith("gz") else content)
        if form in ("parquet", "arrow", "stream.arrow"):
            write_table(folder / f"{name}.{form}", {"id": ["x" * 90] * len(part), "text": part, "n": range(len(part))})
    names = {"train": (str(folder / f"a.{form}"),), "validation": (str(folder / f"b.{form}"),)}
    return FilesCorpus(**names, document="line", test_share=0.0)


def write_table(path, columns):
    """Write a table of columns, in parts."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({name: list(values) for name, values in columns.items()})
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=1500)
        return
    kind = arrow.ipc.new_stream if "stream" in path.name else arrow.ipc.new_file
    with kind(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=100)


TABLES = ["parquet", "arrow", "stream.arrow"]


@pytest.mark.parametrize("form", ["txt", "txt.gz", "jsonl", "jsonl.gz", "csv", *TABLES])
def test_files_know_how_much_text_is_in_them(tmp_path, form, monkeypatch):
    # Nearly all of the larger file: gzip reads ahead, and some versions of Python far.
    monkeypatch.setattr("atat_zoo.data.corpora.documents._BEGINNING", 240_000)
    size = written(tmp_path, form).size()
    assert size == pytest.approx(sum(map(len, TEXTS)), rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        {},
        {"special_tokens": "both", "packing": "document", "length": 200},
        {"special_tokens": "both", "dtype": "uint32", "length": 64, "sequences": 2000},
    ],
)
def test_the_shards_are_as_large_as_estimated(tmp_path, data):
    tokenizer = BPETokenizer(vocabulary_size=300)
    settings = {"sequences_per_member": 512, "sequences_per_shard": 4096} | data
    made = experiment_of(tmp_path / "x" / "data", corpus=written(tmp_path, "txt"), tokenizer=tokenizer, **settings)
    likely = estimate(made)
    assert isinstance(likely, BuildEstimate)
    assert not (tmp_path / "x").exists()
    found = shard_manifest.load(build(made))
    took = sum(shard.bytes for split in found.splits.values() for shard in split.shards)
    if "sequences" in data:  # of the training text
        took = sum(shard.bytes for shard in found.splits["train"].shards)
    assert likely.shards == pytest.approx(took, rel=0.25)
    if not data:
        assert likely.text == pytest.approx(sum(split.bytes for split in found.splits.values()), rel=0.02)
    assert estimate(made) is None  # they are there


def test_documents_of_which_the_beginning_is_read(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text(str(i) * (2 << 20))
    corpus = FilesCorpus(train=(str(tmp_path / "*.txt"),), validation_share=0.0, test_share=0.0)
    likely = estimate(experiment_of(tmp_path / "data", corpus=corpus, packing="document"))
    assert (likely.text, likely.shards) == (6 << 20, 3 * 16 * 2)


def test_a_text_of_unknown_size(tmp_path):
    assert estimate(experiment_of(tmp_path, corpus=Memory(train=TEXTS))) is None


def test_a_disk_that_is_too_small(tmp_path, monkeypatch):
    made = experiment_of(tmp_path / "data", corpus=written(tmp_path, "txt"))
    shards = estimate(made).shards
    usage, asked = shutil.disk_usage(tmp_path), []
    for free, share in ((shards, 1.0), (shards - 1, 0.9)):
        monkeypatch.setattr(
            shutil, "disk_usage", lambda path, free=free: asked.append(path) or usage._replace(free=free)
        )
        assert estimate(made, share=share).free == free
    with pytest.raises(UserError, match=r"^data\.root: the shards need about .* GB, but .*/data has only "):
        estimate(made)
    assert set(asked) == {tmp_path}
    (tmp_path / "data").mkdir()  # which may be a disk of its own
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 40 if path.name == "data" else 0))
    assert estimate(made).free == 1 << 40


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch, atat):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    corpus = "{use = 'files', train = ['text.txt'], document = 'line'}"
    words = ["data", "build", "mdlm", f"corpus={corpus}", "tokenizer.use=bytes", "data.length=32", "--processes", "1"]
    code, out, _ = atat(*words, "--dry-run")
    assert code == 0
    assert "about 0.4 MB of text: 0.8 MB of shards in " in out
    assert json.loads(atat(*words, "--dry-run", "--json")[1])["folder"] is None
    assert not list(tmp_path.glob("*/*.slices"))
    code, _, err = atat(*words, "--slice", "1/2", "--join")
    assert (code, err.startswith("error: --slice and --join cannot be combined")) == (2, True)
    assert "the slice 2/2 is in " in atat(*words, "--slice", "2/2")[1]
    code, _, err = atat(*words, "--join")
    assert (code, "slice 1 of 2 is missing or unfinished" in err) == (2, True)
    atat(*words, "--slice", "1/2")
    assert "the shards are in " in atat(*words, "--join")[1]
    again = json.loads(atat(*words, "data.root=again", "--json")[1])
    assert again["throughput"]["bytes"] == sum(len(text) for text in TEXTS)
    assert "MB/s per busy core" in atat(*words, "data.root=third")[1]
