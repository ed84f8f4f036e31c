"""The n-gram model, a baseline that is evaluated on the same held-out tokens, masks and loss weights as the model.

It predicts a token x_i from two neighbours with the counts of the n-gram prior, without a network. It reads only tokens
that the model may also read, in the text x or in z, which is x with masks:

    any-order model         z_{i−1} and z_{i+1}, if visible
    block model             the same within a block, and the clean last token of the previous block
    exact likelihood        x_{i−2} and x_{i−1}
"""

import warnings
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from atat_zoo.diffusion.likelihood_bounds import Scores, average
from atat_zoo.diffusion.ngram_prior import NGramPrior, load_ngram_prior
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.diffusion.statistics import ratio
from atat_zoo.evaluation import batches
from atat_zoo.evaluation.results.evaluation import NGramPriorValue
from atat_zoo.evaluation.results.quantity_names import exponential
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.modeling.backbones.ngram_prior_module import neighbours_of
from atat_zoo.system.errors import OmissionNote, UserError

BETWEEN, AFTER = "two neighbours", "two tokens to the left"


@attrs.frozen(kw_only=True, eq=False)
class NGramPriorNats:
    """The NLL of an n-gram model on n sequences."""

    reads: str  # the tokens that the n-gram model reads: `BETWEEN` or `AFTER`
    counted: int  # number of sequences in the training shards, all of which are counted
    nats: Tensor  # of each sequence, float64 [n]


def measure_ngram_prior(
    module: Any,
    data: Path,
    tokens: Tensor,
    maskable: Tensor,
    spec: EvaluationSpec,
    *,
    exact: bool,
    seed: int,
    rows: Tensor | None = None,
) -> NGramPriorNats | None:
    """Return the NLL of an n-gram model of the training shards in `data`, or warn and return None if counting fails."""
    try:
        table = load_ngram_prior(data)
    except UserError as error:
        warnings.warn(f"the n-gram model was not evaluated: {error}", OmissionNote, stacklevel=2)
        return None
    denoiser, mask_id = module.denoiser(), module.denoiser().mask_id
    causal = exact or denoiser.block_size == 1
    scores = scores_after(table, mask_id) if causal else scores_between(table, mask_id, denoiser.block_size)
    # Tokens that are not maskable are not text, so they are hidden from the n-gram model.
    x = torch.where(maskable, tokens, mask_id)
    nats, numbers = [], torch.arange(len(x)) if rows is None else rows
    for some in batches(len(x), spec.batch_size):
        masks = module.masks(
            maskable[some], sequence_keys(seed, "evaluation", numbers[some]), spec.mask_samples, spec.bound
        )
        nats.append(average(scores, x[some], masks, mask_id)["nats"].nelbo)
    return NGramPriorNats(reads=AFTER if causal else BETWEEN, counted=table.sequences, nats=torch.cat(nats))


def figure(ngram: NGramPriorNats, model: Tensor, count: Tensor) -> NGramPriorValue:
    """Return an n-gram model's NLL and a model's difference from it, given the model's nats and tokens per sequence."""
    (per_token, error), (gap, gap_error) = ratio(ngram.nats, count), ratio(model - ngram.nats, count)
    value = exponential(per_token)
    return NGramPriorValue(
        reads=ngram.reads,
        counted=ngram.counted,
        nats_per_token=per_token,
        value=value,
        stderr=value * error,
        difference=gap,
        difference_stderr=gap_error,
    )


def scores_between(table: NGramPrior, mask_id: int, block_size: int | None = None) -> Scores:
    """Return a function from masked tokens to their NLL given visible neighbours, for any-order and block models."""

    def scores(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> dict[str, Tensor]:
        left, right = neighbours_of(z, 1, mask_id).unbind(2)
        if block_size is not None:
            place = torch.arange(z.shape[1]) % block_size
            left = torch.where(place == 0, neighbours_of(x, 1, mask_id)[..., 0], left)
            right = torch.where(place == block_size - 1, mask_id, right)
        return _nats(table.prob_between(*(each[masked].numpy() for each in (x, left, right))))

    return scores


def scores_after(table: NGramPrior, mask_id: int) -> Scores:
    """Return a function from masked tokens to their NLL given two tokens to the left, for left-to-right models."""

    def scores(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> dict[str, Tensor]:
        last, _, before, _ = neighbours_of(x, 2, mask_id).unbind(2)
        return _nats(table.prob_after(*(each[masked].numpy() for each in (x, before, last))))

    return scores


def _nats(probability: Any) -> dict[str, Tensor]:
    return {"nats": -torch.from_numpy(probability).log()}
