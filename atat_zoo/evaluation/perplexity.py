"""Perplexity: exp(Σ NELBO / Σ n) on held-out text, by exact-k under uniform masking (MATH 2).

`measure` runs the model on some sequences, `summarise` turns what was measured,
by one process or many, into the numbers that are reported.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.diffusion.statistics import ratio, spearman
from atat_zoo.run import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from atat_zoo.run import RunFolder
    from atat_zoo.tokenizers import TokenizerModel


@attrs.frozen(kw_only=True, eq=False)
class Measured:
    """What the model said of n sequences of L tokens.

    Attributes:
        rows: number of each sequence in the held-out set, int64 [n].
        tokens: int64 [n, L].
        maskable: bool [n, L].
        contribution: what each token adds to the bound, nats, float64 [n, L].
        token_loss: cross-entropy averaged over the draws that masked the token, NaN where none did, float64 [n, L].
        importance: float32 [n, L], or None when the objective uses no estimator.
    """

    rows: Tensor
    tokens: Tensor
    maskable: Tensor
    contribution: Tensor
    token_loss: Tensor
    importance: Tensor | None

    @staticmethod
    def join(pieces: Sequence[Measured]) -> Measured:
        """Join what several processes measured, in the order of the rows."""
        order = torch.cat([p.rows for p in pieces]).argsort()

        def joined(name: str) -> Any:
            values = [getattr(p, name) for p in pieces]
            return None if values[0] is None else torch.cat(values)[order]

        return Measured(**{field.name: joined(field.name) for field in attrs.fields(Measured)})


@attrs.frozen(kw_only=True)
class Evaluation:
    """The numbers of an evaluation. Errors are standard errors over sequences.

    Attributes:
        split: which held-out split.
        step: optimizer steps behind the weights.
        ema: whether the weights are a moving average.
        sequences: how many.
        draws: masks drawn for each.
        seed: of the masks.
        tokens: Σ n, special tokens included, padding not.
        bytes: UTF-8 bytes that they stand for.
        nats_per_token: Σ NELBO / Σ n.
        perplexity: its exponential, with its error.
        perplexity_without_special: the same over tokens that stand for text.
        bits_per_byte: Σ NELBO over the UTF-8 bytes, in bits, with its error.
        unigram_perplexity: of the training tokens' frequencies, on the same tokens.
        importance_spearman: ρ between importance and per-token loss.
        frequency_spearman: ρ between unigram surprisal and per-token loss.
    """

    split: str
    step: int
    ema: bool
    sequences: int
    draws: int
    seed: int
    tokens: int
    bytes: int
    nats_per_token: float
    perplexity: float
    perplexity_stderr: float
    perplexity_without_special: float
    bits_per_byte: float
    bits_per_byte_stderr: float
    unigram_perplexity: float | None
    importance_spearman: float | None
    frequency_spearman: float | None

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object; what is not finite becomes null."""
        return {k: _number(v) if isinstance(v, float) else v for k, v in attrs.asdict(self).items()}

    def record(self, folder: RunFolder) -> None:
        """Write the numbers into a run folder."""
        name = f"{self.split}-{self.sequences}x{self.draws}-seed{self.seed}-step{self.step:08d}.json"
        write_json(folder.evaluations / name, self.to_table())

    def sentence(self) -> str:
        """Return the numbers as one line."""
        return (
            f"{self.split} perplexity {self.perplexity:.1f} ± {self.perplexity_stderr:.1f}, "
            f"{self.bits_per_byte:.3f} bits per byte"
        )


