"""Checks of objectives and bounds. B: batch size; L: length; V: number of predictable tokens.

An objective is tested with a small network that has random weights, and with an exact network for a toy distribution.
The latter reveals leaks, because a bound is below the entropy of the text only if the model has seen the tokens that it
predicts.
"""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from atat_zoo.diffusion.likelihood_bounds import average, enumerate_masks, from_denoiser
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.modeling.noise import LinearNoise
from atat_zoo.modeling.objectives import Batch
from atat_zoo.registry import Context, Zoo
from atat_zoo.registry.hookspecs import TABLES
from atat_zoo.testing.backbone_checks import holds_gradients, randomised
from atat_zoo.testing.batches import close, holds, is_tensor
from atat_zoo.testing.toys import ExactBackbone, Hashed, Joint, toy

V, L, N = 7, 6, 8  # for the small network: vocabulary size, length, rows in a global batch
_SMALL: dict[str, Any] = {
    "position_sets": {"use": "strided", "stride": 2},
    "backbone": {"use": "dit", "layers": 1, "width": 16, "heads": 2, "output_bias": "zero"},
    "estimator": {"use": "transformer", "layers": 1, "width": 8, "heads": 2},
}
_DRAWS = 4  # masks per sequence
_METHOD = (_DRAWS, ExactKBound())
_REPEATS = 128  # estimates for each sequence of the toy
_ERRORS = 6.0  # largest error of an estimate, in standard errors


def check_loss(objective: Any) -> None:
    """Check that the loss is a finite scalar, and that its randomness depends only on the batch's sample numbers."""
    assert isinstance(getattr(objective, "exact", None), bool), (
        "`exact` must be True if the bound is the likelihood, and False otherwise"
    )
    module, batch = _small(objective), _batch()
    state = torch.get_rng_state()
    result = module.loss(batch)
    loss = result["loss"]
    assert loss.shape == (), f"the loss must be a scalar, not {list(loss.shape)}"
    holds(loss.isfinite(), "the loss must be finite", float(loss.detach()))
    for name, figure in result.items():
        assert name == "loss" or not figure.requires_grad, (
            f"all outputs except the loss must be detached, but {name} has a gradient"
        )
    assert torch.equal(module.loss(batch)["loss"], loss), "the same batch must give the same loss"
    assert torch.equal(torch.get_rng_state(), state), "random numbers must not come from torch's global state"
    module.begin_step()
    module.end_step(lambda total: None, 0.5)
    assert isinstance(module.stage(0.5) or None, str), "stage() must return a nonempty string"
    assert isinstance(module.curriculum_strength(0.5), float | None), (
        "curriculum_strength() must return a float or None"
    )
    if "estimator" in objective.uses:
        importance = module.importance(batch.tokens, batch.maskable, torch.full((N,), 0.5))
        is_tensor(importance, "importance", torch.float32, (N, L))
        holds((importance >= 0) & (importance <= 1), "importance must be in [0, 1]")


def check_gradient(objective: Any) -> None:
    """Check that the loss has a gradient for every trained weight."""
    module = _small(objective)
    for step in range(3):
        module.loss(_batch(step))["loss"].backward()
    holds_gradients(module)


def check_micro_batches(objective: Any) -> None:
    """Check that the loss is a mean over rows, so that the weighted mean over micro-batches is the batch's loss."""
    module, batch, by_sizes = _small(objective), _batch(), []
    for sizes in ([N], [3, 5], [1] * N):
        module.zero_grad()
        total = torch.zeros(())
        for rows in torch.split(torch.arange(N), sizes):
            some = {name: getattr(batch, name)[rows] for name in ("tokens", "maskable", "index")}
            loss = module.loss(attrs.evolve(batch, **some))["loss"] * len(rows) / N
            loss.backward()
            total += loss.detach()
        gradients = [p.grad.flatten().clone() for p in module.parameters() if p.grad is not None]
        by_sizes.append((total, torch.cat(gradients)))
    (whole, whole_gradient), *others = by_sizes
    for loss, gradient in others:
        close(loss, whole, 1e-4 * float(whole.abs()), "the loss must not depend on the micro-batch size")
        close(
            gradient,
            whole_gradient,
            1e-3 * float(whole_gradient.abs().max()),
            "the gradient must not depend on the micro-batch size",
        )


