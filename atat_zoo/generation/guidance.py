"""Guidance: wraps a `TextGenerator` in one with a guided denoiser, for any sampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal, Protocol

import attrs
from typing_extensions import override

from atat_zoo.data import is_framed
from atat_zoo.registry import component, component_param, param
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.positions import Where
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.classifiers import Classifier as ClassifierPart
    from atat_zoo.generation.text_generator import TextGenerator


class Guidance(Protocol):
    """A component of the kind guidance.

    The guided p_θ is normalised, and tokens with probability 0 keep it. At strength 0, `guide` returns its argument.
    """

    name: str

    def check(self, experiment: Experiment) -> Iterable[Problem | str]:
        """Yield a problem for each setting of the experiment that does not fit; nothing by default."""
        return ()

    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        """Return a guided text generator; raises `UserError`, for example for a word unknown to the tokenizer."""
        ...


@component
class NoGuidance(Guidance):
    """No guidance: the model's own distribution."""

    name = "none"
    summary = "no guidance"

    @override
    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        return text_generator


@component
class TokenBiasGuidance(Guidance):
    """Adds a bias to the logits of some words, and bans words.

    A word matches with and without a leading space (without only where no word precedes it), as given and, if in lower
    case, capitalised. For a word of one token, p becomes p · exp(s), normalised, with the strength s. A word of n
    pieces is raised piece by piece in each window whose visible tokens match: with m pieces visible, the others get s ·
    (m + 1)/n. In total a complete word gains s, in any order of its pieces, and an incomplete one nothing
    (potential-based shaping, Ng et al., ICML 1999).

    A banned word is never completed, however many tokens are sampled at once: in each window that matches so far, the
    piece at the last masked position is excluded. If a ban excludes all tokens of nonzero probability, it is ignored
    there. Encodings other than the tokenizer's own do not match.
    """

    name = "token_bias"
    summary = "raises or lowers the logits of words or tokens, and bans words"
    refs = ("https://people.eecs.berkeley.edu/~russell/papers/icml99-shaping.pdf", "arXiv:1612.00005")

    words: tuple[str, ...] = param(help="words or phrases to make more probable (less, with a negative strength)")
    strength: float = param(2.0, help="bias added to the logit of a word, in nats; 0 applies only the bans")
    tokens: tuple[int, ...] = param((), help="token ids whose logits get the bias at every position", ge=0)
    ban: tuple[str, ...] = param((), help="words or phrases to ban")

    @override
    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        if not (self.words or self.tokens or self.ban):
            raise UserError('guidance: token_bias has no words; set some, as in guidance.words=["peace"]')
        from atat_zoo.diffusion.terms import Terms
        from atat_zoo.generation.guided_denoiser import GuidedDenoiser, normalised

        raised = Terms(
            text_generator.tokenizer,
            self.words,
            tokens=self.tokens,
            longest=text_generator.length,
            key="guidance.words",
        )
        banned = Terms(text_generator.tokenizer, self.ban, longest=text_generator.length, key="guidance.ban")
        strength = self.strength if raised.forms else 0.0
        if not (strength or banned.forms):
            return text_generator

        def change(log_probs: Tensor, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
            scores = log_probs
            if strength:
                gains = raised.gains(tokens)[where].to(scores.dtype)
                scores = scores.index_add(1, raised.pieces, strength * gains)
            if banned.forms:
                allowed = scores[:, banned.pieces].masked_fill(banned.forbidden(tokens)[where], float("-inf"))
                scores = scores.index_copy(1, banned.pieces, allowed)
            return normalised(scores, log_probs)

        return attrs.evolve(text_generator, denoiser=GuidedDenoiser(text_generator.denoiser, change))


@component
class ImportanceBiasGuidance(Guidance):
    """Raises the importance I of some words to I + s · (1 − I), for samplers that use importance.

    A negative strength gives I + s · I. Complete words are matched in the draft: z with the most probable token at each
    mask. Without an estimator every token has importance ½. p_θ does not change, only the decoding order of samplers
    that use importance, such as `uncertainty_guided`. The estimator `term_bias` does the same in training.
    """

    name = "importance_bias"
    summary = "raises the importance of words, for samplers whose decoding order uses importance"
    refs = ("ATAT",)

    words: tuple[str, ...] = param(help="words or phrases whose importance changes")
    strength: float = param(
        0.5, help="how far importance moves towards 1 (or towards 0, if negative), as a fraction", ge=-1, le=1
    )

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the sampler does not use importance."""
        sampler = experiment.parts["sampler"]
        if not sampler.uses_importance:
            yield Problem(
                "guidance",
                f"importance_bias needs a sampler whose decoding order uses importance, and {sampler.name!r} does "
                'not; set sampler.use = "uncertainty_guided", or choose another guidance',
            )

    @override
    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        if not self.words:
            raise UserError('guidance: importance_bias has no words; set some, as in guidance.words=["peace"]')
        import torch

        from atat_zoo.diffusion.terms import Terms, biased
        from atat_zoo.generation.guided_denoiser import GuidedDenoiser

        terms = Terms(text_generator.tokenizer, self.words, longest=text_generator.length, key="guidance.words")
        if not self.strength:
            return text_generator

        def importance(draft: Tensor, masked: Tensor) -> Tensor:
            # The words are those of the draft, whatever the model's estimator reads.
            reads_x = text_generator.denoiser.importance_reads == "x"
            z = draft if reads_x else draft.masked_fill(masked, text_generator.denoiser.mask_id)
            own = text_generator.denoiser.importance(z, masked)
            if own is None:
                own = torch.full(draft.shape, 0.5, device=draft.device)
            return biased(own, terms.occurrences(draft), self.strength)

        return attrs.evolve(text_generator, denoiser=GuidedDenoiser(text_generator.denoiser, importance=importance))


@component
class ClassifierGuidance(Guidance):
    """Classifier guidance: p(v | z, class) ∝ p(v | z) · (f(z with v at i) / f(z))^s, with f(z) = p(class | z).

    `exact` evaluates the classifier on z with each of the `candidates` most probable tokens at each position; other
    tokens are assumed to leave f unchanged. With all V candidates and s = 1 this is the exact posterior.
    `first_order` takes one gradient of log f at the embedding of z and approximates log f for all tokens at once by
    the step from the mask's embedding to the token's (Dathathri et al., arXiv:1912.02164; Schiff et al.,
    arXiv:2412.10193). It needs a classifier with an embedding.
    """

    name = "classifier"
    summary = "classifier guidance: exact over the most probable tokens, or by a first-order approximation"
    refs = ("arXiv:2412.10193", "arXiv:2105.05233", "arXiv:1912.02164")

    classifier: ClassifierPart = component_param("classifier", attrs.NOTHING, help="classifier of the target class")
    strength: float = param(1.0, help="s, guidance scale: the exponent of p(class | z); 0 disables guidance", ge=0)
    method: Literal["exact", "first_order"] = param(
        "exact", help="exact: evaluate each candidate; first_order: approximate all by one gradient"
    )
    candidates: int = param(50, help="with exact: number of most probable tokens per position that are scored", ge=1)

    @override
    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        if not self.strength:
            return text_generator
        from atat_zoo.generation.classifiers import Differentiable
        from atat_zoo.generation.guided_denoiser import GuidedDenoiser, by_candidates, by_gradient, normalised

        model = self.classifier.build(text_generator.tokenizer, text_generator.length)
        if self.method == "first_order" and not isinstance(model, Differentiable):
            raise UserError(
                'guidance.method: "first_order" takes a gradient at an embedding, and this classifier has none; '
                'use "exact"'
            )

        def change(log_probs: Tensor, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
            if isinstance(model, Differentiable) and self.method == "first_order":
                bias = by_gradient(model, tokens, where)
                return normalised(log_probs + self.strength * bias.to(log_probs), log_probs)
            ids = log_probs.topk(min(self.candidates, log_probs.shape[1])).indices
            bias = by_candidates(model, tokens, where, ids)
            return normalised(log_probs.scatter_add(1, ids, self.strength * bias.to(log_probs)), log_probs)

        return attrs.evolve(text_generator, denoiser=GuidedDenoiser(text_generator.denoiser, change))


@component
class ClassifierFreeGuidance(Guidance):
    """Classifier-free guidance by a prompt c: p ∝ p(v | z, c)^(1+w) · p(v | z, ∅)^(−w).

    The condition c is the text with which every sequence begins (after BOS): a label, or the beginning of a prompt. ∅
    is the same sequence with those tokens masked, as in the training of a masked diffusion model. A model that reads
    from left to right accepts no mask before the predicted position; for it, ∅ is the sequence with the condition's
    tokens `dropped` (Sanchez et al., arXiv:2306.17806), which must be whole blocks for a model with blocks. Every
    decoding step takes two forward passes. A sequence that does not begin with the condition is not guided.
    """

    name = "classifier_free"
    summary = "classifier-free guidance by a prompt; two forward passes per decoding step"
    refs = ("arXiv:2207.12598", "arXiv:2412.10193", "arXiv:2306.17806")

    condition: str = param(help="condition: the text with which the prompt starts")
    strength: float = param(1.0, help="w, guidance scale; 0 disables guidance", ge=0)
    empty: Literal["masked", "dropped"] = param(
        "masked", help="the condition's tokens in the unconditional pass: masked, or dropped (for causal models)"
    )

    @override
    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        """Return a guided text generator, which raises `UserError` if no sequence begins with the condition."""
        if not self.strength:
            return text_generator
        from atat_zoo.generation.guided_denoiser import Contrast, GuidedDenoiser

        ids = text_generator.tokenizer.encode(self.condition)
        begin = int(is_framed(text_generator.special) and text_generator.tokenizer.bos is not None)
        if not ids or begin + len(ids) >= text_generator.length:
            raise UserError(
                f"guidance.condition: {self.condition!r} takes {len(ids)} tokens, and must take at least one and "
                f"fewer than the {text_generator.length} tokens of a sequence; set another"
            )
        block_size = text_generator.denoiser.block_size
        if block_size and self.empty == "masked":
            raise UserError(
                "guidance.empty: this model reads from left to right and accepts no mask before the predicted "
                'position; set it to "dropped"'
            )
        if block_size and len(ids) % block_size:
            raise UserError(
                f"guidance.condition: {self.condition!r} takes {len(ids)} tokens, and a model with blocks of "
                f"{block_size} can only drop whole blocks; lengthen or shorten it"
            )
        dropped = self.empty == "dropped"
        contrast = Contrast(
            text_generator.denoiser, ids, begin, strength=self.strength, dropped=dropped, text=self.condition
        )
        return attrs.evolve(
            text_generator, denoiser=GuidedDenoiser(text_generator.denoiser, contrast), cost=2 * text_generator.cost
        )


@component
class CombinedGuidance(Guidance):
    """Two guidances, the second applied to the result of the first; nest another `combined` for three."""

    name = "combined"
    summary = "two guidances, one applied after the other"

    first: Guidance = component_param("guidance", "none", help="guidance applied first")
    second: Guidance = component_param("guidance", "none", help="guidance applied second")

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem | str]:
        """Yield the problems of both guidances, with keys nested one level deeper."""
        for key, inner in (("guidance.first", self.first), ("guidance.second", self.second)):
            for problem in inner.check(experiment):
                if isinstance(problem, Problem):
                    problem = Problem(key + problem.key.removeprefix("guidance"), problem.text)
                yield problem

    @override
    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        return self.second.guide(self.first.guide(text_generator))
