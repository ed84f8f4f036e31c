"""Clipping by the norm of all gradients, and by part: each of the two by its own norm."""

from types import SimpleNamespace

import pytest
import torch
from composer import Callback
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from atat_zoo.experiment import load
from atat_zoo.training import train
from atat_zoo.training.algorithms import GradientClippingAlgorithm
from atat_zoo.training.callbacks import GradientNormsCallback, OptimizerMonitorCallback
from atat_zoo.training.optimizers import AdamWOptimizer


def model(sizes):
    """A backbone of two layers and an estimator, nested as Composer has them, with gradients of these norms."""
    backbone, estimator = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), nn.Linear(3, 5)
    whole = nn.ModuleDict({"objective": nn.ModuleDict({"backbone": backbone, "estimator": estimator})})
    for part, size in zip((backbone, estimator), sizes, strict=True):
        for parameter in part.parameters():
            parameter.grad = torch.randn(parameter.shape)
        scale = size / norm(part)
        for parameter in part.parameters():
            parameter.grad *= scale
    return whole, backbone, estimator


def norm(part):
    return torch.cat([p.grad.flatten() for p in part.parameters()]).norm()


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.01, 10))
def test_each_has_at_most_the_threshold_whatever_the_other_has(first, second, threshold):
    whole, *parts = model((first, second))
    before = [p.grad.clone() for p in whole.parameters()]
    GradientClippingAlgorithm(clipping_type="per_module", clipping_threshold=threshold).build().apply(
        None, SimpleNamespace(model=whole), None
    )
    for part, size in zip(parts, (first, second), strict=True):
        assert norm(part).item() == pytest.approx(min(size, threshold), rel=1e-3)
    for old, parameter in zip(before, whole.parameters(), strict=True):
        turned = nn.functional.cosine_similarity(old.flatten(), parameter.grad.flatten(), dim=0)
        assert turned.item() == pytest.approx(1, abs=1e-4)


@given(st.floats(1e-3, 10), st.floats(0.01, 0.5))
def test_adaptively_each_output_has_a_share_of_the_norm_of_its_weights_and_one_at_zero_learns(size, threshold):
    whole, *_ = model((size, size))
    with torch.no_grad():
        whole["objective"]["backbone"][0].weight[1].zero_()
    before = [p.grad.clone() for p in whole.parameters()]
    GradientClippingAlgorithm(clipping_type="adaptive", clipping_threshold=threshold).build().apply(
        None, SimpleNamespace(model=whole), None
    )
    for old, parameter in zip(before, whole.parameters(), strict=True):
        # Brock et al. (arXiv:2102.06171), equation 3: by rows of a matrix, and a vector as one.
        rows = zip(*(t.reshape(-1, t.shape[-1]) for t in (old, parameter.detach(), parameter.grad)), strict=True)
        for was, weight, clipped in rows:
            most = threshold * max(weight.norm().item(), 1e-3)
            torch.testing.assert_close(clipped, was * min(1.0, most / was.norm().item()))
            assert clipped.norm() > 0


class Log(dict):
    log_metrics = dict.update


def logged(made, whole):
    """Return what a callback logs in the last of four steps, and in no other."""
    state, log = SimpleNamespace(model=whole, optimizers=[None], fsdp_enabled=False), Log()
    for step in range(1, 5):
        state.timestamp = SimpleNamespace(batch=SimpleNamespace(value=step))
        made.batch_end(state, log)
        assert bool(log) == (step == 4)
    return log


def test_the_norms_of_both_and_of_all_are_logged():
    whole, backbone, _ = model((7.0, 3.0))
    total = pytest.approx(norm(whole).item())
    assert logged(OptimizerMonitorCallback(every=4).build(), whole) == {"l2_norm/grad/global": total}
    of_tensors = logged(OptimizerMonitorCallback(every=4, tensors=True).build(), whole)
    assert of_tensors.pop("l2_norm/grad/global") == total
    assert set(of_tensors) == {f"l2_norm/grad/{name}" for name, _ in whole.named_parameters()}
    backbone[0].bias.grad = None  # a parameter that is not trained
    of_denoiser = norm(nn.ParameterList([p for p in backbone.parameters() if p.grad is not None]))
    assert logged(GradientNormsCallback(every=4).build(), whole) == {
        "gradient_norm/denoiser": pytest.approx(of_denoiser.item()),
        "gradient_norm/estimator": pytest.approx(3, rel=1e-4),
    }


class OneStep(Callback):
    """The weights before and after a step, and its gradients before clipping."""

    def before_train_batch(self, state, logger):
        self.before = [p.detach().clone() for p in state.model.parameters()]

    def after_backward(self, state, logger):
        self.gradients = [p.grad.clone() for p in state.model.parameters()]

    def batch_end(self, state, logger):
        self.after = [p.detach().clone() for p in state.model.parameters()]
        self.clipped = [p.grad.clone() for p in state.model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_a_training_clips_the_norm_of_all_gradients(tiny, tmp_path, monkeypatch, clip):
    """One step of plain descent: w − 0.5 · g · min(1, clip / |g|)."""
    monkeypatch.setattr(AdamWOptimizer, "build", lambda self, model: torch.optim.SGD(model.parameters(), lr=0.5))
    words = ["train.steps=1", "train.microbatch_size=8", f"train.max_grad_norm={clip}", "train.precision=fp32"]
    words += ["optimizer.use=adamw", "schedule={use='constant', warmup_steps=0}"]
    step = OneStep()
    train(load(str(tiny.path), words), tmp_path / "run", callbacks=[step])
    whole = torch.cat([g.flatten() for g in step.gradients]).norm().item()
    assert whole > 0.02
    share = min(1.0, clip / whole) if clip else 1.0
    assert torch.cat([g.flatten() for g in step.clipped]).norm().item() == pytest.approx(share * whole, rel=1e-3)
    for before, gradient, after in zip(step.before, step.gradients, step.after, strict=True):
        torch.testing.assert_close(after, before - 0.5 * share * gradient, rtol=1e-5, atol=1e-7)
