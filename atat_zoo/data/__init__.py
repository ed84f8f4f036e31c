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
