"""Muon, gradient norms, and gradient clipping, some of them separately for denoiser and importance estimator."""

from types import SimpleNamespace
from typing import Any

import torch
from composer import Callback
from composer.callbacks import OptimizerMonitor
from composer.core import Algorithm, Event, State
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, get_total_norm
from typing_extensions import override

from atat_zoo.training.sharding import local, sharded_like, whole

# The quintic of Jordan et al.: five iterations bring singular values from (0, 1] to about 1.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5


class Muon(torch.optim.AdamW):
    """AdamW, except that groups with `muon = True` use Muon with the scaling of its authors (Jordan et al., 2024).

    Both are one optimizer because Composer saves only one optimizer in a checkpoint.
    """

    def __init__(self, groups: list[dict[str, Any]], **adam: Any) -> None:
        super().__init__([{"muon": False, "momentum": 0.95, **group} for group in groups], **adam)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Perform an optimization step, as `torch.optim.Optimizer.step` does."""
        loss = None
        if closure is not None:
            # Call the closure before the groups are separated, because it clears the gradients of all groups.
            with torch.enable_grad():
                loss = closure()
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if not group["muon"]]
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            if group["muon"]:
                self._step(group)
        return loss

    def _step(self, group: dict[str, Any]) -> None:
        rate, momentum = group["lr"], group["momentum"]
        for weight in group["params"]:
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight.grad)
                state["step"] = torch.zeros(())  # AdamW requires a step in every state that it loads
            state["step"] += 1
            average = state["momentum"].lerp_(weight.grad, 1 - momentum)
            # Nesterov: the gradient, moved towards the updated average.
            update = orthogonalise(whole(torch.lerp(weight.grad, average, momentum)))
            weight.mul_(1 - rate * group["weight_decay"])
            # Per entry, the step of a tall matrix equals that of a square matrix of the same width.
            weight.add_(sharded_like(update, weight), alpha=-rate * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5)


def linear_weights(module: nn.Module) -> list[nn.Parameter]:
    """Return the trained weights of the linear layers, except layers with one input or one output."""
    linear = {id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Linear)}
    return [p for p in module.parameters() if p.requires_grad and id(p) in linear and min(p.shape) > 1]


def orthogonalise(matrix: Tensor) -> Tensor:
    """Return the matrix [m, n] with its singular values moved close to 1 by Newton–Schulz iterations in bfloat16."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return (x.T if tall else x).to(matrix.dtype)


def parameters_by_part(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the parameters of the importance estimator as `estimator`, and all other parameters as `denoiser`."""
    parts: dict[str, list[nn.Parameter]] = {"denoiser": [], "estimator": []}
    for name, parameter in model.named_parameters():
        parts["estimator" if "estimator" in name.split(".") else "denoiser"].append(parameter)
    return parts


class ClippingByPart(Algorithm):
    """An algorithm that clips the gradient norms of importance estimator and denoiser separately."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    @override
    def match(self, event: Event, state: State) -> bool:
        return bool(event == Event.AFTER_TRAIN_BATCH)

    @override
    def apply(self, event: Event, state: State, logger: Any) -> None:
        for parameters in parameters_by_part(state.model).values():
            clip_grad_norm_(parameters, self.threshold)


class AdaptiveClipping(Algorithm):
    """An algorithm that clips the gradient of each output unit relative to its weight norm (Brock et al., 2021).

    Composer's version has no minimum for the weight norm, so weights that start at zero would stay zero.
    """

    def __init__(self, threshold: float, floor: float = 1e-3) -> None:
        self.threshold, self.floor = threshold, floor

    @override
    def match(self, event: Event, state: State) -> bool:
        return bool(event == Event.AFTER_TRAIN_BATCH)

    @override
    @torch.no_grad()
    def apply(self, event: Event, state: State, logger: Any) -> None:
        for weight in state.model.parameters():
            if weight.grad is not None:
                most = self.threshold * _norms(weight).clamp(min=self.floor)
                local(weight.grad).mul_((most / _norms(weight.grad).clamp(min=1e-6)).clamp(max=1))


def _norms(tensor: Tensor) -> Tensor:
    """Return the norm of a vector, or of each row of this rank's shard of a matrix; rows are never split."""
    if tensor.ndim < 2:
        return whole(tensor).norm()
    return local(tensor).flatten(1).norm(dim=1).view(-1, *[1] * (tensor.ndim - 1))


class NormMonitor(OptimizerMonitor):
    """Composer's OptimizerMonitor, which logs only the global gradient norm unless `tensors` is True."""

    def __init__(self, every: int, *, tensors: bool) -> None:
        super().__init__(log_optimizer_metrics=False, batch_log_interval=every)
        self.tensors = tensors

    @override
    def batch_end(self, state: State, logger: Any) -> None:
        found: dict[str, float] = {}
        collecting: Any = SimpleNamespace(log_metrics=found.update)
        super().batch_end(state, collecting)
        if kept := {name: norm for name, norm in found.items() if self.tensors or name == "l2_norm/grad/global"}:
            logger.log_metrics(kept)


class GradientNorms(Callback):
    """A callback that logs the gradient norms of denoiser and importance estimator every `every` steps."""

    def __init__(self, every: int) -> None:
        self.every = every

    @override
    def batch_end(self, state: State, logger: Any) -> None:
        if state.timestamp.batch.value % self.every:
            return
        for part, parameters in parameters_by_part(state.model).items():
            if gradients := [parameter.grad for parameter in parameters if parameter.grad is not None]:
                logger.log_metrics({f"gradient_norm/{part}": float(whole(get_total_norm(gradients)))})
