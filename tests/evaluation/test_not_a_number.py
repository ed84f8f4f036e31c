"""A network whose logits are no numbers: neither a text nor a bound is made of them."""

import attrs
import pytest
import torch

from atat_zoo import Model, UserError
from atat_zoo.evaluation.compare import measure_runs
from atat_zoo.evaluation.likelihood import evaluate_run
from atat_zoo.experiment.runs import RunFolder
from tests.evaluation.making import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose weights are finite, and whose logits overflow."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder, "large", "mdlm")
    model = Model.from_run(folder / "large")
    with torch.no_grad():
        for parameter in model.module.backbone.parameters():
            parameter.mul_(1e30)
    attrs.evolve(model).save(RunFolder(folder / "large").model)
    return folder / "large"


def test_no_text_is_written_of_logits_that_are_no_numbers(run):
    with pytest.raises(UserError, match="the network computes logits that are no numbers: its weights are damaged, or"):
        Model.from_run(run).sample(2, seed=1)


def test_no_bound_is_recorded_that_is_no_number(run):
    model = Model.from_run(run)
    with pytest.raises(UserError, match="large: the bound nelbo of 8 of 8 sequences is no number: the weights are"):
        evaluate_run(model, run, model.experiment.evaluation, seed=1)
    assert not list(RunFolder(run).evaluations.glob("*"))


def test_no_difference_is_made_of_bounds_that_are_no_numbers(run):
    make_run(run.parent, "other", "mdlm")
    spec = Model.from_run(run).experiment.evaluation
    with pytest.raises(UserError, match="large: the bound nelbo of 8 of 8 sequences is no number"):
        measure_runs([run.parent / "other", run], spec, seed=1)
