"""Golden numbers; the general properties are held by the conformance suite."""

import torch

from atat_zoo.masking import ImportanceMasking, UniformMasking


def row(*values):
    return torch.tensor([values])


def test_without_saturation_it_is_softmax_times_the_expected_count():
    importance, rate = row(0.1, 0.5, 0.9, 0.3), torch.tensor([0.25])
    p = ImportanceMasking(temperature=0.7).probabilities(importance, rate, torch.ones(1, 4, dtype=torch.bool))
    torch.testing.assert_close(p, torch.softmax(importance / 0.7, -1) * 1.0)


def test_a_saturated_token_leaves_its_excess_to_the_others():
    # Weights 4, 1, 1 at r = 2/3, so two tokens are expected: the first is sure, the others share one.
    importance = row(1.0, 0.0, 0.0)
    temperature = 1 / torch.log(torch.tensor(4.0)).item()
    p = ImportanceMasking(temperature=temperature).probabilities(
        importance, torch.tensor([2 / 3]), torch.ones(1, 3) > 0
    )
    torch.testing.assert_close(p, row(1.0, 0.5, 0.5))


def test_padding_neither_counts_nor_is_masked():
    maskable = torch.tensor([[True, True, False, False]])
    for strategy in (UniformMasking(), ImportanceMasking()):
        p = strategy.probabilities(row(0.2, 0.2, 1.0, 0.0), torch.tensor([0.5]), maskable)
        torch.testing.assert_close(p, row(0.5, 0.5, 0.0, 0.0))
