"""What TensorBoard and Weights & Biases, offline, find in the files of a training: the curves of metrics.jsonl."""

import json

import pytest

from atat_zoo.experiment import load
from atat_zoo.training import train

# Of these packages, whose versions Composer chooses.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


def trained_with(logger, tiny, folder):
    said = ["train.steps=4", "train.log_every=2", "train.evaluate_every=2", f'train.loggers=["{logger}"]']
    return train(load(str(tiny.path), said), folder).folder


def check(run, found):
    """Compare curves, values by step, with what the run itself has recorded."""
    lines = {line["step"]: line for line in run.read_metrics()}
    assert list(lines) == [2, 4]
    for name in ("loss", "mask_rate", "mask_rate_target", "cross_entropy", "learning_rate"):
        expected = {step: line[name] for step, line in lines.items()}
        assert found[f"train/{name}"] == pytest.approx(expected, rel=1e-6)  # TensorBoard keeps 32 bits
    evaluations = [json.loads(path.read_bytes()) for path in run.evaluations.glob("*.json")]
    bounds = {each["step"]: each["bounds"]["nelbo"]["value"] for each in evaluations}
    assert found["validation/nelbo"] == pytest.approx(bounds, rel=1e-6)
    assert set(bounds) == {0, 2, 4}


def test_tensorboard_reads_the_curves(tiny, tmp_path):
    event_accumulator = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(event_accumulator, reason="the extra atat-zoo[tensorboard] is not installed")
    run = trained_with("tensorboard", tiny, tmp_path / "run")
    (folder,) = {path.parent for path in run.logs.rglob("events.out.tfevents.*")}
    events = accumulator.EventAccumulator(str(folder), {"histograms": 0}).Reload()  # 0: all of them
    tags = events.Tags()
    check(run, {tag: {each.step: each.value for each in events.Scalars(tag)} for tag in tags["scalars"]})
    for name in ("importance", "token_loss"):
        assert [each.step for each in events.Histograms(f"train/{name}")] == [2, 4]


def test_wandb_reads_the_curves_offline(tiny, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="the extra atat-zoo[wandb] is not installed")
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = trained_with("wandb", tiny, tmp_path / "run")
    wandb.finish()
    (path,) = run.logs.rglob("*.wandb")
    store = DataStore()
    store.open_for_scan(str(path))
    found = {}
    histograms = set()
    while data := store.scan_data():
        record = Record()
        record.ParseFromString(data)
        for item in record.history.item:
            (name, *within), value = item.nested_key or [item.key], json.loads(item.value_json)
            step = record.history.step.num
            if value == "histogram":
                histograms.add((name, step))
            elif not within and isinstance(value, int | float):
                found.setdefault(name, {})[step] = value
    store.close()
    check(run, found)
    expected = {(f"train/{name}", step) for name in ("importance", "token_loss") for step in (2, 4)}
    assert expected <= histograms
