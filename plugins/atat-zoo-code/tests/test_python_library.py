"""The corpus of the standard library, and the contract of every component."""

import sysconfig
from collections import Counter

import pytest
from atat_zoo_code import python_library
from atat_zoo_code.python_library import LEFT_OUT, PythonLibraryCorpus, library_files
from code_models import LIBRARY, untrained
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atat_zoo.data import SPLITS
from atat_zoo.system.errors import UserError
from atat_zoo.testing import cases

NAMES = st.lists(st.from_regex("[a-z]{1,6}", fullmatch=True), min_size=1, max_size=30, unique=True)


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-code"), ids=str)
def test_conformance(case):
    case.run()


def split_of_each(root, monkeypatch):
    """Return the splits of each file of a library whose files consist of their name."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: {"stdlib": str(root)}[name])
    found = {}
    for split in SPLITS:
        for text in PythonLibraryCorpus().documents(split):
            found.setdefault(text, []).append(split)
    return found


def write(root, *paths):
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)


def test_every_file_is_in_one_split_and_no_package_is_divided(tmp_path, monkeypatch):
    names = [f"a{i}" for i in range(300)]
    paths = [path for name in names for path in (f"{name}/__init__.py", f"{name}/x/y.py")]
    write(tmp_path, *paths)
    found = split_of_each(tmp_path, monkeypatch)
    assert sorted(found) == sorted(paths)
    assert all(len(splits) == 1 for splits in found.values())
    assert all(found[f"{name}/__init__.py"] == found[f"{name}/x/y.py"] for name in names)
    shares = Counter(splits[0] for splits in found.values())
    assert shares["test"] / 600 == pytest.approx(0.10, abs=0.05)
    assert shares["validation"] / 600 == pytest.approx(0.05, abs=0.03)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NAMES, NAMES)
def test_the_split_of_a_module_does_not_depend_on_the_others(tmp_path_factory, names, others):
    with pytest.MonkeyPatch.context() as patch:
        one, both = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("both")
        write(one, *(f"{name}.py" for name in names))
        write(both, *(f"{name}.py" for name in {*names, *others}))
        found, of_both = split_of_each(one, patch), split_of_each(both, patch)
        assert found.items() <= of_both.items()


def test_a_module_that_becomes_a_package_stays_in_its_split(tmp_path, monkeypatch):
    names = [f"a{i}" for i in range(60)]
    write(tmp_path / "old", *(f"{name}.py" for name in names))
    write(tmp_path / "new", *(f"{name}/__init__.py" for name in names))
    old, new = (split_of_each(tmp_path / each, monkeypatch) for each in ("old", "new"))
    assert [old[f"{name}.py"] for name in names] == [new[f"{name}/__init__.py"] for name in names]


def test_other_packages_tests_and_tables_are_left_out(tmp_path, monkeypatch):
    kept = ("json/decoder.py", "testing.py")
    left_out = [f"{folder}/x.py" for folder in LEFT_OUT] + [f"json/{folder}/x.py" for folder in LEFT_OUT]
    write(tmp_path, *kept, *left_out, "_sysconfigdata__linux.py", "README.txt", "json/c.so")
    assert sorted(split_of_each(tmp_path, monkeypatch)) == sorted(kept)


def test_the_library_of_this_python():
    root, files = library_files()
    assert root == LIBRARY
    assert {"textwrap.py", "json/decoder.py"} <= {str(path.relative_to(root)) for path in files}
    corpus = PythonLibraryCorpus()
    texts = {split: list(corpus.documents(split)) for split in SPLITS}
    every = [text for split in SPLITS for text in texts[split]]
    assert len(every) == len(set(every))
    assert 0.98 * len(files) < len(every) < len(files)
    assert corpus.size() == pytest.approx(sum(map(len, every)), rel=0.01)


def test_copies_are_left_out_whatever_their_split(tmp_path, monkeypatch):
    for i in range(60):
        (tmp_path / f"a{i}.py").write_text(f"x = {i // 2}\n" if i < 58 else "")
    found = split_of_each(tmp_path, monkeypatch)
    assert sorted(found) == sorted(f"x = {i}\n" for i in range(29))
    assert all(len(splits) == 1 for splits in found.values())
    assert split_of_each(tmp_path, monkeypatch) == found


def test_the_declared_encoding_is_read_and_a_change_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "a.py").write_bytes("# coding: latin-1\r\nx = 'é'\r\n".encode("latin-1"))
    corpus = PythonLibraryCorpus()
    assert [text for split in SPLITS for text in corpus.documents(split)] == ["# coding: latin-1\nx = 'é'\n"]
    before, stamp = corpus.fingerprint(), corpus.stamp()
    assert before["files"] == 1
    assert corpus.fingerprint() == before
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    renamed = corpus.fingerprint()
    assert renamed != before
    assert corpus.stamp() != stamp
    (tmp_path / "b.py").write_text("x = 1\n")
    assert corpus.fingerprint() not in (before, renamed)
    monkeypatch.setattr(python_library.platform, "python_version", lambda: "4.0")
    assert corpus.fingerprint()["python"] == "4.0"


def test_a_python_without_its_library_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match="has no Python files; run a Python that keeps its library there"):
        list(PythonLibraryCorpus().documents("test"))


def test_the_tokenizer_keeps_indentation_and_line_ends():
    model = untrained("code", "tokenizer.vocabulary_size=600", tokenizer="bpe")
    for text in PythonLibraryCorpus().documents("test"):
        assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
