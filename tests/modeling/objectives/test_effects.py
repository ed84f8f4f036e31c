"""What an experiment sets has an effect, or is refused: importance that all tokens share, targets nothing learns."""

import functools
import itertools

import attrs
import numpy as np
import pytest
import torch
from small_objectives import CONTEXT, V, batch, build

from atat_zoo import UserError, Zoo
from atat_zoo.experiment import from_table, load
from atat_zoo.experiment.effects import without_effect
from atat_zoo.experiment.experiment_file import conflicts

ZOO = Zoo.load()
COUNTED = attrs.evolve(CONTEXT, counts=np.arange(1, V + 1))
SMALL = {"use": "transformer", "layers": 1, "width": 8, "heads": 2}
ON_Z = SMALL | {"reads": "z"}
MIXED = {"use": "hybrid", "learned": SMALL}
# Those of the zoo, and the forms in which one with another inside says something else.
ESTIMATORS = [
    ("uniform", 0.1),
    ("frequency", 0.1),
    (SMALL, 0.0),
    (ON_Z, 0.1),
    (ON_Z, 0.0),
    (MIXED, 0.1),
    (MIXED | {"mix": 1}, 0.0),
]
PLAIN = [{"use": "reveal", "excess": 1}, {"use": "position", "bias": "flat"}, {"use": "position", "strength": 0}]
# But for `progressive`, whose masks are those of several steps (test_progressive.py).
MASKING_NAMES = [name for name in ZOO.names("masking") if name != "progressive"]
MASKINGS = [ZOO.spec("masking", table) for table in [*MASKING_NAMES, *PLAIN]]
# So that a few rows are enough to see it.
MASKINGS = [attrs.evolve(spec, temperature=0.02) if hasattr(spec, "temperature") else spec for spec in MASKINGS]
CURRICULA = [ZOO.spec("curriculum", name) for name in ZOO.names("curriculum")]
# What each is compared with: of `reveal` the number of masks is another, whatever it reveals.
UNIFORM, NONE = MASKING_NAMES.index("uniform"), ZOO.names("curriculum").index("none")
REVEALS = MASKINGS.index(ZOO.spec("masking", PLAIN[0]))


@pytest.mark.parametrize(("estimator", "weight"), ESTIMATORS, ids=str)
def test_a_masking_and_a_curriculum_change_the_loss_or_are_refused(estimator, weight):
    """One step late in a training, by a network and an estimator with random weights."""
    module = build({"use": "mdlm"}, context=COUNTED, estimator=estimator)
    if not weight:  # the estimator is as it begins
        for name, parameter in module.estimator.named_parameters():
            if "out." in name:
                parameter.data.zero_()
    objective = {"use": "mdlm", "importance_loss_weight": weight}
    own = from_table({"name": "x", "objective": objective, "estimator": estimator, "data": {"length": CONTEXT.length}})

    @functools.cache
    def nats(masking, curriculum):
        built = (spec.build(COUNTED) for spec in both(masking, curriculum))
        del module.masking, module.curriculum  # of which some are modules, and some are not
        module.masking, module.curriculum = built
        with torch.no_grad():
            return float(module.loss(batch(1, progress=0.9))["diffusion_loss"])

    def both(masking, curriculum):
        return MASKINGS[masking], CURRICULA[curriculum]

    tried = 0
    for masking, curriculum in itertools.product(range(len(MASKINGS)), range(len(CURRICULA))):
        chosen = dict(zip(("masking", "curriculum"), both(masking, curriculum), strict=True))
        experiment = attrs.evolve(own, parts={**own.parts, **chosen})
        if conflicts(experiment):
            continue
        tried += 1
        refused = {problem.key for problem in without_effect(experiment, ZOO)}
        plain = REVEALS if chosen["masking"].name == "reveal" else UNIFORM
        same = nats(masking, curriculum) == pytest.approx(nats(plain, curriculum), rel=1e-6)
        assert ("masking" in refused) == (same and masking != plain), chosen
        same = nats(masking, curriculum) == pytest.approx(nats(masking, NONE), rel=1e-6)
        assert ("curriculum" in refused) == (same and curriculum != NONE), chosen
    assert tried > 5


@pytest.mark.parametrize("weight", [0.1, 0.0])
@pytest.mark.parametrize(("estimator", "learns"), [("uniform", False), ("frequency", False), (SMALL, True)])
def test_a_target_is_learned_or_refused(estimator, learns, weight):
    table = {"name": "x", "objective": {"use": "mdlm", "importance_loss_weight": weight}, "estimator": estimator}
    for target in ("was_masked", {"use": "difficulty", "scale": "running"}):
        refused = [problem.key for problem in without_effect(from_table({**table, "target": target}), ZOO)]
        assert refused == ([] if learns and weight else ["target"])
    assert not list(without_effect(from_table({**table, "target": "difficulty"}), ZOO))


def test_what_has_no_effect_is_refused_with_what_to_add():
    words = ["masking.use=importance", "masking.temperature=0.01", "curriculum.use=three_stage", "target=was_masked"]
    with pytest.raises(UserError) as error:
        load("mdlm", words)
    lines = str(error.value).splitlines()
    where = ("masking.temperature=0.01", "curriculum.use=three_stage", "target=was_masked")
    assert [line.split(" on the")[0] for line in lines] == [f"{key!r}" for key in where]
    assert all('set estimator.use to "frequency" or "hybrid" or "transformer"' in line for line in lines[:2])
    assert 'has nothing to learn; set estimator.use to "hybrid" or "transformer", or remove [target]' in lines[2]
    assert load("mdlm", [*words, "estimator.use=hybrid"])
    with pytest.raises(UserError, match=r"learns nothing with objective\.importance_loss_weight = 0; raise"):
        load("mdlm", [*words, "estimator.use=transformer", "objective.importance_loss_weight=0"])


def test_other_objectives_are_asked_too():
    adaptive = {"name": "x", "objective": {"use": "adaptive", "temperature": 0.5}, "target": "was_masked"}
    assert [problem.key for problem in without_effect(from_table(adaptive), ZOO)] == ["objective", "target"]
    adaptive["estimator"] = SMALL
    assert not list(without_effect(from_table(adaptive), ZOO))
    adaptive["objective"] = adaptive["objective"] | {"learn_importance": True}
    (problem,) = without_effect(from_table(adaptive), ZOO)
    assert "learns from the gradient of the bound" in str(problem)
    ordered = {"name": "x", "objective": {"use": "set_causal", "importance_loss_weight": 0}, "estimator": ON_Z}
    ordered["position_sets"] = "by_importance"
    assert [problem.key for problem in without_effect(from_table(ordered), ZOO)] == ["position_sets"]
    # Weights from another run may have learned.
    assert not list(without_effect(from_table(ordered | {"init_from": "runs/other"}), ZOO))
