"""Perplexity: exp(Σ NELBO / Σ n) on held-out text (MATH 2).

`summarise` turns the measurements of one or more processes into the reported numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from atat_zoo.diffusion.statistics import ratio, spearman
from atat_zoo.errors import NotKept, UserError
from atat_zoo.evaluation.count_table import TableFigure
from atat_zoo.evaluation.naming import NELBO, PERPLEXITY, exponential, title
from atat_zoo.run import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from atat_zoo.bounds import Bound
    from atat_zoo.evaluation.count_table import TableNats
    from atat_zoo.evaluation.measuring import Measurement
    from atat_zoo.experiment import Experiment
    from atat_zoo.run import RunFolder
    from atat_zoo.tokenizers import TokenizerModel

# The method of an objective with an exact likelihood: nothing is drawn.
LIKELIHOOD = "likelihood"
_WORD = re.compile(r"(?<=\s)\S")


@attrs.frozen(kw_only=True)
class BoundValue:
    """One bound on −log p_θ(x). Errors are standard errors over sequences."""

    nats_per_token: float  # Σ bound / Σ n
    value: float  # its exponential; the perplexity if the bound is `nelbo`
    stderr: float  # of the value
    bits_per_byte: float  # Σ bound over the UTF-8 bytes, in bits
    bits_per_byte_stderr: float  # of that


@attrs.frozen(kw_only=True)
class Evaluation:
    """The numbers of an evaluation."""

    corpus: str  # the source of the text; empty for the experiment's own
    split: str  # which held-out split
    step: int  # optimizer steps of the weights
    ema: bool  # whether the weights are a moving average
    method: str  # how the bound was estimated; `likelihood` if it is exact
    sequences: int  # their number
    draws: int  # masks drawn for each; 0 for a likelihood
    seed: int  # of the masks
    tokens: int  # Σ n, special tokens included, padding not
    special_tokens: int  # BOS and EOS among them
    padding: int  # positions not counted
    bytes: int  # UTF-8 bytes of the tokens
    characters: int  # of the decoded text
    words: int  # of the decoded text: runs without white space that begin after white space within a sequence
    bounds: Mapping[str, BoundValue]  # by name; the perplexity is the exponential of `nelbo`
    perplexity_without_special: float | None  # over tokens of text, None without `nelbo`
    bits_per_character: float | None  # Σ NELBO over characters, None without `nelbo` or text
    perplexity_per_word: float | None  # exp(Σ NELBO / words), None without `nelbo` or words
    unigram_perplexity: float | None  # of the training tokens' frequencies, on the same tokens
    count_table: TableFigure | None  # of the training tokens' neighbours, on the same tokens under the same masks
    importance_spearman: float | None  # ρ between importance and per-token loss
    frequency_spearman: float | None  # ρ between unigram surprisal and per-token loss

    @property
    def nelbo(self) -> BoundValue | None:
        """The bound whose exponential is the perplexity."""
        return self.bounds.get(NELBO)

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object; non-finite numbers become null."""
        table = attrs.asdict(self)
        if self.nelbo:  # at the top level, for most readers
            nelbo = attrs.asdict(self.nelbo)
            table |= {PERPLEXITY: nelbo.pop("value"), f"{PERPLEXITY}_stderr": nelbo.pop("stderr"), **nelbo}
        if self.count_table:
            table["count_table"] = self.count_table.to_table()
        return finite(table)

    def record(self, folder: RunFolder, *, required: bool = False) -> None:
        """Write the numbers into a run folder; see `record`."""
        # The name of a bound other than the perplexity includes its steps: other steps must not overwrite it.
        method = self.method if self.nelbo else next(iter(self.bounds))
        what = "-".join(word for word in (self.corpus, self.split, method) if word)
        what = re.sub(r"[^\w.=]+", "-", what)
        record(folder, f"{what}-{self.sequences}x{self.draws}", self.to_table(), required=required)

    def sentence(self) -> str:
        """Return the bounds as one line."""
        bounds = ", ".join(
            f"{self.split} {title(name)} {b.value:.1f} ± {b.stderr:.1f}, {b.bits_per_byte:.3f} bits per byte"
            for name, b in self.bounds.items()
        )
        return f"{bounds} ({size(self.sequences, self.draws)})"


def record(folder: RunFolder, name: str, table: dict[str, Any], *settings: Any, required: bool = False) -> None:
    """Write the numbers of an evaluation into a run folder; another seed, step or setting gives another file.

    What cannot be written is a warning, since the caller has the numbers.

    Raises:
        UserError: when it cannot be written and is `required`.
    """
    name += f"-seed{table['seed']}-step{table['step']:08d}"
    if settings:
        name += "-" + hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    try:
        write_json(folder.evaluations / f"{name}.json", table)
    except UserError as error:
        if required:
            raise
        reason = str(error).partition(";")[0]
        warnings.warn(f"this result is not kept in the run: {reason}", NotKept, stacklevel=2)


def method_of(experiment: Experiment, bound: Bound) -> str:
    """Return how the numbers of an experiment's model are obtained: an estimator, or its exact likelihood."""
    return LIKELIHOOD if experiment.parts["objective"].exact else bound.name


def summarise(
    measured: Measurement,
    *,
    tokenizer: TokenizerModel,
    counts: NDArray[np.int64] | None,
    table: TableNats | None = None,
    split: str,
    step: int,
    ema: bool,
    draws: int,
    seed: int,
    method: str = "exact_k",
    corpus: str = "",
) -> Evaluation:
    """Turn a measurement into the reported numbers.

    `counts` are training tokens by id, int64 [V], for the unigram perplexity; `table` is the count table's share, for
    the same sequences and masks. The other names are as in `Evaluation`;
    `corpus` is empty for the experiment's own.
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
    first = next(iter(measured.contribution.values()))  # of the masks that the table is measured under
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
        count_table=None if table is None else TableFigure.of(table, first.sum(1), n),
        importance_spearman=importance_rho,
        frequency_spearman=frequency_rho,
    )


def number(count: int, what: str) -> str:
    """Return a number of things: `1 draw`, `2 draws`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(sequences: int, draws: int) -> str:
    """Return the size of an evaluation: `768 sequences × 4 draws`; draws are 0 for a likelihood."""
    text = number(sequences, "sequence")
    return f"{text} × {number(draws, 'draw')}" if draws else f"{text}, exact"


def special_ids(tokenizer: TokenizerModel) -> list[int]:
    """Return the ids without text: BOS and EOS, if the tokenizer has them."""
    return [i for i in (tokenizer.bos, tokenizer.eos) if i is not None]


def byte_counts(tokenizer: TokenizerModel, tokens: Tensor, maskable: Tensor) -> Tensor:
    """Return the number of UTF-8 bytes of the maskable tokens of each sequence [n, L], int64 [n]."""
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
    """Return the number, or None if JSON cannot express it."""
    return value if math.isfinite(value) else None


def finite(value: Any) -> Any:
    """Return a JSON value with None for numbers that JSON cannot express."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return _number(value) if isinstance(value, float) else value
