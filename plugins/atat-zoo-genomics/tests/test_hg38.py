"""The recipe of the human genome: what is fetched is what is read."""

import gzip
from pathlib import Path

import atat_zoo_genomics
import pytest
from webdataset.shardlists import expand_urls

from atat_zoo.data.corpora import source
from atat_zoo.errors import UserError
from atat_zoo.experiment import load

FILE = Path(atat_zoo_genomics.__file__).parent / "experiments" / "hg38.toml"


def test_every_chromosome_is_fetched_and_is_in_one_split(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (file,) = source.read(str(FILE)).files
    corpus = load(str(FILE)).parts["corpus"]
    with pytest.raises(UserError, match=r"there is no file corpora/hg38/"):
        corpus.stamp()
    paths, addresses = (list(map(Path, expand_urls(text))) for text in (file.to, file.url))
    assert [path.name for path in paths] == [address.name for address in addresses]
    assert {path.name for path in paths} == {f"chr{each}.fa.gz" for each in [*range(1, 23), "X", "Y"]}
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(f">{path.name}\nacgt{'N' * 9}\n".encode()))
    read = [Path(stamp.path).relative_to(tmp_path) for stamps in corpus.stamp().values() for stamp in stamps]
    assert sorted(read) == sorted(paths)
    assert [len(list(corpus.documents(split))) for split in ("train", "validation", "test")] == [21, 1, 2]
