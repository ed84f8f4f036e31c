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
