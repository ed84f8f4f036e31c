"""The names of quantities; other modules take every name with the word perplexity from here.

A model's perplexity is exp(Σ NELBO / Σ tokens), computed from the exact likelihood or from a bound on it under uniform
masking (docs/explanation/mathematics.md). The exponentials of other bounds, such as those in discrete time, are called
"<name> bound" unless their factorisation is named.
"""

import math

NELBO = "nelbo"
# The same bound for the answers in dialogues, given the questions: it is conditional, so not a text's perplexity.
ANSWERS = "answers"
NATS_PER_TOKEN = "nats per token"
PERPLEXITY = "perplexity"
WORD_PERPLEXITY = "perplexity per word"
# The exact perplexity of a model that knows only the frequencies of the training tokens.
UNIGRAM_PERPLEXITY = "unigram perplexity"
# A baseline of neighbouring-token counts without a network, on the same tokens under the same masks as the model.
TABLE = "n-gram model"
# Of generated text under a different model than the one that wrote it; always reported with entropy and NFE.
GENERATIVE_PERPLEXITY = "generative perplexity"

# The NLL of text under a sampler, or a bound on it if the positions are random (docs/explanation/mathematics.md).
POLICY = "policy"
POLICY_BOUND = "policy bound"
POLICY_LIKELIHOOD = "policy likelihood"
# Two numbers that enclose the likelihood of a random policy (docs/explanation/mathematics.md, "A bracket").
BRACKET = "bracket"


def title(quantity: str, factorisation: str = "") -> str:
    """Return the name for the exponential of a bound in nats per token, such as `perplexity (any-order ELBO)`."""
    if factorisation and quantity != ANSWERS:
        return f"{PERPLEXITY} ({factorisation})"
    return PERPLEXITY if quantity == NELBO else f"{quantity} bound"


def exponential(nats_per_token: float) -> float:
    """Return exp(nats), or infinity if it overflows, as it does for a diverged model."""
    return math.inf if nats_per_token > 700 else math.exp(nats_per_token)


def words(title: str) -> str:
    """Return a metric's title with spaces in place of underscores, as in tables."""
    return title.replace("_", " ")


_SAMPLER = {POLICY_BOUND: "sampler, bound", POLICY_LIKELIHOOD: "sampler, exact"}


def factorisation(quantity: str, *, exact: bool = False) -> str:
    """Return the factorisation of a perplexity, given the title of its bound and whether it is exact."""
    if quantity in (PERPLEXITY, "bound"):
        return "own order, exact" if exact else "any-order ELBO"
    name = quantity.removesuffix(" bound")
    return _SAMPLER.get(quantity, "own position sets" if name == "sets" else f"{name}, bound")


# A description of each factorisation, in the order in which a page lists them.
FACTORISATIONS = {
    "any-order ELBO": "an upper bound: mean NLL over uniformly random orders of the tokens (in a block, for `block`)",
    "own order, exact": "computed from the exact NLL in the order of the objective, such as left to right",
    "own position sets": "computed from the NLL in the decoding steps that the arm was trained on: exact if the "
    "steps are fixed, an upper bound if they are drawn at random",
    "sampler, exact": "computed from the exact NLL of the text under the sampler, whose order is deterministic",
    "sampler, bound": "computed from an upper bound on the NLL of the text under the sampler, whose order is random",
}
