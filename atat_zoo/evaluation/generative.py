"""Numbers over generated text: its score by a judge, its variety, its cost, its copies of the training text.

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

    from atat_zoo.evaluation.judges import JudgeModel
    from atat_zoo.evaluation.overlap import Overlap
    from atat_zoo.generation.writer import Generation
    from atat_zoo.samplers import Sample
    from atat_zoo.tokenizers import TokenizerModel

    Tokens = NDArray[np.int64]


class Judged:
    """Numbers of texts, with a judge's nats."""

    nats_per_token: float | None
    nats_per_token_stderr: float | None

    @property
    def value(self) -> float | None:
        """The generative perplexity, where there is a judge."""
        return None if self.nats_per_token is None else exponential(self.nats_per_token)

    @property
    def stderr(self) -> float | None:
        """Its standard error over texts."""
        error = self.nats_per_token_stderr
        return None if self.value is None or error is None else self.value * error

    def named(self) -> dict[str, float | None]:
        """Return both as they stand in a JSON object."""
        key = GENERATIVE_PERPLEXITY.replace(" ", "_")
        return {key: self.value, f"{key}_stderr": self.stderr}


@attrs.frozen(kw_only=True)
class Scores(Judged):
    """The numbers of n texts."""

    texts: int  # n
    tokens: int  # in the vocabulary of the model that wrote them; BOS and EOS are left out
    judged_tokens: int  # in the judge's vocabulary
    nats_per_token: float  # Σ −log p over Σ tokens, both the judge's
    nats_per_token_stderr: float  # over texts
    unigram_entropy: float  # of the token frequencies within a text, in nats, averaged over the texts
    distinct_2: float | None  # distinct pairs of neighbouring tokens over all pairs, of all texts together
    nfe: float | None  # network evaluations a text, on average; None for text that no model of ours wrote
    max_nfe: int | None  # the most that the sampler's settings allow
    tokens_per_second: float | None  # while sampling, special tokens included
    mauve: float | None  # against other held-out text, None where it was not asked for
    overlap: Overlap  # with the training text
    longest_copy: str  # the longest copied span, as text

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object."""
        return {
            **self.named(),
            **attrs.asdict(self, filter=lambda a, _: a.name != "overlap"),
            "copied": {str(n): self.overlap.share(n) for n in self.overlap.copied},
            "longest_copy_tokens": self.overlap.longest,
        }


def score(
    texts: Sequence[str],
    tokens: Sequence[Tokens],
    judge: JudgeModel,
    *,
    tokenizer: TokenizerModel,
    overlap: Overlap,
    written: Generation | None = None,
    mauve: float | None = None,
) -> Scores:
    """Return the numbers of some texts.

    Args:
        texts: n of them.
        tokens: the same as ids of `tokenizer`, int64 [L] each.
        judge: reads the texts alone.
        tokenizer: of the model that wrote them.
        overlap: their overlap with the training text.
        written: their generation, for its cost; None for text that no model of ours wrote.
        mauve: their MAUVE.

    Raises:
        UserError: when no text has a token that the judge can score.
    """
    nats, counted = judge.nats(texts)
    if not int(counted.sum()):
        raise UserError(f"the judge {judge.title} finds nothing to score in {len(texts)} texts; ask for longer ones")
    value, error = ratio(nats, counted)
    parts = [pieces(ids, special_ids(tokenizer)) for ids in tokens]
    cost: dict[str, Any] = dict.fromkeys(("nfe", "max_nfe", "tokens_per_second"))
    if written:
        cost = costs(written.sample, written.seconds)
    return Scores(
        texts=len(texts),
        tokens=sum(len(piece) for text in parts for piece in text),
        judged_tokens=int(counted.sum()),
        nats_per_token=value,
        nats_per_token_stderr=error,
        mauve=mauve,
        overlap=overlap,
        longest_copy=tokenizer.decode(overlap.span),
        **variety(parts),
        **cost,
    )


def costs(sample: Sample, seconds: float) -> dict[str, Any]:
    """Return the cost of a sample as fields of `Scores`."""
    speed = sample.tokens.numel() / seconds if seconds else None
    return {"nfe": float(sample.nfe.double().mean()), "max_nfe": sample.max_nfe, "tokens_per_second": speed}


def variety(parts: Sequence[Sequence[Tokens]]) -> dict[str, Any]:
    """Return the variety of texts, each in the pieces between its special tokens, as fields of `Scores`."""
    texts = [np.concatenate([np.zeros(0, np.int64), *text]) for text in parts]
    return {
        "unigram_entropy": unigram_entropy(texts),
        "distinct_2": distinct([piece for text in parts for piece in text], 2),
    }


def unigram_entropy(texts: Sequence[Tokens]) -> float:
    """Return the entropy of the token frequencies within a text, averaged over the texts, in nats.

    By text, as in s-sahoo/duo, metrics.py (arXiv:2506.10892), and not of all texts together: texts that repeat
    themselves each in their own way are dull, too. At most log L. Unlike that code, `score` leaves BOS and EOS out.
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
