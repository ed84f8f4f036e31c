"""Perplexity: exp(Σ NELBO / Σ n) on held-out text (MATH 2).

`summarise` turns what was measured, by one process or many, into the numbers that are reported.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from atat_zoo.diffusion.statistics import ratio, spearman
from atat_zoo.evaluation.naming import NELBO, PERPLEXITY, exponential, title
from atat_zoo.run import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from atat_zoo.bounds import Bound
    from atat_zoo.evaluation.measuring import Measurement
    from atat_zoo.experiment import Experiment
    from atat_zoo.run import RunFolder
    from atat_zoo.tokenizers import TokenizerModel

# The method of an objective whose likelihood is known: nothing is drawn.
LIKELIHOOD = "likelihood"
_WORD = re.compile(r"(?<=\s)\S")


@attrs.frozen(kw_only=True)
class BoundValue:
    """One bound on −log p_θ(x). Errors are standard errors over sequences.

    Attributes:
        nats_per_token: Σ bound / Σ n.
        value: its exponential; the perplexity if the bound is `nelbo`.
        stderr: of the value.
        bits_per_byte: Σ bound over the UTF-8 bytes, in bits.
        bits_per_byte_stderr: of that.
    """

    nats_per_token: float
    value: float
    stderr: float
    bits_per_byte: float
    bits_per_byte_stderr: float


@attrs.frozen(kw_only=True)
class Evaluation:
    """The numbers of an evaluation.

    Attributes:
        corpus: whose text it was.
        split: which held-out split.
        step: optimizer steps behind the weights.
        ema: whether the weights are a moving average.
        method: how the bound was estimated; `likelihood` where nothing is estimated.
        sequences: how many.
        draws: masks drawn for each; 0 for a likelihood.
        seed: of the masks.
        tokens: Σ n, special tokens included, padding not.
        special_tokens: how many of them are BOS or EOS.
        padding: positions that were not counted.
        bytes: UTF-8 bytes that the tokens stand for.
        characters: of the decoded text.
        words: of the decoded text: runs without white space that begin after white space within a sequence.
        bounds: what was bounded, by name; `nelbo` is the perplexity's.
        perplexity_without_special: over tokens that stand for text, None without `nelbo`.
        bits_per_character: Σ NELBO over characters, None without `nelbo` or text.
        perplexity_per_word: exp(Σ NELBO / words), None without `nelbo` or words.
        unigram_perplexity: of the training tokens' frequencies, on the same tokens.
        importance_spearman: ρ between importance and per-token loss.
        frequency_spearman: ρ between unigram surprisal and per-token loss.
    """

    corpus: str
    split: str
    step: int
    ema: bool
    method: str
    sequences: int
    draws: int
    seed: int
    tokens: int
    special_tokens: int
    padding: int
    bytes: int
    characters: int
    words: int
    bounds: Mapping[str, BoundValue]
    perplexity_without_special: float | None
    bits_per_character: float | None
    perplexity_per_word: float | None
    unigram_perplexity: float | None
    importance_spearman: float | None
    frequency_spearman: float | None

    @property
    def nelbo(self) -> BoundValue | None:
        """The bound whose exponential is the perplexity."""
        return self.bounds.get(NELBO)

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object; what is not finite becomes null."""
        table = attrs.asdict(self)
        if self.nelbo:  # what most readers want, without a look into `bounds`
            nelbo = attrs.asdict(self.nelbo)
            table |= {PERPLEXITY: nelbo.pop("value"), f"{PERPLEXITY}_stderr": nelbo.pop("stderr"), **nelbo}
        return finite(table)

    def record(self, folder: RunFolder) -> None:
        """Write the numbers into a run folder."""
        # The name of a bound that is no perplexity has its steps: another number of them must not overwrite it.
        method = self.method if self.nelbo else next(iter(self.bounds))
        what = "-".join(word for word in (self.corpus, self.split, method) if word)
        what = re.sub(r"[^\w.=]+", "-", what)
        name = f"{what}-{self.sequences}x{self.draws}-seed{self.seed}-step{self.step:08d}.json"
        write_json(folder.evaluations / name, self.to_table())

    def sentence(self) -> str:
        """Return the bounds as one line."""
        return ", ".join(
            f"{self.split} {title(name)} {b.value:.1f} ± {b.stderr:.1f}, {b.bits_per_byte:.3f} bits per byte"
            for name, b in self.bounds.items()
        )


