"""Sizes in `[data]` and `[train]`, and in what an interrupted build left behind: refused before memory is asked for."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from in_memory import Memory, experiment_of, hashes, interrupted, texts

from atat_zoo.data.build import build
from atat_zoo.data.stream import refuse_sizes
from atat_zoo.errors import UserError
from atat_zoo.system import machine
from tests.limited import limited


def test_a_sequence_that_is_too_long(experiment):
    with pytest.raises(UserError, match=r"^data\.length = 1099511627776 needs about 17,592\.2 GB for a single"):
        build(experiment(length=2**40, remainder="pad"))
    with pytest.raises(UserError, match=r"^data\.length = 1073741824 needs about 17,592\.2 GB for the rows of a batch"):
        build(experiment(length=2**30, rows="document"))


def test_shards_that_are_too_large(experiment, monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: 100_000)
    with pytest.raises(UserError, match=r"^data\.sequences_per_shard = 4611686018427387904 for 4 lanes needs about"):
        build(experiment(sequences_per_shard=2**62, corpus=Memory(train=texts(1000))))
    build(experiment())


def test_a_batch_and_workers_that_are_too_many(monkeypatch):
    with pytest.raises(UserError, match=r"^train\.batch_size = 1099511627776 needs about 158,329\.7 GB for the ids of"):
        refuse_sizes(16, 2**40, 1, 0)
    refuse_sizes(16, 2**40, 2**36, 0)
    monkeypatch.setattr(machine, "memory", lambda: 10**9)
    with pytest.raises(UserError, match=r"^data\.workers = 1000 needs about 31\.5 GB for its processes alone"):
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda state: repacked(state, zipfile.ZIP_DEFLATED, waiting=bytes(3 * 10**8)),
        lambda state: repacked(state, waiting=npy(np.zeros(1)).replace(b"(1,)", b"(9" + b"9)")),
        lambda state: repacked(state, counts=npy(np.zeros(3, np.int64))),
        lambda state: repacked(state, table=npy(np.frombuffer(b"[]", np.uint8))),
        lambda state: repacked(state, table=npy(np.frombuffer(b'{"shards": [{}]}', np.uint8))),
        lambda state: b"",
    ],
    ids=range(6),
)
def test_a_forged_state_of_a_build_begins_the_split_again(tmp_path, begun, change):
    state, expected = begun
    interrupted(build, experiment_of(tmp_path), at="test")
    next(tmp_path.glob("*.partial/train.state.npz")).write_bytes(change(state))
    with limited(256 << 20):
        assert hashes(build(experiment_of(tmp_path))) == expected
