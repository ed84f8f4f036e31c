"""`atat data get`: what a recipe names is fetched whole or not at all, and is what the corpus reads."""

import errno
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import re
import shutil
import sys
import tarfile
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atat_zoo.cli import main
from atat_zoo.data.corpora import text_source
from atat_zoo.data.corpora.text_files import FilesCorpus
from atat_zoo.data.downloads import file_name
from atat_zoo.experiment import load, read_toml, recipe, recipes, shipped
from atat_zoo.registry import Zoo
from atat_zoo.system.errors import UserError
from tests.faulty_server import serving
from tests.limited import full_disk

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
HEAD = (
    '[corpus]\nuse = "files"\ntrain = ["text/*.txt"]\n[source]\nlicence = "CC0 1.0"\ncite = "We, 2026"\nsize = "1 kB"\n'
)
TEXT = b"we the people\n" * 4000


@pytest.fixture
def server(tmp_path):
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "a.txt").write_bytes(TEXT)
    (tmp_path / "published" / "b.txt").write_bytes(TEXT[::-1])
    with serving(tmp_path / "published") as server:
        yield server


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """The working directory."""
    monkeypatch.setattr("atat_zoo.data.downloads._PAUSE", 0.001)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def write(server, *files, source="", name="mine"):
    """Write a recipe whose files are tables without their address, by the name of what is served."""
    made = [f'[[source.files]]\nurl = "{server.address}/{url}"\n{rest}\n' for url, rest in files]
    Path(f"{name}.toml").write_text(f"{HEAD}{source}\n{''.join(made)}")
    return f"{name}.toml"


def both(server):
    return write(server, ("{a,b}.txt", 'to = "text/{a,b}.txt"'))


def began(printed):
    """Begin `atat data get mine.toml` in another process, which prints to a file."""

    def run():
        sys.argv = ["atat", "data", "get", "mine.toml"]
        with printed.open("w", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
            main()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def waited(process):
    """Wait a moment, in which the process must not end."""
    process.join(0.01)
    assert process.is_alive()


def here():
    """Return the files that there are, without the lock and the mark of what is unfinished."""
    return {
        str(path): path.read_bytes()
        for path in Path().rglob("*")
        if path.is_file() and path.suffix not in (".toml", ".lock") and not path.match(".*.source.part")
    }


def test_files_are_fetched_once_and_recorded(server, atat):
    code, out, err = atat("data", "get", both(server))
    assert (code, err) == (0, "")
    assert "mine is in text: 2 files, 0.1 MB, downloaded on " in out
    assert out.endswith("licence: CC0 1.0\ncite: We, 2026\n")
    found = here()
    record = json.loads(found.pop("text/mine.source.json"))
    assert found == {"text/a.txt": TEXT, "text/b.txt": TEXT[::-1]}
    expected = {"bytes": len(TEXT), "sha256": hashlib.sha256(TEXT).hexdigest()}
    assert record["files"]["text/a.txt"] == expected
    assert record["from"][0] == {"url": f"{server.address}/a.txt", **expected}
    assert json.loads(atat("data", "get", "mine.toml", "--json")[1]) == record
    assert server.asked == ["a.txt", "b.txt"]
    (server.folder / "c.txt").write_bytes(b"more")
    write(server, ("{a,b,c}.txt", 'to = "text/{a,b,c}.txt"'))
    assert "mine is in text: 3 files" in atat("data", "get", "mine.toml")[1]
    assert server.asked == ["a.txt", "b.txt", "c.txt"]
    assert load("mine.toml").parts["corpus"].files()["train"] == [Path(f"text/{each}.txt") for each in "abc"]


@pytest.mark.parametrize(
    ("fault", "rest", "reason"),
    [
        ("truncate", "", "its last 28000 bytes are missing"),
        ("404", "", "HTTP 404 Not Found"),
        ("", "bytes = 56_001", "it has 56,000 bytes, but should have 56,001"),
    ],
)
def test_what_cannot_be_fetched_leaves_nothing_and_is_named_with_its_place(server, refused, fault, rest, reason):
    server.faults["a.txt"].extend([fault] * 9)
    err = refused(write(server, ("a.txt", f'to = "text/a.txt"\n{rest}')))
    assert f"error: text/a.txt cannot be downloaded ({server.address}/a.txt: {reason})" in err
    assert err.endswith("save the file at this path yourself and run `atat data get mine.toml` again\n")
    assert here() == {}


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (f"sha256 = '{'0' * 64}'", f"its SHA-256 is {hashlib.sha256(TEXT).hexdigest()}, but should be {'0' * 64}"),
        ("bytes = 55_999", "it is larger than expected"),
    ],
)
def test_another_file_than_the_recipe_names_is_fetched_twice_at_most(server, refused, fetched, rest, reason):
    err = refused(write(server, ("a.txt", f'to = "text/a.txt"\n{rest}')))
    assert ("network" in err, reason in err, server.asked) == (False, True, ["a.txt"] * 2)
    assert "; if the file at the URL has changed, correct its bytes and sha256 in source.files, or save the file" in err
    server.faults["a.txt"].append("corrupt")
    digest = hashlib.sha256(TEXT).hexdigest().upper()
    assert fetched(write(server, ("a.txt", f'to = "text/a.txt"\nsha256 = "{digest}"')))
    assert server.asked == ["a.txt"] * 4


