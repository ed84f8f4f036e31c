"""The count table beside the shards: kept, and counted again when what is kept is of no use."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from in_memory import Memory, experiment_of, texts

from atat_zoo.data import manifest
from atat_zoo.data.build import build
from atat_zoo.data.shards import read
from atat_zoo.errors import UserError
from atat_zoo.modeling.backbones import dit, neighbours
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.modeling.backbones.neighbours import FILE, CountTable, count_table
from atat_zoo.registry import Context
from atat_zoo.system import machine
from tests.limited import limited


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    folder = build(experiment_of(tmp_path_factory.mktemp("counted"), remainder="pad"))
    count_table(folder)
    return folder


def same(one, other):
    assert one.sequences == other.sequences
    ours, theirs = [(table.tokens, *table.pairs, *table.triples) for table in (one, other)]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def by_counting(folder):
    contents = manifest.load(folder)
    rows = [read(folder, contents, shard) for shard in contents.splits["train"].shards]
    return CountTable.count([np.concatenate(rows)], contents.vocabulary_size)


def test_all_training_sequences_are_counted_once(counted, monkeypatch):
    expected = by_counting(counted)
    np.testing.assert_array_equal(expected.tokens, manifest.load_counts(counted))
    monkeypatch.setattr(CountTable, "count", None)
    same(count_table(counted), expected)


def repacked(path, method=zipfile.ZIP_STORED, **changed):
    with np.load(path) as old:
        arrays = {name: changed.get(name, lambda array: array)(old[name]) for name in old}
    np.savez(path, **arrays)
    if method != zipfile.ZIP_STORED:
        np.savez_compressed(path, **arrays)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: repacked(path, about=lambda _: np.frombuffer(b"{}", np.uint8)),
        lambda path: repacked(path, about=lambda a: np.frombuffer(bytes(a).replace(b'1,', b'2,'), np.uint8)),
        lambda path: repacked(path, zipfile.ZIP_DEFLATED),
        lambda path: repacked(path, tokens=lambda a: a[:-1]),
        lambda path: repacked(path, tokens=lambda a: a + 1),
        lambda path: repacked(path, pairs_keys=lambda a: a[::-1]),
        lambda path: repacked(path, pairs_counts=lambda a: a * 0),
        lambda path: repacked(path, pairs_counts=lambda a: a.astype(float)),
        lambda path: repacked(path, triples_keys=lambda a: a + 2**40),
        lambda path: repacked(path, triples_counts=lambda a: a[1:]),
        lambda path: os.truncate(path, 1 << 40),
    ],
    ids=range(13),
)  # fmt: skip
def test_what_is_damaged_is_counted_again(tmp_path, counted, damage, monkeypatch):
    folder = Path(shutil.copytree(counted, tmp_path / "shards"))
    damage(folder / FILE)
    expected = by_counting(counted)
    with limited():
        same(count_table(folder), expected)
    monkeypatch.setattr(CountTable, "count", None)  # what replaced it is kept
    same(count_table(folder), expected)


def test_that_of_other_shards_is_not_used(tmp_path, counted):
    other = build(experiment_of(tmp_path, corpus=Memory(train=texts(45)), remainder="pad"))
    shutil.copy(counted / FILE, other / FILE)
    same(count_table(other), by_counting(other))


def test_where_nothing_can_be_written_it_is_counted(tmp_path, counted):
    folder = Path(shutil.copytree(counted, tmp_path / "shards"))
    (folder / FILE).unlink()
    (folder / FILE).mkdir()
    same(count_table(folder), by_counting(counted))
    assert not list(folder.glob(".*.part"))


def test_more_text_than_can_be_counted(counted, monkeypatch):
    tokens = manifest.load(counted).splits["train"].tokens
    monkeypatch.setattr(machine, "memory", lambda: 256 * (tokens - 1))
    with pytest.raises(UserError, match=rf"^at most {tokens - 1:,} training tokens are counted on this machine, and "):
        count_table(counted)
    monkeypatch.setattr(machine, "memory", lambda: 256 * tokens)
    assert count_table(counted).sequences
    monkeypatch.setattr(neighbours, "_MOST", tokens - 1)
    with pytest.raises(UserError, match="has "):
        count_table(counted)
    monkeypatch.setattr(dit, "require", lambda *_: None)
    context = Context(vocabulary_size=258, length=8, steps=1, seed=0, count_table=lambda: count_table(counted))
    with pytest.raises(UserError, match=rf"^backbone.neighbours = 1: at most {tokens - 1:,} .*; set it to 0$"):
        DiTBackbone(neighbours=1).build(context)


def test_several_processes_count_once(tmp_path, counted):
    folder = tmp_path / "copy"
    shutil.copytree(counted, folder, ignore=shutil.ignore_patterns("neighbours*"))
    code = (
        "import sys; from pathlib import Path; from atat_zoo.modeling.backbones import neighbours; "
        "count = neighbours._count; neighbours._count = lambda *given: print('counted') or count(*given); "
        "neighbours.count_table(Path(sys.argv[1]))"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True) for _ in "12"]
    assert sorted(process.communicate()[0] for process in both) == ["", "counted\n"]
