"""The memory of an evaluation: a bounded number of positions have their logits at once, whatever is measured."""

import attrs
import pytest

from atat_zoo.experiment import EvaluationSpec
from atat_zoo.measure.likelihood import measure
from atat_zoo.measure.scores import SCORES
from atat_zoo.objectives import chunks
from tests.objectives.small_objectives import BACKBONE, BASELINES, CONTEXT, L, Largest, N, batch, build

ESTIMATOR = {"use": "transformer", "layers": 1, "width": 8, "heads": 2}
READS_X = {"use": "mdlm", "importance_loss_weight": 0.1}


@pytest.mark.parametrize("name", [*BASELINES, "mdlm", "mdlm that reads z", "adaptive"])
def test_no_tensor_of_an_evaluation_has_the_logits_of_all_places(name, monkeypatch):
    vocabulary, rows, width = 400, 4, 8
    monkeypatch.setattr(chunks, "LOGITS", rows * vocabulary)
    context = attrs.evolve(CONTEXT, vocabulary_size=vocabulary, width=width)
    parts = {"estimator": ESTIMATOR | {"reads": "z"}, "masking": "uniform"} if "z" in name else {}
    objective = BASELINES.get(name, {"use": "adaptive"} if name == "adaptive" else READS_X)
    module = build(objective, backbone=BACKBONE | {"width": width}, context=context, **parts)
    given = batch(3, context=context)
    spec = EvaluationSpec(draws=2, batch_size=N)
    with Largest() as largest:
        measured = measure(module, given.tokens, given.maskable, spec, seed=1, scores=SCORES)
    assert measured.scores.keys() == SCORES.keys()
    assert measured.token_loss.shape == (N, L)
    # The embedding is 8 · 401; about twenty positions are masked, and 20 · 400 would be more.
    assert largest.elements <= width * (vocabulary + 1)
