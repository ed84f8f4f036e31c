"""Sequences in memory, for evaluation: of a split of shards, or of a text corpus (zero-shot)."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atat_zoo.data import Split, shard_manifest
from atat_zoo.data.dialogues import texts_of
from atat_zoo.data.sequence_packing import Packer, batches, dialogue_tokens, dtype_for, pad_of
from atat_zoo.data.shards import read
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.system.errors import UserError


class Sequences(NamedTuple):
    """n sequences of L tokens."""

    tokens: Tensor  # int64 [n, L], 0 at padding
    maskable: Tensor  # bool [n, L]: no padding, and of dialogues the answers alone
    documents: Tensor | None = None  # of packed dialogues the number of each token's within its row, int64, −1 for none


def held_out(folder: Path | str, split: Split, limit: int = 0) -> tuple[Tensor, Tensor]:
    """Return the evaluation sequences of a split, always the same ones: tokens int64 and maskable bool, [n, L] each.

    There are at most `limit`, spread evenly over the split; 0 means all. Rows with several dialogues raise a
    `UserError`; use `held_out_sequences` for them.
    """
    found = held_out_sequences(folder, split, limit)
    return alone(found), found.maskable


def alone(found: Sequences) -> Tensor:
    """Return the tokens of sequences; raise a `UserError` if a sequence has several dialogues."""
    if found.documents is not None:
        raise UserError(
            'data.packing = "packed" packs several dialogues into a sequence, which only `atat eval` and `atat '
            'compare` can evaluate; train with data.packing = "document"'
        )
    return found.tokens


def held_out_sequences(folder: Path | str, split: Split, limit: int = 0) -> Sequences:
    """Return what `held_out` does; for packed dialogues also each token's dialogue number."""
    folder = Path(folder)
    contents = shard_manifest.verify(folder, splits=[split])
    total = contents.splits[split].sequences
    if not total:
        if left := contents.splits[split].left_out(contents.length):
            raise UserError(f"{folder}: in the {split} split {left}; change data.length, or hold out more dialogues")
        raise UserError(
            f"the {split} split in {folder} has no sequence of {contents.length} tokens; "
            'hold out more text, shorten data.length, or set data.remainder = "pad"'
        )
    wanted = evenly(total, limit)
    parts, first = [], 0
    for shard in contents.splits[split].shards:
        inside = wanted[(wanted >= first) & (wanted < first + shard.sequences)] - first
        if len(inside):
            parts.append(read(folder, contents, shard)[inside])
        first += shard.sequences
    return _tensors(np.concatenate(parts), contents.dtype, contents.form, contents.rows)


def sequences(
    corpus: Any, tokenizer: TokenizerModel, split: Split, *, length: int, special: str, rows: str = "packed", limit: int
) -> tuple[Tensor, Tensor]:
    """Return a split of a corpus, packed like the training text of a model with its tokenizer; see `held_out`.

    The remainder is padded, so all text is used. `special` and `rows` are as in `[data]`.
    """
    return corpus_sequences(corpus, tokenizer, split, length=length, special=special, rows=rows, limit=limit)[:2]


def corpus_sequences(
    corpus: Any,
    tokenizer: TokenizerModel,
    split: Split,
    *,
    length: int,
    special: str,
    rows: str = "packed",
    form: str = "text",
    limit: int,
) -> Sequences:
    """Return what `sequences` does, for any `form` of `[data]`; for packed dialogues also dialogue numbers."""
    dtype = dtype_for(tokenizer.vocabulary_size, "auto", form)
    packer = Packer(tokenizer, length=length, special=special, rows=rows, form=form, remainder="pad", dtype=dtype)
    parts = []
    for batch in batches(texts_of(corpus, split, form), rows, form):
        packer.add(packer.encode(batch))
        if packer.ready:
            parts.append(packer.take(packer.ready))
    stored = np.concatenate([*parts, packer.finish()])
    if not len(stored):
        if left := packer.totals.left_out(length):
            raise UserError(f"corpus {corpus.name!r}: {left}; name another corpus or another --split")
        raise UserError(
            f"corpus {corpus.name!r} has no text in its {split} split; name another corpus or another --split"
        )
    return _tensors(stored[evenly(len(stored), limit)], dtype, form, rows)


def evenly(total: int, limit: int) -> NDArray[np.int64]:
    """Return the indices of at most `limit` rows out of `total`, spread evenly, int64 [n]; 0 for all."""
    count = min(limit, total) if limit else total
    return np.arange(count) * total // count


def _tensors(stored: NDArray[Any], dtype: str, form: str, rows: str) -> Sequences:
    """Return the meaning of stored rows as tensors [n, L]."""
    if form == "chat":
        ids, answer, document = map(torch.from_numpy, dialogue_tokens(stored.astype(np.int64)))
        return Sequences(ids, answer, document if rows == "packed" else None)
    maskable = stored != pad_of(dtype)
    tokens = np.where(maskable, stored, 0).astype(np.int64)
    return Sequences(torch.from_numpy(tokens), torch.from_numpy(maskable))
