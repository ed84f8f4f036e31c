"""Token sampling, which samples tokens from log-probabilities. Shapes: M tokens to sample, V predictable tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from atat_zoo.generation.samplers import SamplerComponent
from atat_zoo.registry import component, component_param, param

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.decoding_step import Step


class TokenSampling(SamplerComponent, Protocol):
    """A component of the kind `token_sampling`, which samples tokens from its `distribution`.

    `distribution` determines both the sampled token and its probability (docs/explanation/mathematics.md).
    """

    @property
    @override
    def accepts_padding(self) -> bool:
        return True

    def distribution(self, log_probs: Tensor, step: Step, rows: Tensor) -> tuple[Tensor, float | Tensor]:
        """Return scores [M, V] and a temperature, a number or [M], with p ∝ exp(score / temperature), greedy at 0.

        `log_probs` are the SUBS log-probabilities [M, V] at `rows` of the step, int64 [M]. Zero probabilities stay
        zero.
        """
        ...

    def __call__(self, log_probs: Tensor, keys: Tensor, step: Step, rows: Tensor) -> Tensor:
        """Return one token per distribution, int64 [M], sampled with keys of (row seed, step, position), int64 [M]."""
        from atat_zoo.diffusion.categorical import draw

        scores, temperature = self.distribution(log_probs, step, rows)
        return draw(scores, keys, temperature)

    def log_prob(self, tokens: Tensor, log_probs: Tensor, step: Step, rows: Tensor) -> Tensor:
        """Return the log-probability, in nats, of sampling each token, float64 [M], for tokens int64 [M]."""
        from atat_zoo.diffusion.categorical import log_prob

        scores, temperature = self.distribution(log_probs, step, rows)
        return log_prob(scores, tokens, temperature)


@component
class CategoricalTokenSampling(TokenSampling):
    """Categorical sampling in float64 that inverts the cumulative distribution.

    In float32, truncation of the tail lowers the effective temperature (Zheng et al., arXiv:2409.02908). One uniform
    float64 number per position is as exact as Gumbel-max in float64, which needs one for each token of the vocabulary.
    """

    name = "categorical"
    summary = "categorical sampling in float64, with a temperature"
    refs = ("arXiv:2409.02908",)

    temperature: float = param(1.0, help="sampling temperature; 0 is greedy", ge=0)

    @override
    def distribution(self, log_probs: Tensor, step: Step, rows: Tensor) -> tuple[Tensor, float | Tensor]:
        return log_probs, self.temperature


@component
class ConfidenceTemperedTokenSampling(TokenSampling):
    """Categorical sampling at temperature (1 − c) · `uncertain_temperature` + c · `confident_temperature`.

    c is the running confidence of a sequence: the mean over the last `window` decoding steps of max p_θ at its masks.
    """

    name = "confidence_tempered"
    summary = "categorical sampling with a temperature that depends on the mean confidence in the last decoding steps"
    refs = ("ATAT",)
    needs = frozenset({"history"})

    confident_temperature: float = param(0.8, help="temperature at a running confidence of 1", gt=0)
    uncertain_temperature: float = param(1.0, help="temperature at a running confidence of 0", gt=0)
    window: int = param(5, help="number of most recent decoding steps over which confidence is averaged", ge=1)

    @override
    def distribution(self, log_probs: Tensor, step: Step, rows: Tensor) -> tuple[Tensor, float | Tensor]:
        assert step.history is not None
        running = step.history[:, -self.window :].nanmean(1)
        return log_probs, (
            self.uncertain_temperature + running * (self.confident_temperature - self.uncertain_temperature)
        )[rows]


@component
class TopKTokenSampling(TokenSampling):
    """Top-k sampling from the k most probable tokens, renormalised (Fan et al., arXiv:1805.04833)."""

    name = "top_k"
    summary = "top-k sampling, with a temperature"
    refs = ("arXiv:1805.04833",)

    k: int = param(50, help="k, the number of most probable tokens to sample from", ge=1)
    temperature: float = param(1.0, help="sampling temperature; 0 is greedy", ge=0)

    @override
    def distribution(self, log_probs: Tensor, step: Step, rows: Tensor) -> tuple[Tensor, float | Tensor]:
        from atat_zoo.diffusion.categorical import top_k

        return top_k(log_probs, self.k), self.temperature


@component
class NucleusTokenSampling(TokenSampling):
    """Nucleus sampling from the fewest tokens with total probability ≥ `top_p` (Holtzman et al., arXiv:1904.09751).

    The temperature is applied first.
    """

    name = "nucleus"
    summary = "top-p (nucleus) sampling, with a temperature"
    refs = ("arXiv:1904.09751",)

    top_p: float = param(0.9, help="p, total probability of the nucleus; 1 excludes no token", gt=0, le=1)
    temperature: float = param(1.0, help="sampling temperature; 0 is greedy", ge=0)

    @override
    def distribution(self, log_probs: Tensor, step: Step, rows: Tensor) -> tuple[Tensor, float | Tensor]:
        from atat_zoo.diffusion.categorical import nucleus

        if self.temperature == 0:
            return log_probs, 0.0
        return nucleus(log_probs, self.top_p, self.temperature), self.temperature


@component
class MinPTokenSampling(TokenSampling):
    """Min-p sampling from the tokens with at least p times the highest probability (Nguyen et al., arXiv:2407.01082).

    The temperature is applied first.
    """

    name = "min_p"
    summary = "min-p sampling: tokens with at least p times the highest probability, with a temperature"
    refs = ("arXiv:2407.01082",)

    p: float = param(0.1, help="p, minimum probability of a token relative to the most probable token", gt=0, le=1)
    temperature: float = param(1.0, help="sampling temperature; 0 is greedy", ge=0)

    @override
    def distribution(self, log_probs: Tensor, step: Step, rows: Tensor) -> tuple[Tensor, float | Tensor]:
        least = log_probs.amax(-1, keepdim=True) + self.temperature * math.log(self.p)
        return log_probs.masked_fill(log_probs < least, -math.inf), self.temperature


@component
class GreedyLastTokenSampling(TokenSampling):
    """Greedy sampling in the last allowed decoding step (MDLM's noise-removal step), and `token_sampling` before it."""

    name = "greedy_last"
    summary = "greedy sampling in the last decoding step, and a different token sampling in all others"
    refs = ("arXiv:2406.07524",)

    token_sampling: TokenSampling = component_param(
        "token_sampling", "categorical", help="token sampling in all steps except the last"
    )

    @property
    @override
    def needs(self) -> frozenset[str]:
        return self.token_sampling.needs

    @override
    def distribution(self, log_probs: Tensor, step: Step, rows: Tensor) -> tuple[Tensor, float | Tensor]:
        import torch

        scores, temperature = self.token_sampling.distribution(log_probs, step, rows)
        # The last step that the row allows, not the last of the batch.
        last = step.number + 1 >= step.max_steps
        if not bool(last.any()):
            return scores, temperature
        only = torch.full_like(scores, -torch.inf).scatter_(1, log_probs.argmax(-1, keepdim=True), 0.0)
        there = last.to(rows.device, non_blocking=True)[rows]
        return torch.where(there.unsqueeze(1), only, scores), temperature
