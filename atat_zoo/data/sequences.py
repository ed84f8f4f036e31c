"""Sequences in memory, for evaluation: those of a split of shards, or of a corpus of text (zero-shot)."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atat_zoo.data import Split, manifest
from atat_zoo.data.pack import Packer, batches, dtype_for, pad_of
from atat_zoo.data.shards import read
from atat_zoo.errors import UserError
from atat_zoo.tokenizers import TokenizerModel


def held_out(folder: Path | str, split: Split, limit: int = 0) -> tuple[Tensor, Tensor]:
    """Return sequences of a split for an evaluation, always the same ones: tokens int64 and maskable bool, [n, L] each.

    At most `limit`, spread evenly over the split; 0 for all.
    """
    folder = Path(folder)
    contents = manifest.verify(folder, splits=[split])
    total = contents.splits[split].sequences
    if not total:
        raise UserError(
            f"the {split} split in {folder} has no sequence of {contents.length} tokens; "
            'hold out more text, shorten data.length, or set data.remainder = "pad"'
        )
    wanted = _evenly(total, limit)
    parts, first = [], 0
    for shard in contents.splits[split].shards:
        inside = wanted[(wanted >= first) & (wanted < first + shard.sequences)] - first
        if len(inside):
            parts.append(read(folder, contents, shard)[inside])
        first += shard.sequences
    return _tensors(np.concatenate(parts), pad_of(contents.dtype))


def sequences(
    corpus: Any, tokenizer: TokenizerModel, split: Split, *, length: int, special: str, rows: str = "packed", limit: int
) -> tuple[Tensor, Tensor]:
    """Pack a split of a corpus with a model's own tokenizer, as its training text was packed, and return as `held_out`.

    The remainder is padded, so no packed text is lost. `special` and `rows` are as in `[data]`.
    """
    dtype = dtype_for(tokenizer.vocabulary_size, "auto")
    packer = Packer(tokenizer, length=length, special=special, rows=rows, remainder="pad", dtype=dtype)
    parts = []
    for batch in batches(corpus.documents(split), rows):
        packer.add(packer.encode(batch))
        if packer.ready:
            parts.append(packer.take(packer.ready))
    stored = np.concatenate([*parts, packer.finish()])
    if not len(stored):
        raise UserError(f"corpus {corpus.name!r} has no text in its {split} split; name other text, or another --split")
    return _tensors(stored[_evenly(len(stored), limit)], packer.pad)


def _evenly(total: int, limit: int) -> NDArray[np.int64]:
    """Return the indices of at most `limit` rows out of `total`, spread evenly; 0 for all."""
    count = min(limit, total) if limit else total
    return np.arange(count) * total // count


def _tensors(stored: NDArray[Any], pad: int) -> tuple[Tensor, Tensor]:
    """Return tokens, 0 at the padding, and a mask of the positions without padding."""
    maskable = stored != pad
    tokens = np.where(maskable, stored, 0).astype(np.int64)
    return torch.from_numpy(tokens), torch.from_numpy(maskable)
