"""A count table beside the model: the same held-out tokens, under the same masks, with the same weights.

What a model is worth shows against what two adjacent tokens tell already. The table reads what the model may read:

    a model of any order      z_{i−1} and z_{i+1}, as far as they are visible
    one of blocks             the same within its block, and the clean last token of the block before it
    one with an exact         x_{i−2} and x_{i−1}: any exact likelihood is one of the whole text
    likelihood

B sequences of a batch, L tokens, N masked ones, n sequences.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from atat_zoo.backbones.prior import neighbours_of
from atat_zoo.data.counting import count_table
from atat_zoo.diffusion.bounds import average
from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.diffusion.statistics import ratio
from atat_zoo.errors import LeftOut, UserError
from atat_zoo.evaluation.naming import exponential

if TYPE_CHECKING:
    from pathlib import Path

    from atat_zoo.bounds import Bound
    from atat_zoo.data.neighbours import CountTable
    from atat_zoo.diffusion.bounds import Scores

BETWEEN, AFTER = "two neighbours", "two tokens to the left"


@attrs.frozen(kw_only=True, eq=False)
class TableNats:
    """A count table measured on n sequences."""

    reads: str  # the tokens that it sees: `BETWEEN` or `AFTER`
    counted: int  # sequences of the training shards, all of them
    nats: Tensor  # of each sequence, float64 [n]


@attrs.frozen(kw_only=True)
class TableFigure:
    """A count table beside a model, and their difference. Errors are standard errors over sequences."""

    reads: str  # the tokens that it sees
    counted: int  # sequences of the training shards
    nats_per_token: float
    value: float  # its exponential
    stderr: float  # of the value
    difference: float  # the model's nats per token minus the table's, of the same tokens and masks
    difference_stderr: float  # of that: of paired differences

    @property
    def percent(self) -> tuple[float, float]:
        """How far the model's exponential is above the table's, negative if it is below, and its standard error."""
        times = exponential(self.difference)
        return 100 * (times - 1), 100 * times * self.difference_stderr

    @property
    def verdict(self) -> str:
        """The same in a few words."""
        percent, error = self.percent
        return f"{abs(percent):.1f} ± {error:.1f} % {'lower' if percent < 0 else 'higher'}"

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object."""
        percent, error = self.percent
        return attrs.asdict(self) | {"percent": percent, "percent_stderr": error}

    @classmethod
    def of(cls, table: TableNats, model: Tensor, count: Tensor) -> TableFigure:
        """Return the figure from the table's nats, the model's [n] and the tokens [n] of each sequence."""
        per_token, error = ratio(table.nats, count)
        difference, difference_error = ratio(model - table.nats, count)
        value = exponential(per_token)
        return cls(
            reads=table.reads,
            counted=table.counted,
            nats_per_token=per_token,
            value=value,
            stderr=value * error,
            difference=difference,
            difference_stderr=difference_error,
        )


def measure_table(
    data: Path,
    module: Any,
    tokens: Tensor,
    maskable: Tensor,
    *,
    exact: bool,
    seed: int,
    draws: int,
    batch_size: int,
    bound: Bound,
    rows: Tensor | None = None,
) -> TableNats | None:
    """Measure the count table of the shards `data` as `measure` measures a model; None, with a warning, without one.

    Args:
        data: folder of the training shards.
        module: the model's `ObjectiveModule`, for its masks.
        tokens: of all sequences, int64 [n, L].
        maskable: bool [n, L].
        exact: whether the model's likelihood is exact.
        seed: of the masks.
        draws: masks for each sequence.
        batch_size: sequences at once.
        bound: the estimator.
        rows: numbers of the sequences, int64 [n], for their masks; 0 … n−1 when None.
    """
    try:
        table = count_table(data)
    except UserError as error:
        warnings.warn(f"the count table is left out: {error}", LeftOut, stacklevel=2)
        return None
    denoiser = module.denoiser()
    mask_id = denoiser.mask_id
    causal = exact or denoiser.block_size == 1
    scores = after(table, mask_id) if causal else between(table, mask_id, denoiser.block_size)
    # What is not maskable is not text: it is hidden from the table.
    x = torch.where(maskable, tokens, mask_id)
    nats = []
    numbers = torch.arange(len(x)) if rows is None else rows
    for each in torch.split(torch.arange(len(x)), batch_size):
        masks = module.masks(maskable[each], row_keys(seed, "evaluation", numbers[each]), draws, bound)
        nats.append(average(scores, x[each], masks, mask_id)["nats"].nelbo)
    return TableNats(reads=AFTER if causal else BETWEEN, counted=table.sequences, nats=torch.cat(nats))


def between(table: CountTable, mask_id: int, block_size: int | None = None) -> Scores:
    """Return −log p of the masked tokens from their visible neighbours, for a model of any order or one of blocks."""

    def scores(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> dict[str, Tensor]:
        left, right = neighbours_of(z, 1, mask_id).unbind(2)
        if block_size is not None:
            place = torch.arange(z.shape[1]) % block_size
            left = torch.where(place == 0, neighbours_of(x, 1, mask_id)[..., 0], left)
            right = torch.where(place == block_size - 1, mask_id, right)
        return _nats(table.between(*(each[masked].numpy() for each in (x, left, right))))

    return scores


def after(table: CountTable, mask_id: int) -> Scores:
    """Return −log p of the masked tokens from the two to the left, for a model that reads in this order."""

    def scores(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> dict[str, Tensor]:
        last, _, before, _ = neighbours_of(x, 2, mask_id).unbind(2)
        return _nats(table.after(*(each[masked].numpy() for each in (x, before, last))))

    return scores


def _nats(probability: Any) -> dict[str, Tensor]:
    return {"nats": -torch.from_numpy(probability).log()}
