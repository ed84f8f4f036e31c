"""The most memory that a training took."""

import gc
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from atat_zoo.experiment import load
from atat_zoo.run import RunFolder
from atat_zoo.training import train
from atat_zoo.training.composer_model import ZooModel
from atat_zoo.training.lifecycle import MetricsWriter
from atat_zoo.training.memory import peak_memory


@pytest.mark.parametrize("recorded", [0, 1 << 50])
def test_a_continued_run_keeps_what_it_took_before(tmp_path, recorded):
    folder = RunFolder(tmp_path)
    folder.append_metrics({"step": 1, "peak_memory": recorded})
    folder.append_metrics({"step": 2, "peak_memory": recorded // 2})
    state = SimpleNamespace(timestamp=SimpleNamespace(token=64), model=nn.Linear(1, 1))
    records = MetricsWriter(None, folder, None, lambda step, line: None)
    records.fit_start(state, None)
    found = records._peak(state)
    assert found == (recorded or peak_memory(torch.device("cpu")))
    assert found > 0


@pytest.mark.slow
def test_a_training_lets_go_of_its_model(tiny, tmp_path):
    def alive():
        gc.collect()
        return sum(type(each) is ZooModel for each in gc.get_objects())

    before = alive()
    assert train(load(str(tiny.path), ["train.steps=1"]), tmp_path / "run").finished
    assert alive() == before