def test_what_one_puts_there_is_taken_if_it_is_the_file(server, refused, fetched):
    made = write(server, ("a.txt", f'to = "text/a.txt"\nsha256 = "{hashlib.sha256(TEXT).hexdigest()}"'))
    Path("text").mkdir()
    Path("text/a.txt").write_bytes(TEXT[1:])
    assert "text/a.txt is not the file at" in refused(made)
    Path("text/a.txt").write_bytes(TEXT)
    assert fetched(made)
    assert server.asked == []


def test_after_an_interruption_what_is_missing_is_fetched(server, atat, tmp_path):
    server.faults["b.txt"].append("hang")
    both(server)
    process = began(tmp_path / "printed")
    while not (begun := [*Path("text").glob(".b.txt.*.part")]):
        waited(process)
    process.kill()
    process.join()
    assert here().keys() == {"text/a.txt", str(begun[0])}, "without a record they are not complete"
    assert atat("data", "get", "mine.toml")[0] == 0
    assert server.asked == ["a.txt", "b.txt", "b.txt"]
    found = here()
    assert found.keys() == {"text/a.txt", "text/b.txt", "text/mine.source.json"}
    assert found["text/b.txt"] == TEXT[::-1]


def test_what_is_not_complete_is_not_read(server, atat):
    archive(server.folder / "all.tar.gz", {"0": os.urandom(50_000), "1": os.urandom(50_000)})
    whole = (server.folder / "all.tar.gz").read_bytes()
    (server.folder / "all.tar.gz").write_bytes(whole[:-20_000])
    members = "[source.files.members]\n'0' = 'text/0.txt'\n'1' = 'text/packed/'"
    write(server, ("{a,b}.txt", 'to = "text/{a,b}.txt"'), ("all.tar.gz", members))
    server.faults["b.txt"].append("404")
    refused = (
        r"^corpus.train: text/a.txt belongs to a corpus whose download is incomplete; run `atat data get mine.toml`"
    )
    for missing in ("b.txt cannot be downloaded", "cannot be unpacked"):
        assert missing in atat("data", "get", "mine.toml")[2]
        for named in ("text/*.txt", "text", "text/a.txt"):
            with pytest.raises(UserError, match=refused):
                FilesCorpus(train=(named,)).files()
    Path(kept(server, "all.tar.gz")).write_bytes(whole)
    Path("text/packed").mkdir(exist_ok=True)
    for name in ("packed/1", "other.txt"):
        Path("text", name).write_bytes(b"")
    with pytest.raises(UserError, match=r"text/packed/1 belongs to a corpus whose download is incomplete"):
        FilesCorpus(train=("text/packed/*",)).files()
    assert FilesCorpus(train=("text/other.txt",)).files(), "which is none of its files"
    assert atat("data", "get", "mine.toml")[0] == 0
    assert len(FilesCorpus(train=("text/*.txt", "text/packed/*")).files()["train"]) == 5
    Path("text/.mine.source.part").write_text("{}")
    with pytest.raises(UserError, match=r"text/.mine.source.part is damaged; delete it"):
        FilesCorpus(train=("text",)).files()


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ("a.txt", "b.txt", "url of text/a.txt was '{0}/a.txt' on "),
        ('to = "text/a.txt"', f'to = "text/a.txt"\nsha256 = "{"0" * 64}"', "sha256 of text/a.txt was '"),
        ('column = "x"', "", "column of text/rows.jsonl was 'x' on "),
        ("rows.zip", "{rows,more}.zip", "url of text/rows.jsonl was '{0}/rows.zip' on "),
        ("'*' =", "'r*' =", "member of text/rows.jsonl was '*' on "),
    ],
)
def test_a_recipe_that_names_another_source_than_before_is_refused(server, refused, fetched, was, now, told):
    archive(server.folder / "rows.zip", {"rows": b'{"x": "1"}\n'})
    files = ("a.txt", 'to = "text/a.txt"'), ("rows.zip", "[source.files.members]\n'*' = 'text/rows.jsonl'")
    made = Path(write(server, *files, source='column = "x"'))
    before = fetched()
    text = made.read_text()
    made.write_text(text.replace(was, now, 1))
    err = refused()
    assert err.startswith(f"error: source: {told.format(server.address)}")
    assert "text/mine.source.json, and run `atat data get mine.toml` again\n" in err
    made.write_text(text)
    assert fetched() == before


