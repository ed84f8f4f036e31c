"""The estimator `loss_prediction` in a sampler: its importance takes no forward pass of its own."""

import pytest
import torch
from small_objectives import CONTEXT, build

from atat_zoo import Zoo
from atat_zoo.generation.guided_denoiser import GuidedDenoiser
from atat_zoo.modeling.objectives.denoising import Predictor

SAMPLER = {"use": "combination", "order": "importance", "tokens_per_step": {"use": "fixed", "steps": 3}}


def counted():
    module = build({"use": "mdlm"}, estimator="loss_prediction", masking="uniform").eval()
    passes = []
    module.backbone.register_forward_hook(lambda *_: passes.append(1))
    return module.denoiser(), passes


@pytest.mark.parametrize("guided", [False, True])
def test_an_order_by_predicted_loss_takes_one_pass_per_step(guided, monkeypatch):
    sampler, tokens = Zoo.load().spec("sampler", SAMPLER), torch.full((2, CONTEXT.length), CONTEXT.vocabulary_size)

    def sampled():
        denoiser, passes = counted()
        denoiser = GuidedDenoiser(denoiser) if guided else denoiser
        return sampler.sample(denoiser, tokens, torch.arange(2)), len(passes)

    found, passes = sampled()
    assert (found.nfe.tolist(), passes) == ([3, 3], 3)
    monkeypatch.setattr(Predictor, "known_head_inputs", Predictor.head_inputs)  # which reads every text again
    expected, passes = sampled()
    assert passes == 2 * 3 - 1  # the last step fills everything, and asks for no importance
    assert torch.equal(found.tokens, expected.tokens)


def test_the_hidden_states_of_another_text_are_not_used():
    denoiser, passes = counted()
    tokens = torch.full((1, CONTEXT.length), CONTEXT.vocabulary_size)
    where = torch.ones(1, CONTEXT.length, dtype=torch.bool)
    with torch.no_grad():
        denoiser.importance(tokens, where)
        denoiser(tokens.clone(), None, where)  # an equal text in another tensor is read again
        assert len(passes) == 2
        denoiser.importance(tokens, where)
        tokens[0, 0], where[0, 0] = 1, False
        found = denoiser(tokens, None, where)
        torch.testing.assert_close(found, counted()[0](tokens, None, where))
        assert len(passes) == 4
        denoiser(tokens, None, where)  # kept for one prediction only
        assert len(passes) == 5