def check_padding(objective: Any) -> None:
    """Check that the loss and the bound include only maskable tokens."""
    module, batch = _small(objective), _batch()
    empty = ~batch.maskable.any(1)
    tokens = torch.where(empty[:, None], (batch.tokens + 1) % V, batch.tokens)
    other = module.loss(_batch(tokens=tokens))["loss"]
    close(other, module.loss(batch)["loss"], 1e-5, "a row without maskable tokens must add 0 to the loss")
    with torch.no_grad():
        bounds = module.eval().bound(batch.tokens, batch.maskable, _keys(N), *_METHOD)
        for name, estimate in bounds.items():
            holds(estimate.contribution[~batch.maskable] == 0, f"{name}: only maskable tokens may add to the bound")


def check_leak(objective: Any) -> None:
    """Check that the loss does not depend on the tokens it predicts, using a token that occurs once in each row."""
    hidden = V - 1
    tokens = _batch().tokens % hidden
    tokens[:, -1] = hidden
    maskable = torch.zeros(N, L, dtype=torch.bool)
    maskable[:, -1] = True
    module = _small(objective)
    for step in range(3):
        module.loss(_batch(step, tokens=tokens, maskable=maskable))["loss"].backward()
    holds(
        module.backbone.embedding.weight.grad[hidden] == 0, "the loss of a masked token must not depend on that token"
    )


def check_objective_bound(objective: Any) -> None:
    """Check that no bound of an exact network is below the entropy, and that a row's bound ignores the other rows."""
    joint = toy()
    context = Context(vocabulary_size=joint.vocabulary_size, length=joint.length, width=joint.vocabulary_size)
    backbone = ExactBackbone(joint, shifted=getattr(objective, "shifted", False))
    module = _assembled(objective, context, backbone=backbone).double().eval()
    x = joint.states.repeat(_REPEATS, 1)
    maskable, keys, some = torch.ones_like(x, dtype=torch.bool), _keys(len(x)), slice(5, 9)
    with torch.no_grad():
        bounds = module.bound(x, maskable, keys, *_METHOD)
        alone = module.bound(x[some], maskable[some], keys[some], *_METHOD)
        masks = module.masks(maskable, keys, *_METHOD)
        own = average(lambda *at: {"": module.cross_entropy(*at)}, x, masks, joint.mask_id)[""]
    assert "nelbo" in bounds, "the bound under uniform masking must be named nelbo"
    for name, estimate in bounds.items():
        _holds_bound(joint, estimate.nelbo, name)
        promise = f"{name}: a row's bound must depend on its key, not on the rest of the batch"
        close(alone[name].contribution, estimate.contribution[some], 1e-8, promise)
    first = next(iter(bounds.values()))
    close(own.weight, first.weight, 1e-9, "masks() must return the masks of the first bound")
    close(
        own.contribution,
        first.contribution,
        1e-6,
        "cross_entropy() must return the loss over which the first bound averages",
    )


def check_denoiser(objective: Any) -> None:
    """Check that the denoiser returns a distribution over V tokens per requested position, whatever the other rows."""
    module = _small(objective).eval()
    denoiser = module.denoiser()
    # The leftmost mask of each row, or the first mask in the order of a model that has an order.
    position, first = torch.arange(L), torch.arange(N) % L
    turn = denoiser.step_of(position)
    order = position if turn is None else turn * L + position
    z = torch.where(order >= order[first][:, None], V, _batch().tokens)
    where = position == first[:, None]
    with torch.no_grad():
        log_probs = denoiser(z, None, where)
        assert log_probs.shape == (N, V), (
            f"log-probabilities must be [N, V] for N requested positions and V tokens, not {list(log_probs.shape)}"
        )
        close(log_probs.logsumexp(-1), torch.zeros(N), 1e-4, "the probabilities of a position must sum to 1")
        by_pairs = denoiser(z, None, (torch.arange(N), first))
        close(by_pairs, log_probs, 1e-5, "indices in `where` must give the same log-probabilities as a mask")
        close(
            denoiser(z[2:3], None, where[2:3]), log_probs[2:3], 1e-4, "a row must not depend on the rest of its batch"
        )


PROMISES: dict[str, Callable[..., None]] = {
    "loss": check_loss,
    "gradient": check_gradient,
    "micro_batches": check_micro_batches,
    "padding": check_padding,
    "leak": check_leak,
    "bound": check_objective_bound,
    "denoiser": check_denoiser,
}


def check_objective(objective: Any) -> None:
    """Check the contract of an objective."""
    for check in PROMISES.values():
        check(objective)