def method_of(experiment: Experiment, bound: Bound) -> str:
    """Return how the numbers of an experiment's model come about: by an estimator, or as its exact likelihood."""
    return LIKELIHOOD if experiment.parts["objective"].exact else bound.name


def summarise(
    measured: Measurement,
    *,
    tokenizer: TokenizerModel,
    counts: NDArray[np.int64] | None,
    split: str,
    step: int,
    ema: bool,
    draws: int,
    seed: int,
    method: str = "exact_k",
    corpus: str = "",
) -> Evaluation:
    """Turn what was measured into the numbers that are reported.

    Args:
        measured: of all processes.
        tokenizer: knows the text of each token, and which tokens stand for none.
        counts: training tokens by id, int64 [V], for the unigram perplexity, or None.
        split: which held-out split it was.
        step: optimizer steps behind the weights.
        ema: whether the weights are a moving average.
        draws: masks drawn per sequence.
        seed: of the masks.
        method: how the bound was estimated.
        corpus: whose text it was; empty for the experiment's own.
    """
    x, maskable = measured.tokens, measured.maskable
    n = maskable.sum(1)
    sizes = byte_counts(tokenizer, x, maskable)
    texts = [tokenizer.decode(row[there].tolist()) for row, there in zip(x, maskable, strict=True)]
    characters, words = sum(map(len, texts)), sum(len(_WORD.findall(text)) for text in texts)
    of_text = maskable & ~torch.isin(x, torch.tensor(special_ids(tokenizer), dtype=x.dtype))
    bounds = {name: bound_value(each.sum(1), n, sizes) for name, each in measured.contribution.items()}

    without_special = per_character = per_word = None
    if NELBO in bounds:
        nelbo = measured.contribution[NELBO]
        without_special = exponential(float((nelbo * of_text).sum() / of_text.sum()))
        per_character = float(nelbo.sum()) / math.log(2) / characters if characters else None
        per_word = exponential(float(nelbo.sum()) / words) if words else None
    unigram = frequency_rho = importance_rho = None
    loss = measured.token_loss
    seen = maskable & loss.isfinite()
    if counts is not None:
        prior = torch.from_numpy(counts).double() + 1.0
        surprisal = -(prior / prior.sum()).log()[x]
        unigram = math.exp(float(surprisal[maskable].mean()))
        frequency_rho = _number(spearman(surprisal[seen], loss[seen]))
    if measured.importance is not None:
        importance_rho = _number(spearman(measured.importance[seen], loss[seen]))
    return Evaluation(
        corpus=corpus,
        split=split,
        step=step,
        ema=ema,
        method=method,
        sequences=len(x),
        draws=0 if method == LIKELIHOOD else draws,
        seed=seed,
        tokens=int(n.sum()),
        special_tokens=int(n.sum() - of_text.sum()),
        padding=int((~maskable).sum()),
        bytes=int(sizes.sum()),
        characters=characters,
        words=words,
        bounds=bounds,
        perplexity_without_special=without_special,
        bits_per_character=per_character,
        perplexity_per_word=per_word,
        unigram_perplexity=unigram,
        importance_spearman=importance_rho,
        frequency_spearman=frequency_rho,
    )


def special_ids(tokenizer: TokenizerModel) -> list[int]:
    """Return the ids that stand for no text: BOS and EOS, where the tokenizer has them."""
    return [i for i in (tokenizer.bos, tokenizer.eos) if i is not None]


def byte_counts(tokenizer: TokenizerModel, tokens: Tensor, maskable: Tensor) -> Tensor:
    """Return the UTF-8 bytes that the maskable tokens of each sequence [n, L] stand for, int64 [n]."""
    return torch.where(maskable, torch.from_numpy(tokenizer.byte_counts())[tokens], 0).sum(1)


def bound_value(nats: Tensor, n: Tensor, sizes: Tensor) -> BoundValue:
    """Return a bound over sequences, from nats [n], maskable tokens [n] and bytes [n] of each."""
    per_token, error = ratio(nats, n)
    bits, bits_error = ratio(nats / math.log(2), sizes)
    value = exponential(per_token)
    return BoundValue(
        nats_per_token=per_token,
        value=value,
        stderr=value * error,
        bits_per_byte=bits,
        bits_per_byte_stderr=bits_error,
    )


def _number(value: float) -> float | None:
    """Return None for what JSON cannot express."""
    return value if math.isfinite(value) else None


def finite(value: Any) -> Any:
    """Return a JSON value in which None stands for numbers that JSON cannot express."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return _number(value) if isinstance(value, float) else value
