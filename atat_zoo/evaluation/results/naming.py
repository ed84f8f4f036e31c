"""The only module that writes the word perplexity, and defines its meaning.

A model's perplexity is exp(Σ NELBO / Σ n), from its exact likelihood or from a bound on it under uniform masking
(docs/mathematics.md). Exponentials of other bounds, such as with a number of discrete steps, are called "<name> bound".
"""

import math

NELBO = "nelbo"
# The same of the answers in dialogues, given what was asked: a conditional bound, which is no perplexity of a text.
ANSWERS = "answers"
NATS_PER_TOKEN = "nats per token"
PERPLEXITY = "perplexity"
WORD_PERPLEXITY = "perplexity per word"
# Exact, of a model that knows only the frequencies of the training tokens.
UNIGRAM_PERPLEXITY = "unigram perplexity"
# Of a count table over neighbouring tokens, on the same tokens under the same masks as the model.
TABLE = "count-table"
# Of generated text, under another model: never of the model that wrote it, and never without entropy and NFE.
GENERATIVE_PERPLEXITY = "generative perplexity"

# Of a sampler along true text (docs/mathematics.md): a bound, exact where the choices of positions are deterministic.
POLICY = "policy"
POLICY_BOUND = "policy bound"
POLICY_LIKELIHOOD = "policy likelihood"
# Two numbers between which the likelihood of a random policy lies (docs/mathematics.md, "A bracket").
BRACKET = "bracket"


def title(quantity: str) -> str:
    """Return the name of the exponential of a bound in nats per token."""
    return PERPLEXITY if quantity == NELBO else f"{quantity} bound"


def exponential(nats_per_token: float) -> float:
    """Return e^nats; infinity for a model that has diverged."""
    return math.inf if nats_per_token > 700 else math.exp(nats_per_token)


def words(title: str) -> str:
    """Return the title of a metric as it is written in tables."""
    return title.replace("_", " ")
