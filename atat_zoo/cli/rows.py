"""Convert the first training sequences of shards to text, for `atat data show`."""

from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from atat_zoo.data import shard_manifest
from atat_zoo.data.sequence_packing import dialogue_tokens, pad_of
from atat_zoo.data.shards import read
from atat_zoo.data.tokenizers import BOS, EOS, TokenizerModel


def first_rows(folder: Path, model: TokenizerModel, number: int) -> list[dict[str, Any]]:
    """Return `ids` and `text` of the first `number` training sequences in a folder of shards; padding: −1 and `<pad>`.

    In dialogues, « and » enclose the tokens that the loss includes.
    """
    contents = shard_manifest.load(folder)
    shards = contents.splits["train"].shards
    rows = chain.from_iterable(read(folder, contents, shard) for shard in shards)
    names = _names(model)
    shown = []
    for row in islice(rows, number):
        ids, learned = row.astype(np.int64), np.zeros(len(row), bool)
        ids[row == pad_of(contents.dtype)] = -1
        if contents.form == "chat":
            found = dialogue_tokens(row[None].astype(np.int64))
            ids, learned = np.where(found.document[0] < 0, -1, found.ids[0]), found.answer[0]
        edges = np.flatnonzero(np.diff(learned, prepend=False, append=False))
        text = ""
        for number_of_piece, piece in enumerate(np.split(ids, edges)):
            text += ("«" if number_of_piece % 2 else "»" * (number_of_piece > 0)) + _text(model, piece.tolist(), names)
        shown.append({"ids": ids.tolist(), "text": text})
    return shown


def _names(model: TokenizerModel) -> dict[int, str]:
    """Return a name for each token that has no text."""
    names = {i: name for i, name in ((model.bos, BOS), (model.eos, EOS)) if i is not None}
    silent = np.flatnonzero(model.byte_counts() == 0).tolist()
    return {-1: "<pad>"} | {
        i: (model.library and model.library.id_to_token(i)) or names.get(i, f"<{i}>") for i in silent
    }


def _text(model: TokenizerModel, ids: list[int], names: dict[int, str]) -> str:
    text, run = "", list[int]()
    for i in [*ids, None]:
        if i is not None and i not in names:
            run.append(i)
            continue
        text, run = text + (model.decode(run) if run else ""), []
        text += "" if i is None else names[i]
    return text
