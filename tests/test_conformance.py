"""Every promise of every part that is installed: ours, and the example plugin's."""

import pytest

from atat_zoo.data.tokenizers.components import CharactersTokenizer
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.modeling.objectives.masked_diffusion import MDLMObjective
from atat_zoo.registry import KINDS, Zoo
from atat_zoo.testing import CHECKS, cases, check_backbone, check_imports, check_objective, check_tokenizer

ALL = cases()


def marked(case):
    """Leave entire samplers, with all their steps, to the whole suite; their parts stay in the fast one."""
    return pytest.param(case, marks=[pytest.mark.slow] if case.promise == "invariants" else [], id=str(case))


@pytest.mark.parametrize("case", [marked(c) for c in ALL if c.promise != "imports"])
def test_conformance(case):
    case.run(examples=120 if case.kind == "masking" else None)


@pytest.mark.slow
def test_no_part_needs_torch_to_be_listed():
    # All in one interpreter; one each would take a minute.
    assert set(CHECKS) == set(KINDS)
    zoo = Zoo.load()
    check_imports(zoo.describe(kind, name).path for kind in KINDS for name in zoo.names(kind))


@pytest.mark.parametrize("changes", [{"tied": True}, {"output_bias": "unigram"}, {"dropout": 0.5}], ids=str)
def test_other_backbones(changes):
    check_backbone(DiTBackbone(layers=2, width=16, heads=2, max_length=12, **changes))


@pytest.mark.parametrize(
    "changes", [{"weight": "simple"}, {"correction": "horvitz_thompson"}, {"importance_loss_weight": 1.0}], ids=str
)
def test_other_objectives(changes):
    check_objective(MDLMObjective(**changes))


def test_a_tokenizer_with_special_tokens_of_its_own():
    check_tokenizer(CharactersTokenizer(special_tokens=True))