def test_a_recipe_that_is_changed_before_all_is_fetched(server, refused):
    server.faults["b.txt"].append("404")
    refused(both(server))
    (server.folder / "c.txt").write_bytes(b"other")
    write(server, ("{c,b}.txt", 'to = "text/{a,b}.txt"'))
    assert "; delete text/a.txt and text/.mine.source.part, and run" in refused()


def test_another_text_than_before_is_refused(server, refused, fetched):
    fetched(both(server))
    Path("text/a.txt").write_bytes(TEXT[1:])
    was, now = hashlib.sha256(TEXT).hexdigest(), hashlib.sha256(TEXT[1:]).hexdigest()
    err = refused()
    assert err.startswith("error: text/a.txt has changed since its download on ")
    assert f"its SHA-256 is {now}, but was {was}; delete it to download it again" in err
    Path("text/a.txt").unlink()
    (server.folder / "a.txt").write_bytes(TEXT[2:])  # the owner has another one by now
    assert "if the file at the URL has changed since" in refused()
    assert not Path("text/a.txt").exists()
    Path("text/mine.source.json").unlink()
    assert fetched()["text/a.txt"] == TEXT[2:]
    Path("text/mine.source.json").write_text('{"files": {"a": 1}}')
    assert "text/mine.source.json is damaged; delete it" in refused()


def test_two_processes_at_once_fetch_once(server, tmp_path):
    both(server)
    server.faults["a.txt"].append("hang")
    first = began(tmp_path / "first")
    while "a.txt" not in server.asked:
        waited(first)
    second = began(tmp_path / "second")
    said = f"mine is being downloaded by process {first.pid} on "
    while not ((tmp_path / "second").exists() and said in (tmp_path / "second").read_text()):
        waited(second)
    server.ended.set()
    for process in (first, second):
        process.join()
        assert process.exitcode == 0
    assert "error" not in (tmp_path / "first").read_text() + (tmp_path / "second").read_text()
    assert server.asked == ["a.txt", "a.txt", "b.txt"], "the first was answered by nothing, and tried again"


# Archives


def kept(server, name):
    """Return where an archive is until it is unpacked."""
    return f"text/{file_name(f'{server.address}/{name}')}"