def check_bound(bound: Any) -> None:
    """Check that a bound estimator is unbiased, within 6 standard errors, and a function of its keys."""
    assert isinstance(bound.quantity or None, str), "`quantity` must be a nonempty string"
    joint = toy()
    x = joint.states.repeat(_REPEATS, 1)
    maskable, keys = torch.ones_like(x, dtype=torch.bool), _keys(len(x))
    state = torch.get_rng_state()
    _holds_bound(joint, _estimated(bound, joint.denoiser, x, maskable, keys).nelbo, bound.quantity)
    # An arbitrary denoiser, so that every mask has a different loss and a wrong weight shows in each sequence.
    hashed = Hashed(joint.vocabulary_size)
    estimate = _estimated(bound, hashed, x, maskable, keys)
    if bound.quantity == "nelbo":
        exact = enumerate_masks(from_denoiser(hashed), joint.states, mask_id=joint.mask_id)
        mean, error = _mean(estimate.nelbo, len(joint.states))
        near = (mean - exact).abs() <= _ERRORS * error + 1e-9
        holds(near, "the mean of the estimates must be the bound", mean / exact)
    maskable[::2, 1] = False
    estimate, again = (_estimated(bound, hashed, x, maskable, keys) for _ in range(2))
    assert torch.equal(again.contribution, estimate.contribution), "the same keys must give the same estimate"
    some = slice(3, 5)
    alone = _estimated(bound, hashed, x[some], maskable[some], keys[some])
    close(alone.contribution, estimate.contribution[some], 1e-9, "a row must not depend on the rest of its batch")
    other = _estimated(bound, hashed, x, maskable, keys + 1)
    assert not torch.equal(other.contribution, estimate.contribution), "different keys must draw different masks"
    assert torch.equal(torch.get_rng_state(), state), "all random numbers must come from the keys"


def _estimated(bound: Any, denoiser: Any, x: Tensor, maskable: Tensor, keys: Tensor) -> Any:
    """Return the `Estimate` of a bound for a denoiser."""
    losses = from_denoiser(denoiser)
    masks = list(bound.masks(maskable, keys, _DRAWS, LinearNoise()))
    for mask in masks:
        holds(maskable | ~mask.masked, "tokens that are not maskable must not be masked")
        holds(mask.weight.isfinite() & (mask.weight >= 0), "weights must be finite and not negative")
    return average(lambda *z: {"nelbo": losses(*z)}, x, masks, denoiser.mask_id)["nelbo"]


def _holds_bound(joint: Joint, nelbo: Tensor, name: str) -> None:
    """Check that the mean of estimates [R·S], R for each of S states, is not below the entropy."""
    mean, error = _mean(nelbo, len(joint.p))
    expected, off = float((joint.p * mean).sum()), float((joint.p * error).square().sum().sqrt())
    seen = f"it is {expected:.4f} ± {off:.4f} nats, but the entropy is {joint.entropy:.4f}"
    promise = f"{name}: a bound must not be below the entropy of the text; {seen}"
    assert expected >= joint.entropy - _ERRORS * off - 1e-6, promise


def _mean(nelbo: Tensor, states: int) -> tuple[Tensor, Tensor]:
    """Return the mean [S] of each state's estimates and its standard error [S], given `nelbo` [R·S]."""
    each = nelbo.double().view(-1, states)
    return each.mean(0), each.std(0) / len(each) ** 0.5


def _keys(rows: int) -> Tensor:
    return sequence_keys(0, "evaluation", torch.arange(rows))


def _assembled(objective: Any, context: Context, **parts: Any) -> Any:
    zoo = Zoo.load()
    tables: dict[str, Any] = {**TABLES, **_SMALL, **parts}
    tables["estimator"] = {**tables["estimator"], "reads": getattr(objective, "importance_reads", "x")}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = {
            kind: zoo.build(kind, table, context) if isinstance(table := tables[kind], str | dict) else table
            for kind in sorted(objective.uses)
        }
        return objective.build(context, made, N)


def _small(objective: Any) -> Any:
    context = Context(vocabulary_size=V, length=L, width=16, steps=100, seed=5)
    return randomised(_assembled(objective, context)).train()


def _batch(step: int = 0, **changes: Tensor) -> Batch:
    """Return the global batch of a step with `changes`; rows end with padding, and one consists entirely of padding."""
    tokens = torch.randint(0, V, (N, L), generator=torch.Generator().manual_seed(step))
    maskable = torch.arange(L) < torch.tensor([L, 3, 0, L, L, 5, L, 1])[:, None]
    whole = {"tokens": tokens, "maskable": maskable, "index": torch.arange(N) + step * N} | changes
    return Batch(**whole, mean_maskable=whole["maskable"].sum(1).float().mean(), progress=0.1)
