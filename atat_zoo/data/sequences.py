"""Sequences in memory for evaluation, either from a split of shards or from a text corpus (zero-shot)."""

from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atat_zoo.data import SPLITS, Split, shard_manifest
from atat_zoo.data.corpora import Corpus
from atat_zoo.data.dialogues import texts_of
from atat_zoo.data.sequence_packing import Packer, batches, dialogue_tokens, dtype_for, pad_of
from atat_zoo.data.shards import read
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.system.errors import UserError


class Sequences(NamedTuple):
    """n sequences of L tokens, with the positions that may be masked and the dialogue of each token."""

    tokens: Tensor  # int64 [n, L], 0 at padding
    maskable: Tensor  # bool [n, L]: everything except padding, or, for dialogues, only answers
    documents: Tensor | None = None  # each token's dialogue number in its packed row, int64 [n, L], −1 at padding


def alone(found: Sequences) -> Tensor:
    """Return the tokens of `found`; raise a `UserError` if a sequence can contain several dialogues."""
    if found.documents is not None:
        raise UserError(
            "only `atat eval` and `atat compare` can evaluate sequences of several dialogues, which data.packing = "
            '"packed" produces; train with data.packing = "document"'
        )
    return found.tokens


def held_out_sequences(folder: Path | str, split: Split, limit: int = 0) -> Sequences:
    """Return the sequences of a split in a folder of shards, with dialogue numbers if the dialogues are packed.

    At most `limit` sequences (0: all) are chosen, evenly spread and always the same; an empty split raises `UserError`.
    """
    folder = Path(folder)
    contents = shard_manifest.verify(folder, splits=[split])
    total = contents.splits[split].sequences
    if not total:
        if left := contents.splits[split].left_out(contents.length):
            raise UserError(f"{folder}: in the {split} split, {left}; raise data.length, or hold out more dialogues")
        raise UserError(
            f"the {split} split in {folder} has no sequence of {contents.length} tokens; "
            'hold out more text, lower data.length, or set data.remainder = "pad"'
        )
    wanted = evenly(total, limit)
    parts, first = [], 0
    for shard in contents.splits[split].shards:
        inside = wanted[(wanted >= first) & (wanted < first + shard.sequences)] - first
        if len(inside):
            parts.append(read(folder, contents, shard)[inside])
        first += shard.sequences
    return _tensors(np.concatenate(parts), contents.dtype, contents.form, contents.rows)


def corpus_sequences(
    corpus: Corpus,
    tokenizer: TokenizerModel,
    split: Split | Literal["all"],
    *,
    length: int,
    special: str,
    rows: str = "packed",
    form: str = "text",
    limit: int,
) -> Sequences:
    """Return sequences of a corpus split, packed like training text; choice and errors are as in `held_out_sequences`.

    `all` is the text of all splits. The last sequence is padded. `special`, `rows` and `form` are the model's
    `special_tokens`, `packing` and `format`.
    """
    dtype = dtype_for(tokenizer.vocabulary_size, "auto", form)
    packer = Packer(tokenizer, length=length, special=special, rows=rows, form=form, remainder="pad", dtype=dtype)
    parts = []
    texts = chain.from_iterable(texts_of(corpus, each, form) for each in (SPLITS if split == "all" else (split,)))
    for batch in batches(texts, rows, form):
        packer.add(packer.encode(batch))
        if packer.ready:
            parts.append(packer.take(packer.ready))
    stored = np.concatenate([*parts, packer.finish()])
    if not len(stored):
        if left := packer.totals.left_out(length):
            raise UserError(f"corpus {corpus.name!r}: {left}; name a different corpus or --split")
        raise UserError(f"corpus {corpus.name!r} has no text in its {split} split; name a different corpus or --split")
    return _tensors(stored[evenly(len(stored), limit)], dtype, form, rows)


def evenly(total: int, limit: int) -> NDArray[np.int64]:
    """Return the indices, int64 [n], of at most `limit` rows (0 for all) spread evenly over `total` rows."""
    count = min(limit, total) if limit else total
    return np.arange(count) * total // count


def _tensors(stored: NDArray[Any], dtype: str, form: str, rows: str) -> Sequences:
    """Return the contents of stored rows as tensors [n, L]."""
    if form == "chat":
        ids, answer, document = map(torch.from_numpy, dialogue_tokens(stored.astype(np.int64)))
        return Sequences(ids, answer, document if rows == "packed" else None)
    maskable = stored != pad_of(dtype)
    tokens = np.where(maskable, stored, 0).astype(np.int64)
    return Sequences(torch.from_numpy(tokens), torch.from_numpy(maskable))