def archive(path, members):
    """Write a zip or a tar."""
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name, content in members.items():
                packed.writestr(name, content)
    else:
        with tarfile.open(path, f"w:{path.suffix.removeprefix('.').replace('tar', '')}") as packed:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                packed.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("ending", ["zip", "tar", "tar.xz"])
def test_the_members_of_an_archive(server, fetched, ending):
    files = {"r13/train/0": TEXT, "r13/train/1": b"1", "r13/test": b"2", "r13/README": b""}
    archive(server.folder / f"all.{ending}", files)
    members = '[source.files.members]\n"*/train/*" = "text/train/"\n"r13/test" = "text/held-out.txt"'
    found = fetched(write(server, (f"all.{ending}", members)))
    assert found == {"text/train/0": TEXT, "text/train/1": b"1", "text/held-out.txt": b"2"}
    record = json.loads(Path("text/mine.source.json").read_text())
    assert record["files"].keys() == found.keys()
    assert record["from"][0]["sha256"] == hashlib.sha256((server.folder / f"all.{ending}").read_bytes()).hexdigest()


def test_archives_of_one_name(server, fetched):
    for split in ("train", "test"):
        archive(server.folder / split / "data.zip", {"a.txt": split.encode(), "b.txt": b"b"})
    members = [
        (f"{split}/data.zip", f"[source.files.members]\n'{name}.txt' = 'text/{split}-{name}.txt'")
        for split, name in (("train", "a"), ("test", "a"), ("test", "b"))
    ]
    found = fetched(write(server, *members))
    assert found == {"text/train-a.txt": b"train", "text/test-a.txt": b"test", "text/test-b.txt": b"b"}
    assert server.asked == ["train/data.zip", "test/data.zip"], "of which two entries take members"


def test_of_json_lines_the_text_alone(server, refused, fetched):
    papers = [{"article_text": ["One .", "Two \ud800."], "id": 1}, {"article_text": []}]
    archive(server.folder / "all.zip", {"all/train.txt": "\n".join(map(json.dumps, papers)) + "\n"})
    files = "all.zip", "[source.files.members]\n'*' = 'text/train.jsonl'"
    fetched(write(server, files, source='column = "article_text"'))
    corpus = FilesCorpus(train=("text/train.jsonl",), validation_share=0, test_share=0)
    assert list(corpus.documents("train")) == ["One .\nTwo \ufffd."]
    archive(server.folder / "all.zip", {"all/train.txt": '{"article_text": [1]}'})
    shutil.rmtree("text")
    place = f"source.column: {kept(server, 'all.zip')}, all/train.txt, line 1"
    assert f"{place} has no text in 'article_text'; name a different column" in refused()


