"""A training whose shards are damaged, or lie elsewhere."""

import shutil
from types import SimpleNamespace

import pytest
import torch

from atat_zoo.data import downloads, shard_manifest
from atat_zoo.data.build import build
from atat_zoo.data.sample_order import SampleOrder
from atat_zoo.experiment import load
from atat_zoo.system.errors import UserError
from atat_zoo.training import train
from atat_zoo.training.composer_model import SkippedRows
from tests.faulty_server import serving

TWO = ["train.steps=2", "train.save_every=2", "train.log_every=2", "evaluation.sequences=2", "evaluation.samples=0"]


def test_skipped_rows_are_counted_and_told_once():
    told = []
    logged = []
    maskable = torch.ones(4, 3, dtype=torch.bool)
    logger = SimpleNamespace(log_metrics=logged.append)
    callback = SkippedRows(told.append)
    for rows in (0, 1, 3):
        batch = maskable.clone()
        batch[:rows] = False
        batch[3, 1] = False  # padding in a row is none
        callback.batch_start(SimpleNamespace(batch={"maskable": batch}), logger)
    assert logged == [{"skipped": 0}, {"skipped": 1}, {"skipped": 4}]
    assert len(told) == 1
    again = SkippedRows(told.append)
    again.load_state_dict(callback.state_dict())
    again.batch_start(SimpleNamespace(batch={"maskable": ~maskable}), logger)
    assert logged[-1] == {"skipped": 8}
    assert len(told) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_training_from_a_faulty_server_ends_in_the_same_weights(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "_PAUSE", 0.01)
    folder = build(load(str(tiny.path)))
    with serving(folder) as server:
        for name in ("train-000000.tar", "train-000001.tar", "tokenizer.json"):
            server.faults[name].extend(["drop", "truncate", "corrupt", "delay"])
        corpus = f"corpus={{use='shards', path='{server.address}', cache='{tmp_path}', cache_size=1e-4}}"
        train(load(str(tiny.path), [*TWO, "data.workers=1", corpus]), tmp_path / "remote")
    train(load(str(tiny.path), TWO), tmp_path / "local")
    ends = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("remote", "local")]
    assert ends[0] == ends[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the n-gram model was not evaluated:atat_zoo.system.errors.OmissionNote")
def test_a_training_leaves_out_what_is_damaged(tiny, tmp_path):
    folder = shutil.copytree(build(load(str(tiny.path))), tmp_path / "shards")
    corpus = f"corpus={{use='shards', path='{folder}'}}"

    def damage(path):
        path.write_bytes(path.read_bytes()[:700])  # not one whole member

    contents, made = shard_manifest.load(folder), load(str(tiny.path))
    sizes = [shard.sequences for shard in contents.splits["train"].shards]
    order = SampleOrder(sizes, lanes=made.data.lanes, seed=made.seed)
    paths = sorted(folder.glob("train-*.tar"))
    damage(paths[order.locate(0).shard])  # that of one lane
    run = train(load(str(tiny.path), [*TWO, corpus, "data.on_corrupt=skip"]), tmp_path / "some")
    (line,) = run.folder.read_metrics()
    assert 0 < line["skipped"] < 2 * 8
    assert line["loss"] > 0
    for path in paths:
        damage(path)
    with pytest.raises(UserError, match="is damaged"):
        train(load(str(tiny.path), [*TWO, corpus]), tmp_path / "refused")
    run = train(load(str(tiny.path), [*TWO, corpus, "data.on_corrupt=skip"]), tmp_path / "run")
    (line,) = run.folder.read_metrics()
    assert line["skipped"] == 2 * 8
    assert line["loss"] == 0
