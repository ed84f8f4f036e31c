"""Numbers over generated text: its score by a judge, how varied it is, what it cost, what it copied.

n texts of L tokens. A generative perplexity alone rewards dull text, so it only
comes together with unigram entropy and the network evaluations (MATH 6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from atat_zoo.diffusion.statistics import ratio
from atat_zoo.errors import UserError
from atat_zoo.evaluation.naming import GENERATIVE_PERPLEXITY, exponential
from atat_zoo.evaluation.overlap import pieces
from atat_zoo.evaluation.perplexity import special_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from atat_zoo.evaluation.judges import JudgeModel
    from atat_zoo.evaluation.overlap import Overlap
    from atat_zoo.tokenizers import TokenizerModel

    Tokens = NDArray[np.int64]


@attrs.frozen(kw_only=True)
class Scores:
    """The numbers of some texts.

    Attributes:
        texts: n.
        tokens: of the model that wrote them, those that stand for text.
        judged_tokens: of the judge.
        nats_per_token: Σ −log p over Σ tokens, both the judge's.
        nats_per_token_stderr: over texts.
        unigram_entropy: of the token frequencies within a text, in nats, averaged over the texts.
        distinct_2: distinct pairs of neighbouring tokens over all pairs, of all texts together.
        nfe: network evaluations a text, on average; None for text that no model of ours wrote.
        max_nfe: the most that the sampler's settings allow.
        tokens_per_second: while sampling, special tokens included.
        mauve: against other held-out text, None where it was not asked for.
        overlap: what was copied from the training text.
        longest_copy: the longest copied span, as text.
    """

    texts: int
    tokens: int
    judged_tokens: int
    nats_per_token: float
    nats_per_token_stderr: float
    unigram_entropy: float
    distinct_2: float | None
    nfe: float | None
    max_nfe: int | None
    tokens_per_second: float | None
    mauve: float | None
    overlap: Overlap
    longest_copy: str

    @property
    def value(self) -> float:
        """The generative perplexity."""
        return exponential(self.nats_per_token)

    @property
    def stderr(self) -> float:
        """Its standard error over texts."""
        return self.value * self.nats_per_token_stderr

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object."""
        table = attrs.asdict(self, filter=lambda a, _: a.name != "overlap")
        key = GENERATIVE_PERPLEXITY.replace(" ", "_")
        return {
            key: self.value,
            f"{key}_stderr": self.stderr,
            **table,
            "copied": {str(n): self.overlap.share(n) for n in self.overlap.copied},
            "longest_copy_tokens": self.overlap.longest,
        }


@attrs.frozen(kw_only=True, eq=False)
class Cost:
    """What writing some texts took: network evaluations per text [n], their stated maximum, seconds in the sampler."""

    nfe: Tensor
    max_nfe: int
    seconds: float
    tokens: int


def score(
    texts: Sequence[str],
    tokens: Sequence[Tokens],
    judge: JudgeModel,
    *,
    tokenizer: TokenizerModel,
    overlap: Overlap,
    cost: Cost | None = None,
    mauve: float | None = None,
) -> Scores:
    """Return the numbers of some texts.

    Args:
        texts: n of them.
        tokens: the same in the tokens of the model that wrote them, int64 [L] each.
        judge: what scores them, from their text alone.
        tokenizer: of the tokens.
        overlap: what was copied.
        cost: of writing them.
        mauve: their MAUVE.

    Raises:
        UserError: when no text has a token that the judge can score.
    """
    nats, counted = judge.nats(texts)
    if not int(counted.sum()):
        raise UserError(f"the judge {judge.title} finds nothing to score in {len(texts)} texts; ask for longer ones")
    value, error = ratio(nats, counted)
    special = special_ids(tokenizer)
    parts = [pieces(ids, special) for ids in tokens]
    return Scores(
        texts=len(texts),
        tokens=sum(len(piece) for text in parts for piece in text),
        judged_tokens=int(counted.sum()),
        nats_per_token=value,
        nats_per_token_stderr=error,
        unigram_entropy=text_entropy(parts),
        distinct_2=distinct([piece for text in parts for piece in text], 2),
        nfe=None if cost is None else float(cost.nfe.double().mean()),
        max_nfe=None if cost is None else cost.max_nfe,
        tokens_per_second=None if cost is None or not cost.seconds else cost.tokens / cost.seconds,
        mauve=mauve,
        overlap=overlap,
        longest_copy=tokenizer.decode(overlap.span),
    )


def text_entropy(parts: Sequence[Sequence[Tokens]]) -> float:
    """Return the unigram entropy of texts that lie in pieces between their special tokens."""
    return unigram_entropy([np.concatenate([np.zeros(0, np.int64), *text]) for text in parts])


def unigram_entropy(texts: Sequence[Tokens]) -> float:
    """Return the entropy of the token frequencies within a text, averaged over the texts, in nats.

    By text, as published code of masked diffusion has it (s-sahoo/duo, metrics.py, of arXiv:2506.10892), and not of
    all texts together: texts that repeat themselves each in their own way are dull, too. It is log L at most. BOS and
    EOS are left out by `score`, which that code does not do.
    """
    entropies = []
    for ids in texts:
        _, counts = np.unique(ids, return_counts=True)
        share = counts / max(1, len(ids))
        entropies.append(float(-(share * np.log(share)).sum()))
    return float(np.mean(entropies)) if entropies else 0.0


def distinct(texts: Sequence[Tokens], n: int) -> float | None:
    """Return distinct n-grams over all n-grams of the texts (Li et al., NAACL 2016); None when no text has one."""
    windows = [np.lib.stride_tricks.sliding_window_view(ids, n) for ids in texts if len(ids) >= n]
    if not windows:
        return None
    every = np.concatenate(windows)
    return len(np.unique(every, axis=0)) / len(every)
