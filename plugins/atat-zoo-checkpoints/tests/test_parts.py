"""The contract of every part, in the forms that its examples do not have."""

import pytest

from atat_zoo.registry import Zoo
from atat_zoo.testing import cases, check_backbone

DDIT = {"use": "ddit", "layers": 2, "width": 16, "heads": 2, "condition": 8}


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-checkpoints"), ids=str)
def test_conformance(case):
    case.run()


@pytest.mark.parametrize("more", [{"time_conditioning": True}, {"condition": 0}, {"rows": 80, "mask_id": 3}])
def test_every_form_keeps_the_contract_of_a_backbone(more):
    check_backbone(Zoo.load().spec("backbone", {**DDIT, **more}))
