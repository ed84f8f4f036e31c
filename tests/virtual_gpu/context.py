"""What the small networks are built for: text8's characters, whose counts are those of random text."""

import numpy as np

from atat_zoo.data.tokenizers.components import CharactersTokenizer
from atat_zoo.diffusion.ngram_prior import NGramPrior
from atat_zoo.registry import Context
from tests.modeling.objectives.small_objectives import L

TOKENIZER = CharactersTokenizer().train(lambda: iter(()))
V = TOKENIZER.vocabulary_size
TEXT = np.random.default_rng(0).integers(0, V, (50, 10))
CONTEXT = Context(
    vocabulary_size=V,
    length=L,
    width=16,
    steps=100,
    seed=5,
    counts=np.bincount(TEXT.ravel(), minlength=V),
    ngram_prior=lambda: NGramPrior.count([TEXT], V),
    tokenizer=TOKENIZER,
)
