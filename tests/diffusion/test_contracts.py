"""What a denoiser is when it writes no more than it must."""

import pytest
import torch

from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.generation.guided_denoiser import GuidedDenoiser


class Least(Denoiser):
    """A denoiser that knows nothing."""

    mask_id = 3

    def __call__(self, tokens, t, where):
        return torch.zeros(len(tokens[where]), 3).log_softmax(-1)


class More(Least):
    reads_time, window, block_size = True, 7, 2
    estimates_importance = gives_order_weights = True
    importance_reads = "z"

    def time_at(self, rate):
        return rate**2

    def importance(self, draft, masked):
        return draft / 4


TEXT = torch.full((2, 4), 3)
DEFAULTS = {"reads_time": False, "window": None, "block_size": None, "importance_reads": "x"}
DEFAULTS |= {"mask_id": 3, "estimates_importance": False, "gives_order_weights": False}


def test_every_fact_has_a_default_and_a_guided_denoiser_those_of_the_other_one():
    least, guided = Least(), GuidedDenoiser(More())
    assert {fact: getattr(least, fact) for fact in DEFAULTS} == DEFAULTS
    assert least.importance(TEXT, TEXT > 0) is None
    assert least.time_at(TEXT) is TEXT
    assert least.select(torch.tensor([0])) is least
    assert least.begin_generation(TEXT) is least
    assert least.step_of(torch.arange(5)) is None
    assert More().step_of(torch.arange(5)).tolist() == [0, 0, 1, 1, 2]
    assert all(getattr(guided, fact) == getattr(More, fact) for fact in DEFAULTS)
    assert guided.time_at(torch.tensor(0.5)) == 0.25
    assert torch.equal(guided.importance(TEXT, TEXT > 0), TEXT / 4)
    assert GuidedDenoiser(Least(), importance=lambda draft, masked: draft * 0.0).estimates_importance


@pytest.mark.parametrize(
    ("ability", "words"),
    [
        (lambda least: least.predict_with_order(TEXT, None, TEXT == 3), "gives no order weights"),
        (lambda least: least.score_visible(TEXT, None, TEXT == 3, TEXT < 3), "does not score visible tokens"),
        (lambda least: least.begin(2, 4), "does not read block by block"),
    ],
)
def test_what_it_cannot_do_is_said(ability, words):
    for denoiser in (Least(), GuidedDenoiser(Least())):
        with pytest.raises(NotImplementedError, match=words):
            ability(denoiser)
