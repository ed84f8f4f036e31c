"""The one place that writes the word perplexity, and defines its meaning.

A model's perplexity is exp(Σ NELBO / Σ n): of its exact likelihood, or of a bound
on it under uniform masking (MATH 2). Bounds under other forward processes, or of
a number of discrete steps, are exponentials of nats per token as well, and are
called "<name> bound". A test holds every other module to take its words from here.
"""

from __future__ import annotations

import math

NELBO = "nelbo"
PERPLEXITY = "perplexity"
WORD_PERPLEXITY = "perplexity per word"
# Exact, of a model that knows the training tokens' frequencies and nothing else.
UNIGRAM_PERPLEXITY = "unigram perplexity"
# Of generated text, under another model: never of the model that wrote it, and never without entropy and NFE.
GENERATIVE_PERPLEXITY = "generative perplexity"


def title(quantity: str) -> str:
    """Return the name of the exponential of a bound in nats per token."""
    return PERPLEXITY if quantity == NELBO else f"{quantity} bound"


def exponential(nats_per_token: float) -> float:
    """Return e^nats; infinity for a model that has diverged."""
    return math.inf if nats_per_token > 700 else math.exp(nats_per_token)
