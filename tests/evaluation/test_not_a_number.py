"""A network whose logits are no numbers: neither a text nor a bound is made of them."""

import pytest
import torch

from atat_zoo import Model, UserError
from atat_zoo.evaluation.likelihood import evaluate_run
from atat_zoo.evaluation.run_comparison import measure_runs
from atat_zoo.experiment.runs import RunFolder
from tests.evaluation.making import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose weights are finite, and whose logits overflow."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder, "other", "mdlm")
    model = Model.from_run(make_run(folder, "large", "mdlm"))
    with torch.no_grad():
        for parameter in model.module.backbone.parameters():
            parameter.mul_(1e30)
    model.save(RunFolder(folder / "large").model)
    return folder / "large"


def test_neither_text_nor_bound_nor_difference_is_made_of_them(run):
    model = Model.from_run(run)
    with pytest.raises(UserError, match="the network's logits are not finite: its weights are damaged, or"):
        model.sample(2, seed=1)
    said, spec = "large: the bound nelbo is NaN for 8 of 8 sequences", model.experiment.evaluation
    with pytest.raises(UserError, match=f"{said}, so the weights may be"):
        evaluate_run(model, run, spec, seed=1)
    assert not list(RunFolder(run).evaluations.glob("*"))
    with pytest.raises(UserError, match=said):
        measure_runs([run.parent / "other", run], spec, seed=1)