@torch.no_grad()
def measure(
    module: Any,
    tokens: Tensor,
    maskable: Tensor,
    rows: Tensor,
    *,
    seed: int,
    draws: int,
    batch_size: int,
    progress: Callable[[int, int], None] | None = None,
) -> Measured:
    """Run an objective's bound on held-out sequences.

    The masks are a function of (seed, row), so they are the same for every
    model, every number of processes and every batch size.

    Args:
        module: an `ObjectiveModule`.
        tokens: int64 [n, L].
        maskable: bool [n, L].
        rows: number of each sequence in the held-out set, int64 [n].
        seed: of the masks.
        draws: masks per sequence.
        batch_size: sequences at once.
        progress: called with the sequences done and to do.
    """
    training, device = module.training, next(module.parameters()).device
    module.eval()
    contribution, losses, importance = [], [], []
    try:
        for first in range(0, len(tokens), batch_size):
            x, keep = (a[first : first + batch_size].to(device) for a in (tokens, maskable))
            keys = row_keys(seed, "evaluation", rows[first : first + batch_size].to(device))
            estimate = module.bound(x, keep, keys, draws)["nelbo"]
            contribution.append(estimate.contribution.cpu())
            losses.append((estimate.loss_sum / estimate.loss_count).cpu())
            if hasattr(module, "importance"):
                # A time-conditioned estimator is asked at the middle of the diffusion.
                t = torch.full((len(x),), 0.5, device=device)
                importance.append(module.importance(x, keep, t).float().cpu())
            if progress:
                progress(first + len(x), len(tokens))
    finally:
        module.train(training)
    # A process may have no rows, where there are more processes than sequences.
    empty = torch.zeros(0, tokens.shape[1], dtype=torch.float64)
    return Measured(
        rows=rows,
        tokens=tokens,
        maskable=maskable,
        contribution=torch.cat([empty, *contribution]),
        token_loss=torch.cat([empty, *losses]),
        importance=torch.cat([empty.float(), *importance]) if hasattr(module, "importance") else None,
    )


def summarise(
    measured: Measured,
    *,
    tokenizer: TokenizerModel,
    counts: NDArray[np.int64] | None,
    split: str,
    step: int,
    ema: bool,
    draws: int,
    seed: int,
) -> Evaluation:
    """Turn what was measured into the numbers that are reported.

    Args:
        measured: of all processes.
        tokenizer: knows the bytes of each token, and which tokens stand for no text.
        counts: training tokens by id, int64 [V], for the unigram figures, or None.
        split: which held-out split it was.
        step: optimizer steps behind the weights.
        ema: whether the weights are a moving average.
        draws: masks drawn per sequence.
        seed: of the masks.
    """
    x, keep = measured.tokens, measured.maskable
    nelbo, n = measured.contribution.sum(1), keep.sum(1)
    nats, nats_error = ratio(nelbo, n)
    sizes = torch.where(keep, torch.from_numpy(tokenizer.byte_counts())[x], 0).sum(1)
    bits, bits_error = ratio(nelbo / math.log(2), sizes)
    special = [i for i in (tokenizer.bos, tokenizer.eos) if i is not None]
    text = keep & ~torch.isin(x, torch.tensor(special, dtype=x.dtype))
    without_special = float((measured.contribution * text).sum() / text.sum())
    unigram = frequency_rho = importance_rho = None
    loss = measured.token_loss
    seen = keep & loss.isfinite()
    if counts is not None:
        prior = torch.from_numpy(counts).double() + 1.0
        surprisal = -(prior / prior.sum()).log()[x]
        unigram = math.exp(float(surprisal[keep].mean()))
        frequency_rho = _number(spearman(surprisal[seen], loss[seen]))
    if measured.importance is not None:
        importance_rho = _number(spearman(measured.importance[seen], loss[seen]))
    return Evaluation(
        split=split,
        step=step,
        ema=ema,
        sequences=len(x),
        draws=draws,
        seed=seed,
        tokens=int(n.sum()),
        bytes=int(sizes.sum()),
        nats_per_token=nats,
        perplexity=_exp(nats),
        perplexity_stderr=_exp(nats) * nats_error,
        perplexity_without_special=_exp(without_special),
        bits_per_byte=bits,
        bits_per_byte_stderr=bits_error,
        unigram_perplexity=unigram,
        importance_spearman=importance_rho,
        frequency_spearman=frequency_rho,
    )


def _exp(nats: float) -> float:
    """Return e^nats; infinity for a model that has diverged."""
    return math.inf if nats > 700 else math.exp(nats)


def _number(value: float) -> float | None:
    """Return None for what JSON cannot say."""
    return value if math.isfinite(value) else None
