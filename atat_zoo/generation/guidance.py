"""Guidance, which gives a `TextGenerator` a guided denoiser and works with any sampler."""

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
    """A component of the kind `guidance`.

    The guided p_θ is normalised, and a token with probability 0 keeps that probability. If the guidance has no effect,
    for example because its strength is 0, `guide` returns its argument.
    """

    name: str

    def check(self, experiment: Experiment) -> Iterable[Problem | str]:
        """Yield a problem for each incompatible setting of the experiment; by default yield nothing."""
        return ()

    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        """Return a guided text generator, or raise a `UserError`, for example if a word cannot be encoded."""
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
    """A bias on the logits of some words, and a ban on others.

    A word matches with and without a leading space (without one only where no word precedes it), both as given and, if
    it is in lower case, capitalised. With the strength s, the probability p of a one-token word becomes p · exp(s),
    normalised. A word of n pieces gets its bias piece by piece in each window whose visible tokens match: with m pieces
    visible, each of the others gets s · (m + 1)/n. In total a complete word gains s, whatever the order of its pieces,
    and an incomplete word gains nothing (potential-based shaping, Ng et al., ICML 1999).

    A banned word is never completed, however many tokens are sampled at once: in each window whose visible tokens
    match, the piece at the last masked position is excluded. The bans are ignored at a position at which they would
    exclude every token of nonzero probability. Only the tokenizer's own encoding of a word matches.
    """

    name = "token_bias"
    summary = "logit bias for words or tokens, and a ban on words"
    refs = ("https://people.eecs.berkeley.edu/~russell/papers/icml99-shaping.pdf", "arXiv:1612.00005")

    words: tuple[str, ...] = param(
        help="words or phrases to make more probable (less probable with a negative strength)"
    )
    strength: float = param(2.0, help="bias added to the logit of a word, in nats; 0 applies only the bans")
    tokens: tuple[int, ...] = param((), help="ids of tokens whose logits get the bias at every position", ge=0)
    ban: tuple[str, ...] = param((), help="words or phrases to ban")

    @override
    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        if not (self.words or self.tokens or self.ban):
            raise UserError('guidance: token_bias needs words, tokens or bans; set one, as in guidance.words=["peace"]')
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
    """A bias that raises the importance I of some words to I + s · (1 − I), for samplers that use importance.

    A negative strength gives I + s · I. Complete words are matched in the draft: z with the most probable token at each
    mask. Without an estimator I is ½ for every token. The bias does not change p_θ; it changes only the decoding order
    of samplers that use importance, such as `uncertainty_guided`. The estimator `term_bias` raises the importance of
    words in the same way during training.
    """

    name = "importance_bias"
    summary = "importance bias for words, for samplers whose decoding order uses importance"
    refs = ("ATAT",)

    words: tuple[str, ...] = param(
        help="words or phrases whose importance is raised (lowered with a negative strength)"
    )
    strength: float = param(
        0.5,
        help="s, fraction of the distance to 1 by which importance rises; a negative value lowers it towards 0",
        ge=-1,
        le=1,
    )

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the sampler does not use importance."""
        sampler = experiment.parts["sampler"]
        if not sampler.uses_importance:
            yield Problem(
                "guidance",
                f"importance_bias needs a sampler whose decoding order uses importance, but {sampler.name!r} does "
                'not; set sampler.use = "uncertainty_guided", or choose a different guidance',
            )

    @override
    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        if not self.words:
            raise UserError('guidance: importance_bias has no words; set at least one, as in guidance.words=["peace"]')
        import torch

        from atat_zoo.diffusion.terms import Terms, biased
        from atat_zoo.generation.guided_denoiser import GuidedDenoiser

        terms = Terms(text_generator.tokenizer, self.words, longest=text_generator.length, key="guidance.words")
        if not self.strength:
            return text_generator

        def importance(draft: Tensor, masked: Tensor) -> Tensor:
            # The words are matched in the draft, whatever the model's estimator reads.
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

    `exact` evaluates the classifier on z with each of the `candidates` most probable tokens at each position; all other
    tokens are assumed to leave f unchanged. With all V candidates and s = 1 this is the exact posterior. `first_order`
    takes one gradient of log f at the embedding of z and approximates log f for all tokens at once using the step from
    the mask's embedding to the token's (Dathathri et al., arXiv:1912.02164; Schiff et al., arXiv:2412.10193). It needs
    a classifier with an embedding.
    """

    name = "classifier"
    summary = "classifier guidance: exact over the most probable tokens, or by a first-order approximation"
    refs = ("arXiv:2412.10193", "arXiv:2105.05233", "arXiv:1912.02164")

    classifier: ClassifierPart = component_param("classifier", attrs.NOTHING, help="classifier of the target class")
    strength: float = param(1.0, help="s, guidance scale: the exponent of p(class | z); 0 disables guidance", ge=0)
    method: Literal["exact", "first_order"] = param(
        "exact",
        help="exact: score each candidate with the classifier; first_order: approximate the effect of all "
        "tokens with one gradient",
    )
    candidates: int = param(50, help="number of most probable tokens that `exact` scores at each position", ge=1)

    @override
    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        if not self.strength:
            return text_generator
        from atat_zoo.generation.classifiers import Differentiable
        from atat_zoo.generation.guided_denoiser import GuidedDenoiser, by_candidates, by_gradient, normalised

        model = self.classifier.build(text_generator.tokenizer, text_generator.length)
        if self.method == "first_order" and not isinstance(model, Differentiable):
            raise UserError(
                'guidance.method: "first_order" needs a classifier with an embedding, which this one does not have; '
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
    """Classifier-free guidance with a prompt c: p ∝ p(v | z, c)^(1+w) · p(v | z, ∅)^(−w).

    The condition c is the text with which every sequence begins after BOS: a label, or the beginning of a prompt. ∅ is
    the same sequence with the tokens of c masked, as a masked diffusion model sees them during training. A model that
    reads from left to right accepts no mask before the predicted position; for it, ∅ is the sequence with the
    condition's tokens `dropped` (Sanchez et al., arXiv:2306.17806), which must be whole blocks for a model with blocks.
    Every decoding step takes two forward passes. A sequence that does not begin with the condition is not guided.
    """

    name = "classifier_free"
    summary = "classifier-free guidance with a prompt; two forward passes per decoding step"
    refs = ("arXiv:2207.12598", "arXiv:2412.10193", "arXiv:2306.17806")

    condition: str = param(help="condition c: the text with which every prompt begins")
    strength: float = param(1.0, help="w, guidance scale; 0 disables guidance", ge=0)
    empty: Literal["masked", "dropped"] = param(
        "masked",
        help="how the unconditional pass treats the condition's tokens: masked, or dropped (for causal models)",
    )

    @override
    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        """Return a guided text generator; sampling raises a `UserError` if no sequence begins with the condition."""
        if not self.strength:
            return text_generator
        from atat_zoo.generation.guided_denoiser import Contrast, GuidedDenoiser

        ids = text_generator.tokenizer.encode(self.condition)
        begin = int(is_framed(text_generator.special) and text_generator.tokenizer.bos is not None)
        if not ids or begin + len(ids) >= text_generator.length:
            raise UserError(
                f"guidance.condition: {self.condition!r} takes {len(ids)} tokens, but must take at least one and, "
                f"with BOS, fewer than the {text_generator.length} tokens of a sequence; set a different condition"
            )
        block_size = text_generator.denoiser.block_size
        if block_size and self.empty == "masked":
            raise UserError(
                "guidance.empty: this model reads from left to right and accepts no mask before the predicted "
                'position; set it to "dropped"'
            )
        if block_size and len(ids) % block_size:
            raise UserError(
                f"guidance.condition: {self.condition!r} takes {len(ids)} tokens, but a model with blocks of "
                f"{block_size} can only drop whole blocks; lengthen or shorten the condition"
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
    """Two guidances, the second of which is applied to the result of the first; nest `combined` to apply three."""

    name = "combined"
    summary = "two guidances, one applied after the other"

    first: Guidance = component_param("guidance", "none", help="guidance applied first")
    second: Guidance = component_param("guidance", "none", help="guidance applied second")

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem | str]:
        """Yield the problems of both guidances, with keys that begin with `guidance.first` or `guidance.second`."""
        for key, inner in (("guidance.first", self.first), ("guidance.second", self.second)):
            for problem in inner.check(experiment):
                if isinstance(problem, Problem):
                    problem = Problem(key + problem.key.removeprefix("guidance"), problem.text)
                yield problem

    @override
    def guide(self, text_generator: TextGenerator) -> TextGenerator:
        return self.second.guide(self.first.guide(text_generator))
