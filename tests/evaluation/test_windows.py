"""What is measured of written text is measured of windows of running text, also where a text ends inside one."""

from __future__ import annotations

import pytest
import torch

from atat_zoo.evaluation.judging import judge_run
from atat_zoo.evaluation.tasks.controlled import ControlledTask
from atat_zoo.evaluation.tasks.held_out import PricesTask
from atat_zoo.evaluation.tasks.long_text import LongTextTask
from atat_zoo.evaluation.written import measure_texts
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers.published import AncestralSampler
from tests.evaluation.making import make_run
from tests.evaluation.tasks.test_controlled import task_of


class AskedError(Exception):
    """What a model was asked to write."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("windows"), "ends", "mdlm", data={"special": "both"})


def controlled(run):
    corpus = {"use": "files", "train": [str(run.parent / "texts" / "train.txt")], "document": "line"}
    task = task_of({"use": "naive_bayes", "words": ["gold"], "corpus": corpus, "prior": 0.5})
    assert isinstance(task, ControlledTask)
    return task


TOKENS, SPEC = torch.full((5, 16), 97), EvaluationSpec(metrics=("unigram_entropy",))
BLOCKS = {"use": "semi_autoregressive", "size": 4}
MEASURES = {
    "metrics": lambda model, run: measure_texts(model, TOKENS, TOKENS > 0, SPEC, seed=3),
    "judge": lambda model, run: judge_run(
        model, run, None, None, sampler=AncestralSampler(steps=2), spec=EvaluationSpec(), number=2
    ),
    "controlled": lambda model, run: controlled(run).measure(model, run, seed=2),
    "long_text": lambda model, run: LongTextTask(length=40, texts=3, sampler=BLOCKS).measure(model, run, seed=2),
    "prices": lambda model, run: PricesTask(samplers=[{"use": "ancestral", "steps": 2}], texts=2, sequences=2).measure(
        model, run, seed=2
    ),
}


@pytest.mark.parametrize("measure", MEASURES)
def test_a_measure_reads_windows(measure, run, monkeypatch):
    """That they are other texts, `tests/generation/test_sample.py` says."""
    model = Model.from_run(run)

    def sample(*_, windows=False, **__):
        raise AskedError(windows)

    monkeypatch.setattr(Model, "sample", sample)
    with pytest.raises(AskedError) as asked:
        MEASURES[measure](model, run)
    assert asked.value.args == (True,)
