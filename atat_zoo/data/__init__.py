"""Data: documents → tokens → packed sequences → shards → a stream in a fixed order.

Only `stream` and `sequences` import torch.
"""

from collections.abc import Callable
from typing import Literal

Split = Literal["train", "validation", "test"]
Progress = Callable[[str, int, int | None], None]  # a stage, its completed amount, and its total if known
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def is_framed(special: str) -> bool:
    """Return whether every sequence begins with BOS and ends with EOS, given `special_tokens` in `[data]`."""
    return special in ("sequence", "both")


def has_eos(special: str, form: str) -> bool:
    """Return whether every document ends with EOS, given the keys of `[data]`; the template adds EOS to dialogues."""
    return form == "chat" or special != "none"


def joints(special: str, rows: str, form: str) -> str:
    """Return a sentence that says what separates documents, given the keys of `[data]`."""
    if form == "chat":
        return "dialogues have the special tokens from their chat template"
    end = "each document ends with EOS"
    if rows == "document":
        said = {"none": "without special tokens", "document": "followed by EOS"}
        return f"each sequence holds the beginning of one document, {said.get(special, 'between BOS and EOS')}"
    said = {
        "none": "documents are concatenated without a separator "
        '(set data.special_tokens = "document" to end each with EOS)'
    }
    said |= {"document": end, "both": f"{end}, and each sequence begins with BOS and ends with EOS"}
    return said.get(
        special,
        "documents are concatenated without a separator, and each sequence begins with BOS and ends with EOS",
    )
