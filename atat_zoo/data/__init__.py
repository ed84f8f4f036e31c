"""Tokenize documents, pack them into sequences, save these as shards, and stream them in a fixed order.

Only `stream` and `sequences` import torch.
"""

from collections.abc import Callable
from typing import Literal

Split = Literal["train", "validation", "test"]
Progress = Callable[[str, int, int | None], None]  # a stage, its completed amount, and its total if known
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def is_framed(special: str) -> bool:
    """Return whether BOS and EOS enclose the tokens of every sequence, given `special_tokens` in `[data]`."""
    return special in ("sequence", "both")


def has_eos(special: str, form: str) -> bool:
    """Return whether EOS ends documents, sequences or messages, given `special_tokens` and `format` of `[data]`."""
    return form == "chat" or special != "none"