@pytest.mark.parametrize(
    ("ending", "damage"), [("zip", "cut"), ("zip", "flipped"), ("tar.gz", "flipped"), ("zip", "none")]
)
def test_a_damaged_archive(server, refused, ending, damage):
    path = server.folder / f"all.{ending}"
    archive(path, {"all/a.txt": os.urandom(50_000), "all/b.txt": b"b"})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= damage == "flipped"
    path.write_bytes(content[: {"cut": len(content) // 2, "none": 0}.get(damage)])
    err = refused(write(server, (f"all.{ending}", "[source.files.members]\n'*' = 'text/'")))
    assert err.startswith(f"error: {kept(server, f'all.{ending}')} cannot be unpacked (")
    assert "delete it and download it again" in err
    assert here().keys() == {kept(server, f"all.{ending}")}, "what was unpacked before may be damaged, too"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7), st.sampled_from(["zip", "tar", "tar.gz"]))
def test_a_flipped_bit_loses_no_member(work, share, bit, ending):
    wanted = {"a/0.txt": b"x" * 600, "a/1.txt": b"y", "other": b"", "b.txt": b"z" * 9}
    path = work / f"all.{ending}"
    archive(path, wanted)
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 1 << bit
    path.write_bytes(data)
    try:
        with text_source._damage(path):
            found = {name: opened().read() for name, opened in text_source._members(path)}
    except UserError:
        return
    differs = [name for name in wanted if found[name] != wanted[name]]
    assert found.keys() == wanted.keys()
    assert len(differs) <= (ending == "tar"), "but in the bytes of one member, which nothing guards"


# Data sets


def test_a_data_set_is_written_as_the_corpus_reads_it(atat):
    pytest.importorskip("datasets", reason="the extra atat-zoo[huggingface] is not installed")
    Path("set").mkdir()
    talks = [[{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "Yes."}] for i in range(10)]
    Path("set/train.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    parts = 'hub = "set"\ncolumn = "messages.content"\n[source.splits]\n"train[:-2]" = "text/0.jsonl"\n'
    parts += '"train[-2:]" = "text/last.txt"'
    Path("mine.toml").write_text(HEAD + parts)
    code, out, err = atat("data", "get", "mine.toml")
    assert (code, err, "downloading train[:-2] of set to text/0.jsonl" in out) == (0, "", True)
    lines = Path("text/0.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines)) == [{"text": f"{i}?\nYes."} for i in range(8)]
    assert Path("text/last.txt").read_text() == "8?\nYes.\n9?\nYes.\n"
    Path("text/last.txt").unlink()
    assert "downloading train[:-2]" not in atat("data", "get", "mine.toml")[1]
    Path("mine.toml").write_text(HEAD + parts.replace('"train[-2:]"', "later"))
    Path("text/last.txt").unlink()
    Path("text/mine.source.json").unlink()
    code, _, err = atat("data", "get", "mine.toml")
    assert (code, "corpus.path: split 'later' of set cannot be read: " in err) == (2, True)
    assert "or save train[:-2], later of set in text/0.jsonl, text/last.txt yourself, as JSON lines" in err


def test_a_data_set_of_the_hub_has_its_commit_recorded(atat, monkeypatch):
    """Also of splits that were here, and where the network was lost between two."""
    huggingface = pytest.importorskip("atat_zoo.data.corpora.huggingface")
    asked, commits = [], iter("ab")

    def rows(corpus, split):
        asked.append((corpus.path, corpus.config_name, corpus.revision, split))
        if len(asked) == 2:
            raise UserError("the network is gone")
        yield from ({"text": text} for text in (" = A = \n", "", " The men . \n"))

    monkeypatch.setattr(huggingface.HuggingFaceCorpus, "rows", rows)
    monkeypatch.setattr("atat_zoo.data.corpora.text_source._commit", lambda *_: next(commits) * 40)
    folder = Path("corpora/wikitext-2")
    folder.mkdir(parents=True)
    (folder / "wiki.train.tokens").write_text("ours\n")
    assert "the network is gone" in atat("data", "get", "wikitext2")[2]
    assert atat("data", "get", "wikitext2")[0] == 0
    assert {each[:3] for each in asked} == {("Salesforce/wikitext", "wikitext-2-v1", "a" * 40)}
    assert asked[1] == asked[2] != asked[0], "it goes on with the next split"
    assert (folder / "wiki.train.tokens").read_text() == "ours\n"
    assert (folder / "wiki.valid.tokens").read_text() == " = A = \n\n The men . \n"
    address = "https://huggingface.co/datasets/Salesforce/wikitext"
    assert json.loads((folder / "wikitext2.source.json").read_text())["from"] == [{"url": address, "commit": "a" * 40}]
    (folder / "wikitext2.source.json").unlink()
    code, _, err = atat("data", "get", "wikitext2")
    assert (code, err, next(commits)) == (0, "", "b"), "nobody asked for a commit"


def test_a_data_set_that_cannot_be_reached(atat, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def fail(*_, **__):
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(hub.HfApi, "dataset_info", fail)
    code, _, err = atat("data", "get", "ag_news")
    assert (code, here()) == (2, {})
    assert err.startswith("error: the dataset fancyzhx/ag_news on the hub cannot be reached (no network); ")
    assert "or save train, test of https://huggingface.co/datasets/fancyzhx/ag_news in corpora/ag_news/train.j" in err
    assert err.endswith("corpora/ag_news/test.jsonl yourself, as JSON lines with the key text\n")


# Recipes


@pytest.mark.parametrize("name", recipes())
def test_what_is_written_is_what_the_recipe_reads(name):
    made = text_source.read(name)
    with pytest.raises(UserError, match=rf"file not found: .*run `atat data get {name}`"):
        recipe(name).stamp()
    written = [*made.source.splits.values()]
    for file in made.files:
        written += [*file.members.values()] if file.members else _expand(file.to)
    for path in map(Path, [f"{path}0" if path.endswith("/") else path for path in written]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(b"{}") if path.suffix == ".gz" else b"{}")
    corpus = recipe(name)
    read = {Path(stamp.path) for stamp in _flat(corpus.stamp())}
    assert read == {Path(path).absolute() for path in here()}, "all that is written, and nothing else"


def _expand(text):
    from webdataset.shardlists import expand_urls

    return list(expand_urls(text))


def _flat(stamps):
    return [stamp for split in stamps.values() for stamp in split] if isinstance(stamps, dict) else [stamps]


def test_the_list_says_size_licence_and_citation(atat):
    code, out, err = atat("data", "get")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["name", "size", "licence", "cite"]
    assert [line.split()[0] for line in out.splitlines()[1:]] == [*recipes(), *recipes("tokenizers")]
    listed = {each["name"]: each for each in json.loads(atat("data", "get", "--json")[1])}
    assert listed["lambada"]["cite"] == text_source.read("lambada").source.cite


@pytest.mark.parametrize("name", recipes("tokenizers"))
def test_a_published_tokenizer_is_fetched_to_where_experiments_read_it(name, server, atat):
    made, path = text_source.read(name), shipped(f"tokenizers/{name}")
    (file,) = made.files
    assert re.search("/resolve/[0-9a-f]{40}/tokenizer.json$", file.url), "of a commit"
    assert None not in (file.bytes, file.sha256)
    spec = read_toml(path)["tokenizer"]
    assert text_source.published_size(spec["path"]) == made.source.vocabulary_size
    # Another one in its place, as there is no network.
    words = dict.fromkeys([spec["bos"], spec["eos"], "[UNK]", "we", "the", "people"])
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    library.save(str(served := server.folder / "tokenizer.json"))
    content = served.read_bytes()
    text = path.read_text().replace(file.url, f"{server.address}/tokenizer.json")
    text = text.replace(str(file.bytes), str(len(content))).replace(file.sha256, hashlib.sha256(content).hexdigest())
    Path("mine.toml").write_text(text)
    tokenizer = Zoo.load().spec("tokenizer", spec)
    with pytest.raises(UserError, match=f"run `atat data get {name}`"):
        tokenizer.train(lambda: iter(()))
    code, out, err = atat("data", "get", "mine.toml")
    assert (code, err) == (0, "")
    assert f"licence: {made.source.licence}" in out
    assert tokenizer.train(lambda: iter(())).vocabulary_size == len(words)


def test_a_source_that_is_none(refused):
    for table, sentence in NO_SOURCES:
        Path("mine.toml").write_text(HEAD + table)
        assert sentence in refused(), table
        assert here() == {}
    Path("mine.toml").write_text('[corpus]\nuse = "sotu"\n')
    assert "mine.toml: source: the table [source] is missing" in refused()
    assert "unknown corpus or tokenizer 'lambda': no such file; did you mean 'lambada'?" in refused("lambda")


@pytest.mark.parametrize(
    "packed", [[{"train/a.txt": b"1", "test/a.txt": b"2"}], [{"a.txt": b"1"}, {"test/a.txt": b"2"}]]
)
def test_two_members_or_addresses_for_one_file_are_refused(server, refused, packed):
    for number, content in enumerate(packed):
        archive(server.folder / f"{number}.zip", content)
    files = [(f"{number}.zip", "[source.files.members]\n'*.txt' = 'text/'") for number in range(len(packed))]
    last = kept(server, f"{len(packed) - 1}.zip")
    said = f"source.files: test/a.txt and another member of {last} have the target text/a.txt"
    assert said in refused(write(server, *files))
    assert not Path("text/mine.source.json").exists()
    err = refused(write(server, *((name, 'to = "text/a.txt"') for name in ("a.txt", "b.txt"))))
    assert (
        f"source.files: {server.address}/b.txt has the target text/a.txt of an earlier entry; set another target" in err
    )


@pytest.fixture
def refused(atat):
    """Fetch a recipe that cannot be, and return the sentence that says so."""

    def run(made="mine.toml"):
        code, _, err = atat("data", "get", made)
        assert (code, err.count("\n")) == (2, 1), err
        return err

    return run


@pytest.fixture
def fetched(atat):
    """Fetch a recipe, and return the files without the record."""

    def run(made="mine.toml"):
        code, _, err = atat("data", "get", made)
        assert (code, err) == (0, ""), err
        return {name: content for name, content in here().items() if name != "text/mine.source.json"}

    return run


def test_a_full_disk_and_a_folder_that_cannot_be_written(server, refused, monkeypatch):
    with full_disk(len(TEXT) // 2):
        err = refused(both(server))
    assert err.startswith("error: text/a.txt cannot be written: File too large; free some space")
    assert here() == {}
    shutil.rmtree("text")
    Path("text").write_text("no folder")
    assert refused() == "error: text cannot be written: File exists; run the command in a writable folder\n"

    def full(folder, **_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    monkeypatch.setattr(Path, "mkdir", full)
    assert refused() == "error: text cannot be written: No space left on device; free some space\n"


@pytest.mark.parametrize(
    ("ending", "name"), [("zip", "../../escaped.txt"), ("tar.gz", "/tmp/escaped.txt"), ("tar.gz", "all/../../x.txt")]
)
def test_a_member_outside_of_the_archive_or_none_is_refused(server, refused, ending, name):
    archive(server.folder / f"all.{ending}", {name: b"gotcha"})
    err = refused(write(server, (f"all.{ending}", "[source.files.members]\n'*' = 'text/'")))
    packed = kept(server, f"all.{ending}")
    assert err == f"error: {packed} contains a member outside its folder, {name}; do not use this archive\n"
    assert here().keys() == {packed}
    shutil.rmtree("text")
    archive(server.folder / f"all.{ending}", {"all/a.txt": b""})
    made = write(server, (f"all.{ending}", "[source.files.members]\n'b.txt' = 'text/b.txt'"))
    assert f"{packed} has no member b.txt" in refused(made)


NO_SOURCES = [
    ("", "mine.toml: source: set either `files`, or `hub` and `splits`, not both"),
    ('hub = "a/b"', "mine.toml: source: set either `files`, or `hub` and `splits`, not both"),
    ("files = [{url = 'x'}]", "source.files[0]: set either `to`, or `members` for an archive, not both"),
    ("files = [{to = 'x'}]", "source.files[0].url: is missing: URL of the file; braces are expanded"),
    ("files = [{url = 'x', to = 'x', sha256 = 'abc'}]", "sha256 must be 64 hexadecimal digits, not 'abc'"),
    ("files = [{url = 'x', to = '../x'}]", "source: '../x' is not in the working directory"),
    ("files = [{url = 'x', to = '/x'}]", "source: '/x' is not in the working directory"),
    ("files = [{url = 'x', to = ''}]", "[0]: a path in `to` or `members` is empty"),
    ("files = [{url = 'x', members = {a = ''}}]", "[0]: a path in `to` or `members` is empty"),
    ("hub = 'a/b'\nsplits = {train = ''}", "source: splits: a file name is empty; name a file"),
    ("hub = 'a/b'\nsplits = {train = '~/x'}", "source: '~/x' is not in the working directory"),
    ("files = [{url = '{a,b}', to = 'x'}]", "mine: source.files: {a,b} expands to 2 URLs, but x expands to 1"),
    ("hub = 'a/b'\nsplits = {train = 'x', test = 'x'}", "source: splits: two splits have the same file"),
    ("files = [{url = 'pipe:touch y', to = 'x'}]", "source.files: pipe:touch y would run a shell command"),
]
