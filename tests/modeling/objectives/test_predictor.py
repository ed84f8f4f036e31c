"""A trained module as a denoiser: what it says of itself, of visible tokens and of their importance."""

import pytest
import torch
from small_objectives import BACKBONE, CONTEXT, L, V, build

from atat_zoo import UserError

TIMED = {"use": "transformer", "layers": 1, "width": 8, "heads": 2, "time_conditioning": True}
Z = torch.tensor([[1, V, 3, V, 0, 2], [V, V, V, 4, 5, V]])
MASKED = Z == V


def denoiser_of(objective, **parts):
    module = build(objective, **parts).eval()
    return module, module.denoiser()


@pytest.mark.parametrize("timed", [False, True])
def test_it_is_as_its_module_is(timed):
    module, found = denoiser_of("mdlm", backbone=BACKBONE | {"time_conditioning": timed})
    assert (found.mask_id, found.window, found.reads_time) == (V, CONTEXT.length, timed)
    assert (found.estimates_importance, found.importance_reads) == (True, "x")
    rate = torch.tensor([0.1, 0.7])
    assert torch.equal(found.time_at(rate), module.noise.time_at(rate))
    _, reads_z = denoiser_of("mdlm", masking="uniform", estimator=TIMED | {"time_conditioning": False, "reads": "z"})
    assert reads_z.importance_reads == "z"
    _, without = denoiser_of("mlm")
    assert not without.estimates_importance
    assert without.importance(Z, MASKED) is None


@torch.no_grad()
def test_all_it_says_of_a_text_is_of_one_pass():
    module, found = denoiser_of("mdlm", backbone=BACKBONE | {"time_conditioning": True})
    t, visible = torch.tensor([0.4, 0.9]), (torch.tensor([0, 1, 0]), torch.tensor([2, 4, 5]))
    every = module.backbone.head(module.backbone(Z, t)).log_softmax(-1)
    torch.testing.assert_close(found(Z, t, MASKED), every[MASKED])
    log_probs, own = found.everywhere(Z, t, MASKED, visible)
    torch.testing.assert_close(log_probs, every[MASKED])
    torch.testing.assert_close(own, torch.stack([every[0, 2, 3], every[1, 4, 5], every[0, 5, 2]]))
    # Without a time it is that of the share of masked tokens.
    share = module.noise.time_at(torch.tensor([2 / 6, 4 / 6]))
    torch.testing.assert_close(found(Z, None, MASKED), found(Z, share, MASKED))


@torch.no_grad()
def test_importance_is_of_all_tokens_at_the_time_of_so_many_masks():
    module, found = denoiser_of("mdlm", estimator=TIMED)
    text, share = Z.clamp(max=V - 1), module.noise.time_at(torch.tensor([2 / 6, 4 / 6]))
    of_text = found.importance(text, MASKED)
    torch.testing.assert_close(of_text, module.importance(text, torch.ones_like(MASKED), share))
    assert not torch.equal(of_text, found.importance(text, ~MASKED))
    assert of_text.shape == (2, L)


def test_logits_that_are_no_numbers_are_refused():
    module, found = denoiser_of("mdlm")
    with torch.no_grad():
        module.backbone.embedding.weight[4] = torch.nan  # of a token of the second row
        found(Z[:1], None, MASKED[:1])
        with pytest.raises(UserError, match="logits that are no numbers"):
            found(Z, None, MASKED)
