"""The contract of every part."""

import pytest

from atat_zoo.registry import Zoo
from atat_zoo.testing import cases, check_backbone, check_estimator


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-genomics"), ids=str)
def test_conformance(case):
    case.run()


def test_both_strands_keep_the_contract_of_a_backbone():
    table = {"use": "gated_convolution", "width": 16, "layers": 3, "reverse_complement": True}
    check_backbone(Zoo.load().spec("backbone", table))


def test_one_place_on_either_side_keeps_the_contract_of_an_estimator():
    check_estimator(Zoo.load().spec("estimator", {"use": "kmer", "reach": 1}))


def test_kmers_are_told_apart_once_they_are_learned():
    estimator = Zoo.load().spec("estimator", {"use": "kmer"})
    assert [estimator.tells_apart(True), estimator.tells_apart(False)] == [True, False]
