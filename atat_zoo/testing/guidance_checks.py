"""Checks of guidance and classifiers, with a `toys.Hashed` denoiser that gives some tokens probability 0."""

from typing import Any

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor

from atat_zoo.data.tokenizers.components import CharactersTokenizer
from atat_zoo.diffusion.positions import Where, pairs
from atat_zoo.generation.classifiers import Classifier, Differentiable
from atat_zoo.generation.guidance import Guidance
from atat_zoo.generation.samplers.published_samplers import AncestralSampler
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.testing.batches import for_examples, is_tensor
from atat_zoo.testing.sampler_checks import noisy
from atat_zoo.testing.toys import Hashed, hashed_importance

LONGEST = 16
_DRAWN = {"rows": st.integers(1, 4), "seed": st.integers(0, 2**31)}


class Gappy(Hashed):
    """A `Hashed` denoiser in float32 that gives probability 0 to about a fifth of the tokens at each position."""

    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return log-probabilities, float32 [N, V]."""
        log_probs = super().__call__(tokens, t, where)
        excluded = (log_probs.exp() * 1e6).floor() % 5 == 0
        excluded[:, 0] = False
        return log_probs.masked_fill(excluded, -torch.inf).log_softmax(-1).float()


def toy_text_generator(*, weighed: bool = True, seed: int = 0, sharpness: float = 3.0) -> TextGenerator:
    """Return a text generator for text8's 27 symbols with a `Gappy` denoiser; `weighed` adds importance."""
    tokenizer = CharactersTokenizer().train(lambda: iter(()))
    importance = hashed_importance if weighed else None
    denoiser = Gappy(tokenizer.vocabulary_size, sharpness=sharpness, seed=seed, window=LONGEST, importance=importance)
    return TextGenerator(denoiser=denoiser, tokenizer=tokenizer, length=LONGEST)


def check_guidance(guidance: Guidance, examples: int = 30, *, start: str = "") -> None:
    """Check the contract of guidance on rows that begin with `start`: a valid denoiser and unchanged prompts."""

    @for_examples(examples, length=st.integers(len(start) + 1, LONGEST), weighed=st.booleans(), **_DRAWN)
    def holds(rows: int, length: int, seed: int, weighed: bool) -> None:
        text_generator = toy_text_generator(weighed=weighed, seed=seed)
        guided = guidance.guide(text_generator)
        assert isinstance(guided, TextGenerator), "guide() must return a TextGenerator"
        for name in ("tokenizer", "length", "special", "device"):
            assert getattr(guided, name) == getattr(text_generator, name), f"guide() must not change {name}"
        for name in ("mask_id", "reads_time", "window", "block_size"):
            assert getattr(guided.denoiser, name) == getattr(text_generator.denoiser, name), (
                f"guide() must not change {name}"
            )
        assert isinstance(guided.cost, int), "cost must be an integer number of forward passes"
        assert guided.cost >= text_generator.cost, "guidance must not lower the cost"
        mask_id = text_generator.tokenizer.vocabulary_size
        z = noisy(rows, length, mask_id, seed)
        z[:, : len(start)] = torch.tensor(text_generator.tokenizer.encode(start), dtype=torch.int64)
        kept, where = z.clone(), z == mask_id

        before, after = text_generator.denoiser(z, None, where), guided.denoiser(z, None, where)
        assert torch.equal(z, kept), "the denoiser must not change the caller's tokens"
        is_tensor(after, "guided log-probabilities", before.dtype, before.shape)
        assert not bool(after.isnan().any()), "log-probabilities must not be NaN"
        assert bool((after.logsumexp(-1).abs() < 1e-4).all()), "guided probabilities must sum to 1"
        assert bool((after[before == -torch.inf] == -torch.inf).all()), "guidance must not raise a probability of 0"
        assert torch.equal(guided.denoiser(z, None, pairs(where)), after), (
            "indices of rows and positions in `where` must give the same log-probabilities as a mask"
        )
        for row in range(rows):
            alone = guided.denoiser(z[row : row + 1], None, where[row : row + 1])
            mine = after[where.nonzero()[:, 0] == row]
            assert torch.allclose(alone.exp(), mine.exp(), atol=1e-5), (
                "the result for a row must not depend on the rest of the batch"
            )

        importance = guided.denoiser.importance(z.masked_fill(where, seed % mask_id), where)
        assert (importance is not None) is guided.denoiser.estimates_importance, (
            "importance() must return a tensor if estimates_importance is True, and None otherwise"
        )
        if importance is not None:
            assert importance.shape == z.shape, "importance must have the shape of the tokens, [B, L]"
            assert bool(((importance >= 0) & (importance <= 1)).all()), "importance must be in [0, 1]"

        made = guided.fill(AncestralSampler(steps=4), z, seed=seed)
        assert torch.equal(made.tokens[~where], kept[~where]), "given tokens must not be changed"
        assert bool(((made.tokens >= 0) & (made.tokens < mask_id)).all()), (
            "the sampler must fill every mask with a token"
        )
        assert bool((made.nfe <= made.max_nfe).all()), "the sampler must not make more forward passes than max_nfe"
        denoiser: Any = text_generator.denoiser
        denoiser.evaluated = 0
        assert torch.equal(guided.fill(AncestralSampler(steps=4), z, seed=seed).tokens, made.tokens), (
            "the same seed must give the same text"
        )
        assert denoiser.evaluated == int(made.nfe.sum()), "nfe must be the number of forward passes"

    # With strength 0, guide() returns its argument unless words are banned.
    part: Any = guidance
    if attrs.has(type(part)) and hasattr(part, "strength") and not getattr(part, "ban", ()):
        text_generator = toy_text_generator()
        assert attrs.evolve(part, strength=0.0).guide(text_generator) is text_generator, (
            "with strength 0, guide() must return its argument"
        )


def check_classifier(classifier: Classifier, examples: int = 30) -> None:
    """Check the contract of a classifier: one log-probability per noised row, and the same for embedded inputs."""
    text_generator = toy_text_generator()
    model = classifier.build(text_generator.tokenizer, LONGEST)

    @for_examples(examples, length=st.integers(1, LONGEST), **_DRAWN)
    def holds(rows: int, length: int, seed: int) -> None:
        z = noisy(rows, length, text_generator.tokenizer.vocabulary_size, seed)
        kept = z.clone()
        log_prob = model(z)
        assert torch.equal(z, kept), "the classifier must not change the caller's tokens"
        assert log_prob.shape == (rows,), "the classifier must return one log-probability per text"
        assert bool((log_prob <= 0).all()), "a log-probability must be at most 0"
        alone = torch.cat([model(z[i : i + 1]) for i in range(rows)])
        assert torch.allclose(alone, log_prob, atol=1e-4), (
            "the result for a row must not depend on the rest of the batch"
        )
        if isinstance(model, Differentiable):
            embedded = model.embedded(model.table[z])
            assert torch.allclose(embedded, log_prob, atol=1e-4), (
                "embedded() must return the same log-probability as for the tokens of the embeddings"
            )
