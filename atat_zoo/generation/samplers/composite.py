"""Base classes of samplers that are composed of five components."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from typing_extensions import override

from atat_zoo.generation.samplers import Observer, Sample, Sampler
from atat_zoo.generation.samplers.order import Order
from atat_zoo.generation.samplers.sampler_choices import SamplerChoices
from atat_zoo.generation.samplers.token_sampling import CategoricalTokenSampling, TokenSampling
from atat_zoo.generation.samplers.tokens_per_step import TokensPerStep
from atat_zoo.registry import component_base, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from atat_zoo.diffusion.contracts import Denoiser
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.samplers.teacher_forcing import TeacherForcing


class FillingSampler(Sampler):
    """A sampler whose steps fill in either sampled tokens or the tokens of a known sequence."""

    @abstractmethod
    def fill(
        self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, observe: Observer | None, forced: TeacherForcing | None
    ) -> Sample:
        """Fill every mask with sampled or `forced` tokens, and return the `Sample`; see `Sampler`."""

    @override
    def sample(self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, *, observe: Observer | None = None) -> Sample:
        return self.fill(denoiser, tokens, seeds, observe, None)

    @override
    def score_text(
        self,
        denoiser: Denoiser,
        tokens: Tensor,
        seeds: Tensor,
        forced: TeacherForcing,
        *,
        observe: Observer | None = None,
    ) -> Sample:
        if self.no_policy_bound_because:
            return super().score_text(denoiser, tokens, seeds, forced, observe=observe)  # raises
        return self.fill(denoiser, tokens, seeds, observe, forced)


class CompositeSampler(FillingSampler):
    """A sampler composed of the five components that a subclass returns from `parts`."""

    @abstractmethod
    def parts(self) -> SamplerChoices:
        """Return the five components as one object."""

    def __attrs_post_init__(self) -> None:
        self.parts()

    @property
    @override
    def causal(self) -> bool:
        return self.parts().causal

    @property
    @override
    def uses_importance(self) -> bool:
        return "importance" in self.parts().needs

    @property
    @override
    def accepts_padding(self) -> bool:
        return all(part.accepts_padding for part in self.parts().all)

    @property
    @override
    def no_policy_bound_because(self) -> str | None:
        parts = self.parts()
        if parts.remasking.active:
            return "it remasks sampled tokens"
        # Only remasking reads the confidence that tokens had when they were sampled.
        return "it uses the sampled tokens to choose their positions" if "drawn" in parts.needs else None

    @property
    @override
    def deterministic(self) -> bool:
        parts = self.parts()
        return all(part.deterministic for part in (parts.order, parts.tokens_per_step, parts.stopping_rule))

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem | str]:
        parts = self.parts()
        for part in parts.all:
            yield from part.check(experiment)
        yield from parts.incompatibilities()

    @override
    def fill(
        self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, observe: Observer | None, forced: TeacherForcing | None
    ) -> Sample:
        from atat_zoo.generation.samplers.loop import run

        return run(self.parts(), denoiser, tokens, seeds, observe=observe, forced=forced)


@component_base
class TemperedSampler(CompositeSampler):
    """A sampler with a temperature and, unless a subclass overrides `token_sampling`, categorical sampling."""

    temperature: float = param(1.0, help="sampling temperature; 0 is greedy", ge=0)

    @property
    def token_sampling(self) -> TokenSampling:
        """Categorical sampling at the sampler's temperature."""
        return CategoricalTokenSampling(temperature=self.temperature)

    def in_order(self, order: Order, tokens_per_step: TokensPerStep) -> SamplerChoices:
        """Return five components: these two, `token_sampling`, no remasking, and no early stopping."""
        return SamplerChoices(order=order, tokens_per_step=tokens_per_step, token_sampling=self.token_sampling)


@component_base
class SteppedSampler(TemperedSampler):
    """A sampler with a fixed number of decoding steps."""

    steps: int = param(64, help="T, the number of decoding steps (maximum NFE)", ge=1)


@component_base
class CappedSampler(TemperedSampler):
    """A sampler with a variable number of decoding steps, optionally up to a maximum."""

    steps: int | None = param(None, help="maximum NFE; default: one forward pass per token", ge=1)
