"""`mdlm` with an estimator that reads z: nothing in a step depends on the hidden tokens but their own loss."""

import attrs
import pytest
import torch
from small_objectives import PARTS, V, batch, build

from atat_zoo.errors import UserError
from atat_zoo.experiment import from_table

ON_Z = {**PARTS["estimator"], "reads": "z"}


def module(masking="reveal", **objective):
    return build({"use": "mdlm", "weight": "simple", **objective}, estimator=ON_Z, masking=masking)


def with_other_tokens(given, where):
    return attrs.evolve(given, tokens=torch.where(where, (given.tokens + 1) % V, given.tokens))


@pytest.mark.parametrize("masking", ["reveal", {"use": "reveal", "excess": 3.0, "first": "hard"}, "uniform"], ids=str)
@pytest.mark.parametrize("progress", [0.1, 0.9])
def test_hidden_tokens_change_neither_mask_nor_weights(masking, progress):
    made = module(masking)
    for first in range(4):
        given = batch(first, progress=progress)
        levels = made.levels(made.times(given.index), given)
        step, importance = made.mask_batch(given, levels)
        assert step.masked.any()
        assert not (step.masked & ~given.maskable).any()
        weights = made.curriculum.weights(step, importance.detach(), progress)
        changed = with_other_tokens(given, step.masked)
        again, importance_again = made.mask_batch(changed, levels)
        assert torch.equal(again.masked, step.masked)
        assert torch.equal(importance_again, importance)
        assert torch.equal(made.curriculum.weights(again, importance_again.detach(), progress), weights)
        assert torch.equal(again.z, step.z)
        assert weights.std() > 0
        found = made.loss(given)
        assert torch.equal(found["masked"], step.masked)
        assert torch.equal(found["importance"], importance.detach())


def test_visible_tokens_change_the_mask():
    made, moved = module(), 0
    for first in range(4):
        given = batch(first, padded=False)
        levels = made.levels(made.times(given.index), given)
        step, _ = made.mask_batch(given, levels)
        again, _ = made.mask_batch(with_other_tokens(given, ~step.masked), levels)
        moved += int((again.masked != step.masked).sum())
        assert torch.equal(again.masked.sum(1), step.masked.sum(1))
    assert moved


@pytest.mark.parametrize("bf16", [False, True])
def test_the_estimator_learns_from_what_it_says_of_the_final_mask(bf16):
    made = module(importance_loss_weight=0.5)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = made.loss(batch(1))
    found["loss"].backward()
    assert all(p.grad.abs().max() > 0 for p in made.estimator.parameters())
    assert not made.backbone.embedding.weight.grad[V].isnan().any()


def test_an_estimator_that_nothing_asks_before_the_mask_leaves_uniform_masks_as_they_are():
    plain = build({"use": "mdlm"}, estimator="uniform", masking="uniform")
    assert torch.equal(module("uniform").loss(batch())["masked"], plain.loss(batch())["masked"])


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"masking": "importance", "estimator": ON_Z}, "needs the importance before anything is masked"),
        ({"masking": "position", "estimator": ON_Z}, "needs the importance before anything is masked"),
        ({"masking": "reveal"}, 'reads the clean text; set estimator.use = "transformer" and its reads to "z"'),
        ({"masking": "reveal", "estimator": PARTS["estimator"]}, "reads the clean text"),
        (
            {"masking": "reveal", "estimator": ON_Z, "objective": {"use": "mdlm", "correction": "horvitz_thompson"}},
            'tilts nothing that needs a correction; set it to "none"',
        ),
        (
            {"masking": "reveal", "estimator": ON_Z, "mask_drawing": "systematic"},
            "mask_drawing: masking 'reveal' draws its masks itself; leave mask_drawing out",
        ),
    ],
    ids=["importance", "position", "default", "transformer", "correction", "drawing"],
)
def test_parts_that_do_not_go_together_are_refused(table, said):
    with pytest.raises(UserError) as caught:
        from_table({"name": "a", **table}, where="here")
    assert said in str(caught.value)
