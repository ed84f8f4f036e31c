"""Data: documents → tokens → packed sequences → shards → a stream in a fixed order.

Only `stream` and `sequences` import torch.
"""

from collections.abc import Callable
from typing import Literal

Split = Literal["train", "validation", "test"]
Progress = Callable[[str, int, int | None], None]  # a stage, its completed amount, and its total if known
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def is_framed(special: str) -> bool:
    """Return whether every sequence stands between BOS and EOS, for `special` of `[data]`."""
    return special in ("sequence", "both")


def has_eos(special: str, form: str) -> bool:
    """Return whether a document ends with EOS, for the keys of `[data]`; a dialogue does by its template."""
    return form == "chat" or special != "none"


def joints(special: str, rows: str, form: str) -> str:
    """Return in a sentence what stands between documents, for the keys of `[data]`."""
    if form == "chat":
        return "dialogues have the special tokens of their template"
    end = "each document ends with EOS"
    if rows == "document":
        said = {"none": "without special tokens", "document": "which ends with EOS"}
        return f"a sequence is the beginning of one document, {said.get(special, 'between BOS and EOS')}"
    said = {
        "none": 'documents are joined with nothing between them (data.special_tokens = "document" ends each with EOS)'
    }
    said |= {"document": end, "both": f"{end}, and each sequence stands between BOS and EOS"}
    return said.get(special, "documents are joined with nothing between them, and each sequence has BOS and EOS")
